"""Evaluation in main: one host for all behaviours, the newest policies, restarts, and which scores compare."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import pytest
from fakes import policy_update
from run_configs import changed

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.control import LocalControl, OpenEdge, local_pair
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges
from headrace.pipeline.main.launcher import Launcher, RunningHosts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.parts.evaluation import Evaluation, conditions, environment_checksum
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.stages.environments.given import GivenEnvironment, giving

pytestmark = pytest.mark.virtual_time


class WaitingHosts(InlineHosts):
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
    monkeypatch.setitem(HOST_KINDS, "waiting", HostKind("waiting", f"{__name__}:WaitingHosts", in_main=True))
    WaitingHosts.started.clear()
    WaitingHosts.refuses = False


async def nothing_beside(*_: Any) -> list[Any]:
    return []


@asynccontextmanager
async def evaluation_of(folder: Path, **sections: Any) -> AsyncIterator[Evaluation]:
    plain: dict[str, Any] = {
        "behaviors": {"Ball": {}, "Goalie": {}},
        "environment": {"kind": "builtin", "id": "Volley", "behavior": "Ball"},
        "pipeline": {"hosts": {"actors": {"kind": "waiting"}}},
        "evaluation": {"every": 100},
    }
    config = RunConfig.from_plain({**plain, **sections})
    with RunFolder.create(folder, "run") as made:
        async with asyncio.TaskGroup() as tasks:
            running = RunningHosts(config, tasks, lambda host: None)
            plan = RunPlan(config, made, 0, None)
            run: Any = SimpleNamespace(
                plan=plan,
                launcher=Launcher(plan, running, nothing_beside),
                supervisor=Supervisor(config.env_settings, config.pipeline.supervision),
                shutdown=SimpleNamespace(begun=False, learners_ended=True, moved=lambda: None),
                reporter=SimpleNamespace(record_evaluation=lambda message: None),
            )
            yield Evaluation(run)
            running.close()


def waiting_policy(index: int, behavior: str) -> Any:
    """The version of the policy that waits at one of the hosts that were started."""
    return WaitingHosts.started[index][2].ends[f"policies/{behavior}"].get_nowait().version


async def sent(index: int) -> list[Any]:
    """Close the channel to a host, and return what was sent there, but for ends of queues."""
    messages = [message async for message in WaitingHosts.started[index][1].receive()]
    return [message for message in messages if not isinstance(message, OpenEdge)]


async def test_a_single_host_evaluates_all_behaviours(tmp_path):
    async with evaluation_of(tmp_path) as evaluation:
        await asyncio.gather(*(evaluation.learns(name, None) for name in ("Ball", "Ball", "Goalie", "Ball")))
        assert len(WaitingHosts.started) == 1
        assert WaitingHosts.started[0][2].ends.keys() == {"policies/Ball", "policies/Goalie"}


async def test_the_newest_policy_waits_also_if_it_came_before_the_host(tmp_path):
    async with evaluation_of(tmp_path) as evaluation:
        evaluation.policy_came("Ball", policy_update("Ball", 3))
        await evaluation.learns("Ball", None)
        assert waiting_policy(0, "Ball") == 3
        evaluation.policy_came("Ball", policy_update("Ball", 4))
        evaluation.policy_came("Ball", policy_update("Ball", 5))
        assert waiting_policy(0, "Ball") == 5


async def test_a_host_that_ends_is_started_again_with_the_newest_policies(tmp_path, caplog):
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.policy_came("Ball", policy_update("Ball", 7))
        WaitingHosts.started[0][0].kill()
        assert await evaluation.host_ended(WaitingHosts.started[0][0], -9, "was killed by signal 9")
        assert waiting_policy(1, "Ball") == 7
        checksums = [host.plan.environment_checksum for host, _, _ in WaitingHosts.started]
        assert checksums == [environment_checksum(evaluation.run.plan.config)] * 2
        assert "its process was killed by signal 9\nRestarting it; training continues." in caplog.text
        await evaluation.finish()
        assert "Not all policies" not in caplog.text


async def test_training_continues_without_evaluation_beyond_the_restart_limit_and_the_end_reports_it(tmp_path, caplog):
    async with evaluation_of(tmp_path, env_settings={"max_lifetime_restarts": 0}) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.host_failed("stage evaluation failed on item 3: the motor is on fire")
        assert not await evaluation.host_ended(WaitingHosts.started[0][0], 1, "ended with status 1")
        assert "the motor is on fire\nIt is not restarted: " in caplog.text
        evaluation.policy_came("Ball", policy_update("Ball", 8))
        await evaluation.learns("Goalie", None)
        assert len(WaitingHosts.started) == 1
        evaluation.fewer_hosts(at_once=False)
        await evaluation.finish()
        assert "Not all policies were evaluated: evaluation had failed (stage evaluation failed" in caplog.text


async def test_a_host_that_can_t_be_started_ends_only_the_evaluation(tmp_path, caplog):
    WaitingHosts.refuses = True
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.policy_came("Ball", policy_update("Ball", 8))
        assert "Evaluation has failed: OSError: too many open files" in caplog.text


async def test_policies_not_evaluated_at_the_end_are_reported_unless_an_immediate_stop_was_requested(tmp_path, caplog):
    async with evaluation_of(tmp_path) as evaluation:
        await evaluation.learns("Ball", None)
        evaluation.fewer_hosts(at_once=True)
        evaluation.run.shutdown.begun = True
        assert not await evaluation.host_ended(WaitingHosts.started[0][0], 1, "ended with status 1")
        await evaluation.finish()
        assert not caplog.text
        evaluation.fewer_hosts(at_once=False)
        evaluation.run.shutdown.begun = True
        assert not await evaluation.host_ended(WaitingHosts.started[0][0], 1, "ended with status 1")
        await evaluation.finish()
        assert "Not all policies were evaluated: evaluation had failed (its process ended with status 1)" in caplog.text


PLAIN: dict[str, Any] = {
    "behaviors": {"Ball": {}, "Goalie": {}},
    "environment": {"kind": "gymnasium", "id": "Pendulum-v1", "behavior": "Ball"},
    "evaluation": {"every": 100},
}


def compared(*, behavior: str = "Ball", **changes: Any) -> dict[str, str]:
    config = RunConfig.from_plain(changed(PLAIN, changes))
    return conditions(config, behavior, environment_checksum(config))


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"environment__options": {"g": 5.0}}, "environment"),
        ({"environment__wrappers": ["gymnasium.wrappers:TimeAwareObservation"]}, "environment"),
        ({"environment_parameters": {"gravity": 2.0}}, "environment"),
        ({"env_settings__env_args": ["--hard"]}, "environment"),
        ({"behaviors__Ball__reward_signals": {"extrinsic": {"strength": 2.0}}}, "reward_signals"),
        ({"behaviors__Ball__reward_signals": {"extrinsic": {}, "curiosity": {}}}, "reward_signals"),
        ({"evaluation__opponents": "random"}, "evaluation"),
        ({"behaviors__Goalie__brain": "random"}, "evaluation"),
    ],
)
def test_scores_under_other_settings_do_not_compare(changes, about):
    before, now = compared(), compared(**changes)
    assert [key for key in before if before[key] != now[key]] == [about]


@pytest.mark.parametrize(
    "changes",
    [
        {"environment__num_envs": 8},
        {"env_settings": {"num_envs": 3, "base_port": 7000, "timeout_wait": 9, "seed": 5}},
        {"pipeline__hosts__actors__replicas": 3},
        {"behaviors__Ball__max_steps": 10**6},
        {"behaviors__Goalie__reward_signals": {"extrinsic": {"strength": 2.0}}},
        {"behaviors__Ball__reward_signals": {"extrinsic": {"gamma": 0.99}}},  # the default
    ],
)
def test_scores_compare_whatever_else_changes(changes):
    assert compared(**changes) == compared()


def paying(pay: float) -> Any:
    return lambda: gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda _: pay)


class Own(gymnasium.Env[Any, Any]):
    """An environment that exists in this process alone, as one of a script does."""

    pay = 1.0
    words: ClassVar = {"one", "two", "three"}

    def __init__(self, seats: int = 0) -> None:
        self.seats = seats


def test_the_environments_of_a_caller_compare_by_their_code_and_arguments(monkeypatch):
    def checksum(*makers: Any) -> str:
        with giving("own", GivenEnvironment([*makers])) as reference:
            plain = {**PLAIN, "environment": {"kind": "gymnasium", "factory": reference, "behavior": "Ball"}}
            return environment_checksum(RunConfig.from_plain(plain))

    monkeypatch.setattr(Own, "__module__", "__main__")
    another = type("Own", (gymnasium.Env,), {**vars(Own), "pay": 2.0, "__qualname__": Own.__qualname__})
    makers = [paying(1.0), paying(2.0), lambda: Own(), lambda: Own(1), Own, another, partial(Own, 1), partial(Own, 2)]
    checksums = [checksum(maker) for maker in makers]
    assert len({*checksums}) == len(makers)
    assert checksum(paying(1.0)) == checksum(paying(1.0), paying(1.0)) == checksums[0]
    assert checksum(partial(Own, 2)) == checksums[-1]
