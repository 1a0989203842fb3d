"""An actor whose policies lie elsewhere: commands come before answers, and nothing is decided by half."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from fakes import Cast, CountingGroup, EchoPolicy, check_trajectories, policy_update
from oracles import NearOracle
from virtual_time import until_blocked

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.actor.remote_policy import RemotePolicies
from headrace.stages.agent import AgentProcessor
from headrace.stages.loop import run_source
from headrace.stages.stage import StageContext

pytestmark = pytest.mark.virtual_time

FOREVER = Cast("Walker", agents=2, shortest=10**6, longest=10**6)


class Rig:
    """A running actor, and whom it asks."""

    def __init__(self, *casts, self_play=False, **options):
        self.requests = []
        self.sender = AgentManagerQueue("out", 1000)
        self.oracle = NearOracle(EchoPolicy)
        self.groups = []

        def make_group():
            self.groups.append(CountingGroup(casts, **{"delay_s": lambda: 1.0, **options}))
            return self.groups[-1]

        self.names = {cast.behavior_id.partition("?")[0] for cast in casts}
        self.mappings = PolicyMappings(RemotePolicies(lambda spec: (0, 0)), lambda name: self_play)
        self.actor = Actor(
            EnvironmentStage(make_group, self.mappings, oracle=self.oracle),
            AgentProcessor(dict.fromkeys(self.names, 1000), source=3, min_rows=1),
            CreditGate(lambda *request: self.requests.append(request)),
            ActorPort(self.oracle.decider.add_behavior),
        )

    async def __aenter__(self):
        self.task = asyncio.create_task(run_source(self.actor, self.sender, StageContext("actor", seed=5)))
        await until_blocked()
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def ticks(self):
        return self.groups[-1].tick

    def publish(self, update, tell=True):
        """Send a policy to whom is asked, and word of it to the actor."""
        self.oracle.decider.load(update)
        if tell:
            self.actor.receive_policy(replace(update, weights=np.empty(0, np.float32), layout=()))

    def grant(self, versions=None, **caps):
        self.actor.receive_grant(self.requests[-1][0], caps, versions or dict.fromkeys(caps, 0))

    def take(self):
        items = [self.sender.get_nowait() for _ in range(self.sender.qsize())]
        for item in items:
            if isinstance(item, TrajectoryBatch):
                check_trajectories(item)
        return items


def versions(items):
    return [v for item in items if isinstance(item, TrajectoryBatch) for v in item.rows["acted_version"].tolist()]


async def walking():
    """An actor that stands still with a policy, decided once, and waits for its first grant."""
    rig = await Rig(FOREVER).__aenter__()
    rig.publish(policy_update("Walker", 0))
    await until_blocked()
    return rig


async def test_an_actor_asks_once_per_tick_and_steps_with_the_answers():
    rig = await walking()
    rig.grant(Walker=6)
    await asyncio.sleep(100)
    assert rig.ticks == 3
    assert versions(rig.take()) == [0] * 6
    assert len(rig.oracle.asked) == 4, "one for each step, and the one that it stands still with"
    await rig.__aexit__()


async def test_an_actor_asks_again_only_if_a_newer_policy_has_arrived():
    rig = await walking()
    rig.grant(Walker=2)
    await asyncio.sleep(10)
    asked = len(rig.oracle.asked)
    rig.grant(Walker=4)
    await asyncio.sleep(10)
    assert len(rig.oracle.asked) == asked + 1
    rig.publish(policy_update("Walker", 1))
    rig.grant({"Walker": 1}, Walker=6)
    await asyncio.sleep(10)
    assert len(rig.oracle.asked) == asked + 3
    assert versions(rig.take()) == [0, 0, 0, 0, 1, 1]
    await rig.__aexit__()


async def test_answers_carry_the_version_of_the_policy_that_gave_them():
    rig = await walking()
    rig.grant(Walker=100)
    await asyncio.sleep(1.5)
    rig.publish(policy_update("Walker", 4), tell=False)
    await asyncio.sleep(2)
    steps, version = rig.actor.acting["Walker"]
    assert (steps, version) == (4, 4), "two agents had made two steps each"
    rig.actor.request_stop()
    await rig.task
    assert sorted(versions(rig.take())) == [0, 0, 0, 0, 4, 4]
    await rig.__aexit__()


@pytest.mark.parametrize("deciding", [True, False], ids=["deciding", "deciding again"])
async def test_a_stop_comes_before_an_answer(deciding):
    rig = await walking()
    rig.grant(Walker=6 if deciding else 2)
    if not deciding:
        await asyncio.sleep(10)
        rig.oracle.holds = True
        rig.publish(policy_update("Walker", 1))
        rig.grant({"Walker": 1}, Walker=6)
    rig.oracle.holds = True
    await asyncio.sleep(10)
    ticks = rig.ticks
    rig.actor.request_stop()
    await rig.task
    assert rig.ticks == ticks == 1
    assert versions(rig.take()) == ([] if deciding else [0, 0]), "a step is known once the next one is decided"


@pytest.mark.lengthy
async def test_a_checkpoint_comes_before_an_answer_and_the_question_is_repeated():
    rig = await walking()
    rig.grant(Walker=6)
    rig.oracle.holds = True
    await asyncio.sleep(10)
    asked = rig.oracle.asked[-1]
    rig.actor.request_checkpoint(4)
    await until_blocked()
    assert [item.number for item in rig.take() if isinstance(item, Barrier)] == [4]
    again = rig.oracle.asked[-1]
    assert again is not asked
    assert again[0].columns["obs_0"].tolist() == asked[0].columns["obs_0"].tolist()
    rig.oracle.holds = False
    rig.oracle.release()
    await asyncio.sleep(100)
    assert rig.ticks == 3
    await rig.__aexit__()


async def test_an_actor_without_answers_waits_and_follows_commands():
    rig = await walking()
    rig.grant(Walker=6)
    rig.oracle.holds = True
    await asyncio.sleep(10)
    rig.oracle.lose()
    await asyncio.sleep(10)
    assert rig.actor.progress() is None
    rig.actor.request_checkpoint(1)
    rig.actor.request_stop()
    await rig.task
    assert [item.number for item in rig.take() if isinstance(item, Barrier)] == [1]


async def test_an_actor_that_waits_for_an_answer_does_not_count_as_hanging():
    rig = await walking()
    rig.oracle.holds = True
    rig.grant(Walker=6)
    await asyncio.sleep(10)
    assert rig.actor.progress() is None
    rig.oracle.holds = False
    rig.oracle.release()
    await asyncio.sleep(0.5)
    assert rig.actor.progress() is not None
    await rig.__aexit__()
