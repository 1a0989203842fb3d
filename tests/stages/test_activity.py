"""What a process says of its own preparations: they are no silence of its environment."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial

import pytest
from fakes import counting_spec

from headrace.config import RunConfig
from headrace.pipeline.policies.inference import brain_maker, policy_maker
from headrace.stages.activity import PREPARES, Activity, preparing
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.errors import StageError

CONFIG = RunConfig.from_plain(
    {
        "behaviors": {"Walker": {"trainer_type": "ppo"}},
        "environment": {"kind": "gymnasium", "id": "CartPole-v1", "behavior": "Walker"},
    }
)
SPEC = counting_spec("Walker")


def request_of(kind: str) -> EnvironmentRequest:
    plain = {"environment": {"kind": kind}, "env_settings": {"env_path": "nowhere", "base_port": 0}}
    return EnvironmentRequest(RunConfig.from_plain({"behaviors": {"Walker": {}}, **plain}))


def begin_in_vain(group) -> None:
    """Start a group of games whose build does not exist."""
    with pytest.raises(StageError, match="nowhere"):
        asyncio.run(group.reset(None))


def told_while(work) -> list[bool]:
    """What is told while something is done, in a context of its own as each host has one."""

    def done() -> list[bool]:
        told: list[bool] = []
        PREPARES.set(told.append)
        work()
        return told

    return contextvars.copy_context().run(done)


@pytest.mark.parametrize(
    "work",
    [
        lambda: make_group(EnvironmentRequest(CONFIG)),
        lambda: policy_maker(CONFIG, CONFIG.source_folder)(SPEC),
        lambda: brain_maker(CONFIG, 0)(SPEC),
        partial(begin_in_vain, make_group(request_of("unity"))),
        partial(begin_in_vain, make_group(request_of("godot"))),
        partial(begin_in_vain, make_group(request_of("open_protocol"))),
    ],
    ids=["environments", "a policy", "brains", "Unity", "Godot", "a game"],
)
def test_preparations_are_reported_at_their_start_and_end(work):
    assert told_while(work) == [True, False]


def test_failed_preparations_end():
    def fail():
        with pytest.raises(StageError), preparing():
            raise StageError("no such environment")

    assert told_while(fail) == [True, False]


async def test_a_stage_that_stood_still_meanwhile_was_not_silent():
    activity = Activity()
    activity.operation = lambda: "on item 1"
    with activity.running("environment", lambda: 0):
        assert [activity.silent_s(now) for now in (0.0, 1.0, 5.0)] == [0.0, 1.0, 5.0]
        with preparing():
            await asyncio.sleep(0)
        assert [activity.silent_s(now) for now in (60.0, 61.0)] == [0.0, 1.0]
