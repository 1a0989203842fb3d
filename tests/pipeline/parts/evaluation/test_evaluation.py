"""Evaluation in main: one host for all behaviours, the newest policies, restarts, and the best scores of a resumed run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import policy_update

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.common.run_parts import RUN_PARTS
from headrace.pipeline.control.channel import LocalControl, local_pair
from headrace.pipeline.control.messages import Evaluated, OpenEdge, Stop
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges
from headrace.pipeline.main.launcher import Launcher
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.parts.evaluation.best_scores import read_scores, write_score
from headrace.pipeline.parts.evaluation.main import Evaluation
from headrace.pipeline.run_folder.checkpoint import Checkpoint
from headrace.pipeline.run_folder.folder import RunFolder

pytestmark = pytest.mark.virtual_time

HOST: Any = None
"""Whose messages they are does not matter here."""


class Waiting(InlineHosts):
    """A kind of host that does nothing; what main has sent lies in its end of the channel, policies in its queues."""

    started: list[tuple[InlineHost, LocalControl, LocalEdges]] = []
    refuses = False

    async def start(self, plan: Any, feed: Any = None, replaces: Any = None) -> InlineHost:
        if self.refuses:
            raise OSError("too many open files")
        control, theirs = local_pair(plan.name)
        edges = LocalEdges()
        task = self._tasks.create_task(asyncio.Event().wait())
        host = InlineHost(plan, self._maxlen, control, edges, task)
        self.started.append((host, theirs, edges))
        return host


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HOST_KINDS, "waiting", HostKind("waiting", f"{__name__}:Waiting", in_main=True))
    monkeypatch.setattr(Waiting, "started", [])
    monkeypatch.setattr(Waiting, "refuses", False)


@asynccontextmanager
async def evaluation_of(
    folder: Path, progress: Mapping[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Evaluation]:
    plain: dict[str, Any] = {
        "behaviors": {"Ball": {}, "Goalie": {}},
        "environment": {"kind": "builtin", "id": "Volley", "behavior": "Ball"},
        "pipeline": {"hosts": {"actors": {"kind": "waiting"}}},
        "evaluation": {"every": 100},
    }
    config = RunConfig.from_plain({**plain, **sections})
    resumed = None if progress is None else Checkpoint(1, folder, {}, {}, progress)
    with RunFolder.create(folder, "run") as made:
        async with asyncio.TaskGroup() as tasks:
            running = RunningHosts(config, tasks, lambda host: None)
            plan = RunPlan(config, made, 0, resumed)
            run: Any = SimpleNamespace(
                plan=plan,
                launcher=Launcher(plan, running),
                supervisor=Supervisor(config.env_settings, config.pipeline.supervision),
                shutdown=SimpleNamespace(begun=False, learners_ended=True, moved=lambda: None),
                reporter=SimpleNamespace(record_evaluation=lambda message: None),
            )
            yield Evaluation(run)
            running.close()


def waiting_policy(index: int, behavior: str) -> Any:
    """The version of the policy that waits at one of the hosts that were started."""
    return Waiting.started[index][2].ends[f"policies/{behavior}"].get_nowait().version


async def sent(index: int) -> list[Any]:
    """Close the channel to a host, and return what was sent there, but for ends of queues."""
    messages = [message async for message in Waiting.started[index][1].receive()]
    return [message for message in messages if not isinstance(message, OpenEdge)]


async def test_one_host_evaluates_all_behaviours_whoever_announces_them(tmp_path):
    async with evaluation_of(tmp_path) as evaluation:
        await asyncio.gather(*(evaluation.learns(name, None) for name in ("Ball", "Ball", "Goalie", "Ball")))
        assert len(Waiting.started) == 1
        assert Waiting.started[0][2].ends.keys() == {"policies/Ball", "policies/Goalie"}


@pytest.mark.parametrize("changes", [{"evaluation": None}, {"checkpoint_settings": {"inference": True}}])
def test_without_evaluation_a_run_does_not_have_the_part(changes):
    game = {"kind": "builtin", "id": "Volley"}
    plain = {"behaviors": {"Ball": {}}, "environment": game, "evaluation": {"every": 100}}
    wanted = RUN_PARTS["evaluation"].wanted
    assert wanted(RunConfig.from_plain(plain))
    assert not wanted(RunConfig.from_plain({**plain, **changes}))


async def test_the_newest_policy_waits_also_if_it_came_before_the_host(tmp_path):
    async with evaluation_of(tmp_path) as evaluation:
        evaluation.policy_came("Ball", policy_update("Ball", 3))
        await evaluation.learns("Ball", None)
        assert waiting_policy(0, "Ball") == 3
        evaluation.policy_came("Ball", policy_update("Ball", 4))
        evaluation.policy_came("Ball", policy_update("Ball", 5))
        assert waiting_policy(0, "Ball") == 5


async def test_a_host_that_ends_is_started_again_with_the_best_scores_and_newest_policies(tmp_path, caplog):
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.policy_came("Ball", policy_update("Ball", 7))
        evaluation.receive(HOST, Evaluated("Ball", 90, 2.5, 0.0, 2.5, 2.5, 9.0, 4, True))
        evaluation.receive(HOST, Evaluated("Ball", 95, 1.5, 0.0, 1.5, 1.5, 9.0, 4, False))
        Waiting.started[0][0].kill()
        assert await evaluation.host_ended(Waiting.started[0][0], -9, "was killed by signal 9")
        assert waiting_policy(1, "Ball") == 7
        assert Waiting.started[1][0].plan.best == {"Ball": 2.5}
        assert "its process was killed by signal 9\nRestarting it; training continues." in caplog.text
        evaluation.close()
        assert "Not all policies" not in caplog.text


async def test_beyond_the_restart_limits_training_goes_on_without_it_and_the_end_says_so(tmp_path, caplog):
    async with evaluation_of(tmp_path, env_settings={"max_lifetime_restarts": 0}) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.host_failed("stage evaluation failed on item 3: the motor is on fire")
        assert not await evaluation.host_ended(Waiting.started[0][0], 1, "ended with status 1")
        assert "the motor is on fire\nIt is not restarted: " in caplog.text
        evaluation.policy_came("Ball", policy_update("Ball", 8))
        await evaluation.learns("Goalie", None)
        assert len(Waiting.started) == 1
        evaluation.fewer_hosts(at_once=False)
        evaluation.close()
        assert "Not all policies were evaluated: evaluation had failed (stage evaluation failed" in caplog.text


async def test_a_host_that_can_t_be_started_costs_the_evaluation_alone(tmp_path, caplog):
    Waiting.refuses = True
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.policy_came("Ball", policy_update("Ball", 8))
        assert "Evaluation has failed: OSError: too many open files" in caplog.text


@pytest.mark.parametrize(("at_once", "stopped"), [(False, []), (True, [Stop()])])
async def test_at_an_interruption_it_ends_at_once(tmp_path, at_once, stopped):
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.fewer_hosts(at_once)
        Waiting.started[0][0].close()
        assert await sent(0) == stopped


async def test_a_queue_ends_behind_its_last_policy_also_one_that_is_opened_later(tmp_path):
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        for name in ("Ball", "Goalie"):
            evaluation.policy_came(name, policy_update(name, 9))
            evaluation.policy_came(name, None)
        await evaluation.learns("Goalie", None)
        for name in ("Ball", "Goalie"):
            assert Waiting.started[0][2].ends[f"policies/{name}"].closed
            assert waiting_policy(0, name) == 9


async def test_what_is_lost_at_the_end_is_said_unless_it_was_asked_for(tmp_path, caplog):
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.fewer_hosts(at_once=True)
        evaluation.run.shutdown.begun = True
        assert not await evaluation.host_ended(Waiting.started[0][0], 1, "ended with status 1")
        evaluation.close()
        assert not caplog.text
        evaluation.fewer_hosts(at_once=False)
        evaluation.run.shutdown.begun = True
        assert not await evaluation.host_ended(Waiting.started[0][0], 1, "ended with status 1")
        evaluation.close()
        assert "Not all policies were evaluated: evaluation had failed (its process ended with status 1)" in caplog.text


@pytest.mark.parametrize(
    ("progress", "best"),
    [
        ({"best": {"Ball": 3.0}, "best_against": "self"}, {"Ball": 3.0}),
        ({"best": {"Ball": 3.0}, "best_against": "random"}, {}),  # another measure
        ({}, {}),
    ],
)
async def test_a_resumed_run_remembers_its_best_scores_if_they_mean_the_same(tmp_path, progress, best):
    async with evaluation_of(tmp_path, progress) as evaluation:
        assert evaluation.best == best
        assert evaluation.progress() == {"best": best, "best_against": "self"}


def test_the_score_beside_a_best_policy_is_of_the_same_opponents_or_none(tmp_path, caplog):
    policy = tmp_path / "Ball" / "Ball-best.pt"
    policy.parent.mkdir()
    write_score(policy, "Ball", 5.0, "self")
    assert read_scores(tmp_path, "self") == {"Ball": 5.0}
    assert read_scores(tmp_path, "random") == {}
    assert not caplog.text
    policy.with_suffix(".json").write_text("[]")
    assert read_scores(tmp_path, "self") == {}
    assert "Ball-best.json can't be read" in caplog.text
