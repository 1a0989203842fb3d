"""The evaluation host: scores for main, the best policy and its opponent on the disk, and its end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.config import RunConfig
from headrace.pipeline.control import HostFailed, HostFinished, OpenEdge, PolicyEvaluated, Stop, local_pair
from headrace.pipeline.hosts.inline import LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.hosts.run_host import serve
from headrace.pipeline.parts.evaluation import conditions
from headrace.pipeline.policies.export import export_policy, read_export, read_score
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import PolicyUpdate
from headrace.stages.games.volley import VolleyGroup
from headrace.stages.policy.onnx.contract import read_notes
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import TrainerContext

PLAIN: dict[str, Any] = {
    "behaviors": {"Volley": {"trainer_type": "ppo", "network_settings": {"hidden_units": 8, "num_layers": 1}}},
    "environment": {"kind": "builtin", "id": "Volley", "num_envs": 2, "options": {"points_to_win": 1}},
}


def policy(step: int, seed: int = 1) -> PolicyUpdate:
    config = RunConfig.from_plain(PLAIN)
    spec = VolleyGroup(1).behavior_specs["Volley?team=0"]
    made = PPOTrainer(TrainerContext("Volley", config.behavior_settings("Volley"), spec, seed=seed)).policy()
    return PolicyUpdate(made.behavior_id, step // 10, made.weights, made.layout, step)


SECTION = {"every": 100, "episodes": 4, "opponents": "random"}
BEST = Path("Volley", "Volley-best.pt")


def had_best(folder: Path, mean: float, step: int = 50, environment: str = "") -> None:
    """Lay a best policy with this score into the run's folder, without the files that are made from it."""
    config = RunConfig.from_plain({**PLAIN, "evaluation": SECTION})
    compared = conditions(config, "Volley", environment)
    score = {"behavior": "Volley", "step": step, "mean": mean, "conditions": compared}
    spec = VolleyGroup(1).behavior_specs["Volley?team=0"]
    export_policy(folder, policy(step), spec, config.behavior_settings("Volley"), label="best", score=score)


async def evaluated(
    folder: Path, *policies: PolicyUpdate, meanwhile: Callable[[], object] = lambda: None, **section: Any
) -> list[Any]:
    """Run the host on these policies, which come one by one; what it says to main, but for statistics.

    After each score but the last, `meanwhile` is called.
    """
    plain = {**PLAIN, "evaluation": {**SECTION, **section}}
    control, theirs = local_pair("evaluation")
    edges = LocalEdges()
    queue: AgentManagerQueue[Any] = AgentManagerQueue("policies/Volley", 1, "replace_oldest")
    edges.ends[queue.name] = queue
    control.send(OpenEdge(queue.name, {}))
    left = list(policies)
    if left:
        queue.put_nowait(left.pop(0))
    else:
        control.send(Stop())
    if not left:
        queue.close()
    host = asyncio.create_task(serve(HostPlan("evaluation", "evaluation", plain, None, str(folder), 3), theirs, edges))
    told = []
    async for message in control.receive():
        if isinstance(message, PolicyEvaluated) and left:
            meanwhile()
            queue.put_nowait(left.pop(0))
            if not left:
                queue.close()
        if isinstance(message, PolicyEvaluated | HostFailed | HostFinished):
            told.append(message)
    await host
    return told


def kept(folder: Path) -> PolicyUpdate:
    """The best policy; the files beside it are of the same one."""
    path = folder / BEST
    score = read_score(path)
    update = read_export(path).update
    assert json.loads(path.with_suffix(".json").read_bytes()) == score
    assert score["step"] == update.step == onnx_step(path.with_suffix(".onnx"))
    return update


def onnx_step(path: Path) -> int:
    properties = {each.key: each.value for each in onnx.load(path).metadata_props}
    found = read_notes(properties, str(path))
    assert found is not None
    return found.step


async def test_the_host_reports_a_score_and_keeps_the_best_policy(tmp_path):
    score, end = await evaluated(tmp_path, policy(120))
    assert (score.behavior, score.step, score.score["episodes"], score.best) == ("Volley", 120, 4, True)
    assert score.score["lowest"] <= score.score["mean"] <= score.score["highest"]
    assert score.score["length"] >= 1
    assert isinstance(end, HostFinished)
    assert np.array_equal(kept(tmp_path).weights, policy(120).weights)
    assert read_score(tmp_path / BEST)["mean"] == score.score["mean"]


