"""The evaluation host: scores for main, the best policy and its opponent on the disk, and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config import RunConfig
from headrace.pipeline.control.channel import local_pair
from headrace.pipeline.control.messages import Evaluated, HostFailed, HostFinished, OpenEdge, Stop
from headrace.pipeline.hosts.host_process import serve
from headrace.pipeline.hosts.inline import LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.policies.export import read_export
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import PolicyUpdate
from headrace.stages.games.volley import VolleyGroup
from headrace.stages.trainer import TrainerContext
from headrace.stages.trainer.ppo import PPOTrainer

PLAIN: dict[str, Any] = {
    "behaviors": {"Volley": {"trainer_type": "ppo", "network_settings": {"hidden_units": 8, "num_layers": 1}}},
    "environment": {"kind": "builtin", "id": "Volley", "num_envs": 2, "options": {"points_to_win": 1}},
}


def policy(step: int, seed: int = 1) -> PolicyUpdate:
    config = RunConfig.from_plain(PLAIN)
    spec = VolleyGroup(1).behavior_specs["Volley?team=0"]
    made = PPOTrainer(TrainerContext("Volley", config.behavior_settings("Volley"), spec, seed=seed)).policy()
    return PolicyUpdate(made.behavior_id, step // 10, made.weights, made.layout, step)


async def evaluated(folder: Path, *policies: PolicyUpdate, best: float | None = None, **section: Any) -> list[Any]:
    """Run the host on these policies, which come one by one; what it says to main, but for statistics."""
    section = {"every": 100, "episodes": 4, "opponents": "random", **section}
    plan = HostPlan(
        "evaluation",
        "evaluation",
        {**PLAIN, "evaluation": section},
        None,
        str(folder),
        3,
        best={} if best is None else {"Volley": best},
    )
    control, theirs = local_pair("evaluation")
    edges = LocalEdges()
    queue: AgentManagerQueue[Any] = AgentManagerQueue("policies/Volley", 1, "replace_oldest")
    edges.ends[queue.name] = queue
    control.send(OpenEdge(queue.name, {}))
    for each in policies:
        queue.put_nowait(each)
    if policies:
        queue.close()
    else:
        control.send(Stop())
    await serve(plan, theirs, edges)
    return [m async for m in control.receive() if isinstance(m, Evaluated | HostFailed | HostFinished)]


async def test_it_reports_a_score_and_keeps_the_best_policy(tmp_path):
    score, end = await evaluated(tmp_path, policy(120))
    assert (score.behavior, score.step, score.episodes, score.best) == ("Volley", 120, 4, True)
    assert score.lowest <= score.mean <= score.highest
    assert score.length >= 1
    assert isinstance(end, HostFinished)
    best = read_export(tmp_path / "Volley" / "Volley-best.pt").update
    assert best.step == 120
    assert np.array_equal(best.weights, policy(120).weights)
    assert (tmp_path / "Volley" / "Volley-best.onnx").exists()


async def test_what_is_not_better_than_the_best_before_is_not_kept(tmp_path):
    score, _ = await evaluated(tmp_path, policy(120), best=99.0)
    assert not score.best
    assert not (tmp_path / "Volley").exists()


async def test_a_disk_that_refuses_costs_the_file_alone(tmp_path, caplog):
    (tmp_path / "Volley").touch()
    score, end = await evaluated(tmp_path, policy(120))
    assert (score.best, type(end)) == (False, HostFinished)
    assert "the best policy of Volley could not be written" in caplog.text


async def test_the_policy_that_is_played_against_is_kept_and_used_again(tmp_path):
    kept = tmp_path / "Volley" / "Volley-opponent.pt"
    await evaluated(tmp_path, policy(120), opponents="snapshot")
    await evaluated(tmp_path, policy(500, seed=2), opponents="snapshot")
    assert read_export(kept).update.step == 120


async def test_a_damaged_opponent_is_named_and_replaced(tmp_path, caplog):
    (tmp_path / "Volley").mkdir()
    kept = tmp_path / "Volley" / "Volley-opponent.pt"
    kept.write_bytes(b"no policy")
    score, _ = await evaluated(tmp_path, policy(120), opponents="snapshot")
    assert f"{kept} is not an exported policy" in caplog.text
    assert score.step == 120
    assert read_export(kept).update.step == 120


async def test_what_fails_in_it_is_told_to_main_in_words(tmp_path):
    (end,) = await evaluated(tmp_path, policy(120), opponents="headrace.stages.games.connect_four:TacticalPlayer")
    assert isinstance(end, HostFailed)
    assert "evaluation.opponents: headrace.stages.games.connect_four:TacticalPlayer raised TypeError" in end.message


async def test_it_ends_when_it_is_told_to_without_any_policy(tmp_path):
    (end,) = await evaluated(tmp_path)
    assert isinstance(end, HostFinished)


@pytest.mark.parametrize("opponents", ["self", "snapshot", "random", "headrace.stages.games.volley:ScriptedPlayer"])
async def test_the_same_policy_gets_the_same_score_again(tmp_path, opponents):
    scores = [(await evaluated(tmp_path / run, policy(120), opponents=opponents))[0] for run in ("a", "b")]
    assert scores[0] == scores[1]
