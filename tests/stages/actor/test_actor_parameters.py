"""The actor takes up environment parameters between two ticks, and begins anew for a lesson that asks for it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes import Cast, Counters, EchoPolicy, check_trajectories, policy_update
from lessons import TellableGroup, told
from virtual_time import until_blocked

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import Barrier
from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.agent import AgentProcessor
from headrace.stages.loop import run_source
from headrace.stages.restarts import RestartBudget
from headrace.stages.stage import StageContext

pytestmark = pytest.mark.virtual_time

FOREVER = 10**6


class Rig:
    """An actor with two instances of one agent each, a second a tick, whose parameters set the length of its episodes."""

    def __init__(self, length=FOREVER, resets=False, resumed_at=-1, horizon=1000, generation=0, **options):
        self.groups, self.requests = [], []
        self.sender = AgentManagerQueue("out", 1000)
        counters = Counters()

        def make_group():
            self.groups.append(
                TellableGroup([Cast("Walker")], 2, delay_s=lambda: 1.0, counters=counters, **options),
            )
            return self.groups[-1]

        self.environment = EnvironmentStage(make_group, PolicyMappings(EchoPolicy))
        self.actor = Actor(
            self.environment,
            AgentProcessor({"Walker": horizon}),
            CreditGate(lambda *request: self.requests.append(request)),
            ActorPort(),
            restarts=RestartBudget(3, -1, 60.0),
            resets_at_checkpoints=resets,
            resumed_at=resumed_at,
            clock=lambda: 0.0,
        )
        self.actor.receive_parameters(told(length, generation))
        self.batches = []

    async def __aenter__(self):
        self.task = asyncio.create_task(run_source(self.actor, self.sender, StageContext("actor", seed=5)))
        await until_blocked()
        self.actor.receive_policy(policy_update("Walker", 0))
        await until_blocked()
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])

    async def step(self, ticks, rows=FOREVER):
        """Let so much time pass, with credits for so many more rows."""
        number, used, *_ = self.requests[-1]
        self.actor.receive_grant(number, {"Walker": used["Walker"] + rows}, {"Walker": 0})
        await asyncio.sleep(ticks + 0.5)

    def take(self):
        items = [self.sender.get_nowait() for _ in range(self.sender.qsize())]
        for item in items:
            if not isinstance(item, Barrier):
                check_trajectories(item)
        return items

    @property
    def seeds(self):
        return self.groups[-1].seeds


def column(items, axis, name):
    found = [getattr(item, axis)[name] for item in items if not isinstance(item, Barrier) and getattr(item, axis)]
    return np.concatenate(found).tolist() if found else []


async def test_the_first_episodes_use_the_parameters_received_before_the_start():
    async with Rig(length=2, horizon=2) as rig:
        await rig.step(5)
        assert set(column(rig.take(), "episodes", "episode_lengths")) == {2}


async def test_a_lesson_starts_between_two_ticks_and_its_episodes_are_marked():
    async with Rig(length=4, horizon=2) as rig:
        await rig.step(2)
        rig.actor.receive_parameters(told(1, generation=3))
        await asyncio.sleep(4)
        items = rig.take()
        assert column(items, "episodes", "episode_lengths") == [4, 4, 1, 1, 1, 1]
        assert column(items, "episodes", "episode_parameters") == [0, 0, 3, 3, 3, 3]
        assert len(rig.seeds) == 1


async def test_a_lesson_with_a_reset_loses_no_step():
    async with Rig() as rig:
        await rig.step(3)
        rig.actor.receive_parameters(told(2, generation=1, reset=True))
        await asyncio.sleep(2)
        items = rig.take()
        assert column(items, "trajectories", "lengths")[:2] == [4, 4], "the tick that was under way as well"
        assert column(items, "trajectories", "truncated")[:2] == [True, True]
        assert not column(items[:1], "episodes", "episode_lengths"), "they were cut, they did not end"
        assert len(set(rig.seeds)) == 2
        await asyncio.sleep(4)
        assert set(column(rig.take(), "episodes", "episode_lengths")) == {2}


async def test_a_waiting_actor_resets_for_a_lesson():
    async with Rig() as rig:
        await rig.step(9, rows=4)
        rig.take()
        rig.actor.receive_parameters(told(1, generation=1, reset=True))
        await until_blocked()
        assert len(rig.seeds) == 2
        assert not rig.take(), "it had emitted all that it held"
        await rig.step(9, rows=4)
        items = rig.take()
        assert column(items, "episodes", "episode_lengths") == [1, 1, 1, 1]
        assert set(column(items, "episodes", "episode_parameters")) == {1}


async def test_a_requested_reset_survives_a_second_lesson():
    async with Rig() as rig:
        await rig.step(3)
        rig.actor.receive_parameters(told(2, generation=1, reset=True))
        rig.actor.receive_parameters(told(3, generation=2))
        await asyncio.sleep(8)
        assert len(rig.seeds) == 2
        assert set(column(rig.take(), "episodes", "episode_parameters")) == {2}


# Deterministic runs. -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 1.2, 2.7, 20.0])
async def test_a_deterministic_run_starts_a_lesson_while_it_waits(after_s):
    async with Rig(length=2, resets=True) as rig:
        await rig.step(0, rows=8)
        await asyncio.sleep(after_s)
        rig.actor.receive_parameters(told(1, generation=1))
        await asyncio.sleep(30)
        await rig.step(30, rows=8)
        generations = column(rig.take(), "episodes", "episode_parameters")
        assert generations == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 9, "seed": 3}}


async def stretch(before, resumed_at=-1, reset=True):
    """What is emitted after checkpoint 0, with a lesson that began as the actor stood at it, and another one later."""
    async with Rig(UNIFORM, resets=True, resumed_at=resumed_at, generation=resumed_at + 1) as rig:
        if resumed_at < 0:
            for rows in before:
                await rig.step(60, rows=rows)
            rig.actor.request_checkpoint(0)
            await until_blocked()
            rig.actor.receive_parameters(told(UNIFORM, generation=1, reset=reset))
            await until_blocked()
        rig.take()
        await rig.step(60, rows=20)
        rig.actor.receive_parameters(told(UNIFORM, generation=2, reset=reset))
        await until_blocked()
        await rig.step(60, rows=20)
        items = rig.take()
        return [column(items, "episodes", name) for name in ("episode_lengths", "episode_parameters")] + [
            column(items, "rows", "log_probs")
        ]


@pytest.mark.parametrize("reset", [False, True])
async def test_a_resumed_deterministic_run_draws_the_same_parameters(reset):
    first = await stretch([8, 12], reset=reset)
    assert set(first[1]) == {1, 2}
    assert first == await stretch([30], reset=reset)
    assert first == await stretch([], resumed_at=0, reset=reset)
    assert first != await stretch([], resumed_at=1, reset=reset)
