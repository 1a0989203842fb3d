"""From what environments tell to POCA's targets: over random groups whose members leave early, against slow loops."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from group_samples import SPEC, Adding
from hypothesis import given
from hypothesis import strategies as st
from opened_trainers import opened_trainer_of

from headrace.queues.messages import StepBatch
from headrace.stages.agent import AgentProcessor

GAMMA, LAMBDA, HORIZON = 0.9, 0.7, 3


@dataclass
class Member:
    """An agent of a group, from tick 0 to its end."""

    agent: int
    group: int
    end: int
    terminated: bool
    seen: list[float] = field(default_factory=list)
    """At ticks 0 … end."""
    acted: list[float] = field(default_factory=list)
    """At ticks 0 … end - 1."""
    rewards: list[float] = field(default_factory=list)
    """For these."""


Ends = list[list[tuple[int, bool]]]
"""Of each group's members: when, and whether they terminated."""


def story(ends: Ends, seed: int) -> tuple[list[Member], dict[int, list[float]]]:
    """All members, and the rewards of groups for each tick."""
    random = np.random.default_rng(seed)
    members: list[Member] = []
    for group, of_group in enumerate(ends, 1):
        for end, terminated in of_group:
            member = Member(len(members), group, end, terminated)
            member.seen = random.normal(size=end + 1).astype(np.float32).tolist()
            member.acted = random.uniform(-1, 1, end).astype(np.float32).tolist()
            member.rewards = random.normal(size=end).astype(np.float32).tolist()
            members.append(member)
    shared = {group: random.normal(size=9).astype(np.float32).tolist() for group in range(1, len(ends) + 1)}
    return members, shared


def tick(t: int, members: list[Member], shared: dict[int, list[float]]) -> StepBatch:
    """What an actor tells of a tick: those who end first."""
    ending, going_on = ([m for m in members if m.end == t], [m for m in members if m.end > t])
    told = ending + going_on
    return StepBatch(
        behavior_id="Test",
        agent_ids=np.array([m.agent for m in told], np.int64),
        env_ids=np.zeros(len(told), np.int32),
        episode_ids=np.zeros(len(told), np.int64),
        observations=(np.array([[m.seen[t]] for m in told], np.float32).reshape(-1, 1),),
        rewards=np.array([m.rewards[t - 1] if t else 0 for m in told], np.float32),
        ended=len(ending),
        terminated=np.array([m.terminated for m in ending], np.bool_),
        truncated=np.array([not m.terminated for m in ending], np.bool_),
        decisions={
            "continuous_actions": 3 * np.array([[m.acted[t]] for m in going_on], np.float32).reshape(-1, 1),
            "log_probs": np.zeros((len(going_on), 1), np.float32),
        },
        policy_versions=np.zeros(len(going_on), np.int64),
        generations=np.zeros(len(going_on), np.int32),
        learning=np.ones(len(going_on), np.bool_),
        opponents=np.full(len(going_on), -1, np.int32),
        tick=t,
        group_ids=np.array([m.group for m in told], np.int64),
        group_rewards=np.array([shared[m.group][t - 1] if t else 0 for m in told], np.float32),
    )


def expected(member: Member, mates: list[Member], shared: list[float]) -> tuple[list[float], list[float]]:
    """The member's λ-returns and baselines, step by step; the critic adds up what is seen, and ten times what is done."""
    everybody = [member, *mates]

    def value(t: int) -> float:
        return sum(m.seen[t] for m in everybody if m.end > t)

    def value_of_those_left(t: int) -> float:
        return sum(m.seen[t] for m in everybody if m.end > t or (m.end == t and not m.terminated))

    cuts = [0]
    for t in range(1, member.end + 1):
        if any(m.end == t for m in everybody) or t - cuts[-1] == HORIZON:
            cuts.append(t)
    returns, after = [], 0.0
    for t in reversed(range(member.end)):
        reward = shared[t] + sum(m.rewards[t] for m in everybody if m.end > t)
        if t + 1 in cuts:
            after = reward + GAMMA * value_of_those_left(t + 1)
        else:
            after = reward + GAMMA * ((1 - LAMBDA) * value(t + 1) + LAMBDA * after)
        returns.insert(0, after)
    baselines = [
        member.seen[t] + sum(m.seen[t] + 10 * m.acted[t] for m in mates if m.end > t) for t in range(member.end)
    ]
    return returns, baselines


ENDS = st.lists(
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=3),  # a group's members
    min_size=1,
    max_size=3,
)


@pytest.mark.lengthy
@given(ENDS, st.integers(0, 2**16))
def test_targets_are_those_of_loops_over_what_happened(ends, seed):
    members, shared = story(ends, seed)
    processor = AgentProcessor({"Test": HORIZON})
    batches = [batch for t in range(9) for batch in processor.process(tick(t, members, shared))]
    trainer = opened_trainer_of(
        "poca",
        SPEC,
        hyperparameters={"lambd": LAMBDA, "buffer_size": 3 * 3 * 8},
        reward_signals={"extrinsic": {"gamma": GAMMA}},
    )
    for batch in batches:
        trainer.add(batch)
    trainer.critic = Adding()
    prepared, count = trainer.prepare(), len(trainer.buffer)
    ((minibatch,),) = prepared.rollout.epochs(1, count, np.random.default_rng(0))
    returns = minibatch.returns[minibatch.rows.argsort(), 0].tolist()
    baselines = prepared.estimates["Baseline Estimate"][:, 0].tolist()
    agents = np.concatenate([batch.trajectories["agent_ids"].repeat(batch.lengths) for batch in batches]).tolist()
    ticks = np.concatenate([batch.rows["ticks"] for batch in batches]).tolist()
    found = {(agent, t): pair for agent, t, *pair in zip(agents, ticks, returns, baselines, strict=True)}
    assert len(found) == count == sum(member.end for member in members)
    for member in members:
        mates = [m for m in members if m.group == member.group and m is not member]
        for t, pair in enumerate(zip(*expected(member, mates, shared[member.group]), strict=True)):
            assert found[member.agent, t] == pytest.approx(list(pair), abs=1e-4), (member.agent, t)