async def test_a_policy_worse_than_the_best_is_not_kept_and_the_files_next_to_the_best_are_restored(tmp_path):
    had_best(tmp_path, 99.0)
    score, _ = await evaluated(tmp_path, policy(120))
    assert not score.best
    assert kept(tmp_path).step == 50
    (tmp_path / BEST).with_suffix(".json").write_text(json.dumps({"step": 40}))  # of another one
    (tmp_path / BEST).with_suffix(".onnx").write_bytes(b"of another one")
    await evaluated(tmp_path, policy(130))
    assert kept(tmp_path).step == 50


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda folder: had_best(folder, 99.0, environment="another"),
            r"Volley-best\.pt: the score, 99\.000 at step 50, was achieved with different settings \(environment\)",
        ),
        (
            lambda folder: (folder / BEST).write_bytes((folder / BEST).read_bytes().replace(b"99.0", b"98.0")),
            r"is damaged: the checksum \(CRC-32\) of its entry .*evaluation\.json does not match",
        ),
        (
            lambda folder: (folder / BEST).write_bytes(b"no policy"),
            r"Volley-best\.pt is not an exported policy: it is damaged, or not a PyTorch file",
        ),
    ],
)
async def test_a_best_policy_whose_score_does_not_compare_is_replaced_with_a_message(tmp_path, caplog, spoil, why):
    had_best(tmp_path, 99.0)
    spoil(tmp_path)
    score, _ = await evaluated(tmp_path, policy(120))
    assert score.best
    assert kept(tmp_path).step == 120
    assert re.search(
        why + r".*\. The next policy that is evaluated replaces this file, whatever its score\.", caplog.text
    )


async def test_a_disk_that_refuses_a_best_policy_is_tried_again_and_no_worse_one_is_kept(tmp_path, caplog):
    (tmp_path / BEST).mkdir(parents=True)
    policies = policy(120, seed=7), policy(300, seed=2)
    first, second, end = await evaluated(tmp_path, *policies, meanwhile=(tmp_path / BEST).rmdir)
    assert first.score["mean"] > second.score["mean"]
    assert (first.best, second.best, type(end)) == (True, False, HostFinished)
    assert re.search(
        r"the best policy of Volley could not be written: .*; the next evaluation tries again", caplog.text
    )
    assert kept(tmp_path).step == 120


@pytest.mark.parametrize("suffix", [".onnx", ".json"])
async def test_a_disk_that_refuses_an_export_of_the_best_policy_loses_only_that_export(tmp_path, caplog, suffix):
    refused = (tmp_path / BEST).with_suffix(suffix)
    refused.mkdir(parents=True)
    score, _ = await evaluated(tmp_path, policy(120))
    assert score.best
    assert read_export(tmp_path / BEST).update.step == 120
    assert "could not be written" in caplog.text
    refused.rmdir()
    await evaluated(tmp_path)
    assert kept(tmp_path).step == 120


async def test_the_policy_that_is_played_against_is_kept_and_used_again(tmp_path):
    kept = tmp_path / "Volley" / "Volley-opponent.pt"
    await evaluated(tmp_path, policy(120), opponents="snapshot")
    await evaluated(tmp_path, policy(500, seed=2), opponents="snapshot")
    assert read_export(kept).update.step == 120


async def test_a_failure_in_evaluation_is_reported_to_main(tmp_path):
    (end,) = await evaluated(tmp_path, policy(120), opponents="headrace.stages.games.connect_four:TacticalPlayer")
    assert isinstance(end, HostFailed)
    assert "evaluation.opponents: headrace.stages.games.connect_four:TacticalPlayer raised TypeError" in end.message


@pytest.mark.parametrize("opponents", ["self", "snapshot", "random", "headrace.stages.games.volley:ScriptedPlayer"])
async def test_the_same_policy_gets_the_same_score_again(tmp_path, opponents):
    scores = [(await evaluated(tmp_path / run, policy(120), opponents=opponents))[0] for run in ("a", "b")]
    assert scores[0] == scores[1]
