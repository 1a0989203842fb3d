"""The tasks that trainers are accepted by: their rules, and what perfect and thoughtless play return."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance.acceptance_envs import Corridor, CueMemory, PixelTask, Simple

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.protocol import EnvironmentGroup


def play(group, decide, ticks, seed=0):
    """Returns of the episodes that ended, in order, and all ticks' rows; checks what every group promises."""
    ((behavior, spec),) = group.behavior_specs.items()
    rows = group.reset(seed).steps[behavior]
    totals, returns, seen = np.zeros(group.num_envs), [], [rows]
    for _ in range(ticks):
        rows = group.step({behavior: decide(rows)}).steps[behavior]
        check(rows, spec, group.num_envs)
        ending, deciding = rows.agent_ids[: rows.ended], rows.agent_ids[rows.ended :]
        totals[ending] += rows.rewards[: rows.ended]
        returns += totals[ending].tolist()
        totals[ending] = 0.0
        totals[deciding] += rows.rewards[rows.ended :]
        seen.append(rows)
    return returns, seen


def check(rows, spec, n):
    assert rows.agent_ids[rows.ended :].tolist() == list(range(n))
    assert len(rows.terminated) == len(rows.truncated) == rows.ended
    assert (rows.terminated ^ rows.truncated).all()
    for observation, told in zip(rows.observations, spec.observations, strict=True):
        assert observation.shape == (len(rows.agent_ids), *told.shape)
        assert observation.dtype == told.dtype
    assert (rows.rewards[rows.ended :][rows.agent_ids[: rows.ended]] == 0).all(), "a reward in an episode's first row"
    restarted = rows.agent_ids[: rows.ended]
    assert (rows.episode_ids[: rows.ended] == rows.episode_ids[rows.ended :][restarted] - 1).all()


def at_random(group, seed=0):
    random, spec = np.random.default_rng(seed), next(iter(group.behavior_specs.values())).actions

    def decide(rows):
        drawn = random.uniform(-1, 1, (group.num_envs, spec.continuous_size)).astype(np.float32)
        branches = spec.discrete_branches
        return ActionBatch(drawn, random.integers(0, branches or 1, (group.num_envs, len(branches))).astype(np.int32))

    return decide


@pytest.mark.parametrize(
    "group",
    [
        Simple(
            3,
            "B",
            continuous=1,
            branches=2,
            step_size=1,
            vectors=2,
            visuals=1,
            visual_shape=(5, 5, 5),
            sets=1,
            goals=(0,),
        ),
        CueMemory(3, "B", delay=3),
        PixelTask(3, "B", size=20, steps=3),
        Corridor(3, "B", length=3, limit=5),
    ],
    ids=lambda group: type(group).__name__,
)
def test_every_task_is_an_environment_group_and_determined_by_its_seed(group):
    assert isinstance(group, EnvironmentGroup)
    first, rows = play(group, at_random(group), 100, seed=4)
    again, repeated = play(group, at_random(group), 100, seed=4)
    other, _ = play(group, at_random(group), 100, seed=5)

    assert len(first) > 10
    assert first == again
    assert all((a.observations[0] == b.observations[0]).all() for a, b in zip(rows, repeated, strict=True))
    assert type(group) is Corridor or first != other
    assert all((a.episode_ids < b.episode_ids).all() for a, b in zip(rows[:1], repeated[:1], strict=True))


# Simple.


def test_simple_played_perfectly_returns_a_little_more_than_one():
    group = Simple(4, "B", continuous=1, branches=1)

    returns, _ = play(group, lambda rows: group.solve(), 40)

    assert returns == pytest.approx([1.06 - 4 * 0.01] * len(returns))
    assert len(returns) >= 28


# The others.


def test_the_corridor_is_won_at_its_end():
    group = Corridor(2, "B", length=20, limit=40)

    returns, seen = play(group, lambda rows: group.solve(), 60)

    assert returns == [1.0] * 6
    assert seen[20].terminated.all()
    assert seen[1].rewards.tolist() == [0, 0]


def test_the_corridor_is_cut_at_the_limit_and_practically_never_won_by_chance():
    group = Corridor(100, "B")

    returns, seen = play(group, at_random(group), 1200)

    assert returns == [0.0] * 1000
    assert seen[120].truncated.all()
