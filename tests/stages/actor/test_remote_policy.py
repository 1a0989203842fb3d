"""Decisions that are asked for elsewhere: the same steps come of them as of policies that lie here."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import AGENT, Cast, CountingGroup, EchoPolicy, policy_update
from oracles import NearOracle

from headrace.queues.messages import Assignment, PolicyUpdate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.actor.remote_policy import NoDecisionError, RemotePolicies
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.stage import StageContext

HOME, AWAY = "Ball?team=0", "Ball?team=1"
MEMORY = 3


class Remembering(EchoPolicy):
    """Remembers how often its agents have decided in this episode."""

    memory_size, previous_action_size = MEMORY, 1

    def act(self, observations, masks, random, deterministic=False, recall=None):
        assert recall is not None
        decided = super().act(observations, masks, random, deterministic)
        columns = {**decided.columns, "memories": recall.memories}
        return Decision(decided.actions, columns, Recall(recall.memories + 1, recall.previous_actions))


async def pair(*casts, make=EchoPolicy, self_play=False, **options):
    """Two stages with the same environments: policies lie in one, and the other one asks for them."""
    stages = []
    sizes = make.memory_size, make.previous_action_size
    oracle = NearOracle(make)
    asked = RemotePolicies(lambda spec: sizes)
    for maker, whom in ((make, None), (asked, oracle)):
        mappings = PolicyMappings(maker, lambda name: self_play)
        stage = EnvironmentStage(
            lambda: CountingGroup(casts, **options), mappings, 1000, deterministic=lambda name: True, oracle=whom
        )
        stage.start(StageContext("environment"))
        await stage.reset(1)
        stages.append(stage)
    for spec in stages[1].specs.values():
        oracle.decider.add_behavior(spec)
    return *stages, oracle


def send(near, asking, oracle, update):
    near.update(update)
    oracle.decider.load(update)
    asking.update(replace(update, weights=np.empty(0, np.float32), layout=()))


async def tick(near, asking):
    """One tick of both; the steps of the second, which are those of the first."""
    await near.consult()
    await asking.consult()
    steps = near.decide(), asking.decide()
    assert len(steps[0]) == len(steps[1])
    for local, remote in zip(*steps, strict=True):
        assert_same(local, remote)
    for stage in (near, asking):
        await stage.advance()
    return steps[1]


def assert_same(local, remote):
    for name in ("behavior_id", "ended", "tick"):
        assert getattr(local, name) == getattr(remote, name)
    for name in ("agent_ids", "rewards", "policy_versions", "generations", "learning", "opponents"):
        assert getattr(local, name).tolist() == getattr(remote, name).tolist(), name
    assert local.decisions.keys() == remote.decisions.keys()
    for name, column in local.decisions.items():
        assert column.tolist() == remote.decisions[name].tolist(), name


@pytest.mark.parametrize("make", [EchoPolicy, Remembering], ids=["feed-forward", "memory"])
async def test_remote_decisions_give_the_same_steps(make):
    casts = Cast("Walker", agents=3, gap=2), Cast("Swimmer", agents=2, period=3)
    near, asking, oracle = await pair(*casts, make=make, num_envs=2)
    for cast in casts:
        send(near, asking, oracle, policy_update(cast.behavior_id, 0))
    for number in range(40):
        if number == 20:
            send(near, asking, oracle, policy_update("Walker", 1))
        await tick(near, asking)
    assert all(len(questions) <= 2 for questions in oracle.asked)


@pytest.mark.lengthy
async def test_each_game_keeps_its_policies_and_old_ones_are_dropped():
    near, asking, oracle = await pair(Cast(HOME), Cast(AWAY), self_play=True, num_envs=3, game_length=6)
    learning, several = 0, 0
    for number in range(1, 40):
        if number % 20 == 0:
            learning = 1 - learning
        mine, theirs = (HOME, AWAY) if learning == 0 else (AWAY, HOME)
        for update in (policy_update(mine, number), policy_update(theirs, number, snapshot=number)):
            send(near, asking, oracle, update)
        named = {mine: (-1, number), theirs: (number, number)}
        for stage in (near, asking):
            stage.mappings.assign(Assignment(number, learning, named, opponent=number))
        for _ in range(3):
            several += any(len(questions) > 2 for questions in oracle.asked[-1:])
            await tick(near, asking)
        assert all(oracle.decider.kept(behavior_id) <= 8 for behavior_id in (HOME, AWAY))
    assert several


async def test_steps_carry_the_version_that_decided():
    near, asking, oracle = await pair(Cast("Walker"))
    send(near, asking, oracle, policy_update("Walker", 0))
    oracle.decider.load(policy_update("Walker", 5))
    await asking.consult()
    (step,) = asking.decide()
    assert set(step.policy_versions.tolist()) == set(step.decisions["acted_version"].tolist()) == {5}
    assert asking.mappings.newest_versions(["Walker"]) == {"Walker": 5}


async def test_a_lost_question_is_sent_again():
    _, asking, oracle = await pair(Cast("Walker", agents=2))
    oracle.decider.load(policy_update("Walker", 0))
    asking.update(PolicyUpdate("Walker", 0, np.empty(0, np.float32), (), 0))
    oracle.lost = True
    with pytest.raises(NoDecisionError):
        await asking.consult()
    oracle.lost = False
    await asking.consult()
    (step,) = asking.decide()
    assert step.observations[0][:, AGENT].tolist() == oracle.asked[-1][0].columns["obs_0"][:, AGENT].tolist()
