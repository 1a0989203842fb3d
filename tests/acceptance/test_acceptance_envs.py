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


def always(*choices):
    return lambda rows: ActionBatch(
        np.zeros((len(rows.agent_ids) - rows.ended, 0), np.float32),
        np.tile(np.array(choices, np.int32), (len(rows.agent_ids) - rows.ended, 1)),
    )


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


@pytest.mark.parametrize(
    ("actions", "step_size", "best"),
    [
        ({"continuous": 1}, 0.2, 1.06 - 4 * 0.01),
        ({"branches": 1}, 0.2, 1.06 - 4 * 0.01),
        ({"continuous": 2, "branches": 1}, 0.8, 1.06 - 0.01),
        ({"branches": 1}, 0.5, 1.06 - 0.01),
    ],
)
def test_simple_played_perfectly_returns_a_little_more_than_one(actions, step_size, best):
    group = Simple(4, "B", step_size=step_size, **actions)

    returns, _ = play(group, lambda rows: group.solve(), 40)

    assert returns == pytest.approx([best] * len(returns))
    assert len(returns) >= 28


def test_simple_costs_a_hundredth_a_step_and_punishes_the_wrong_end():
    group = Simple(1, "B", branches=1)

    def away(rows):
        return ActionBatch(np.zeros((1, 0), np.float32), 1 - group.solve().discrete)

    returns, seen = play(group, away, 5)

    assert [rows.rewards[0] for rows in seen[1:]] == pytest.approx([-0.01] * 4 + [-1.06])
    assert returns == pytest.approx([-1.1])


def test_simple_ends_when_all_coordinates_are_at_an_end_and_averages_them():
    group = Simple(1, "B", branches=2, step_size=1.0)
    group.reset(0)
    goal = group.solve().discrete[0, 0]

    rows = group.step({"B": ActionBatch(np.zeros((1, 0), np.float32), np.array([[goal, 1 - goal]], np.int32))}).steps[
        "B"
    ]

    assert rows.ended == 1
    assert rows.rewards[0] == 0  # one at the goal, one at the other end

    half = Simple(1, "B", continuous=1, branches=1, step_size=1.0)
    half.reset(0)
    action = ActionBatch(np.array([[0.5]], np.float32), np.array([[1]], np.int32))
    assert half.step({"B": action}).steps["B"].ended == 0


def test_simple_clips_moves_to_the_step_size():
    group = Simple(1, "B", continuous=1, step_size=0.25)
    returns, _ = play(group, lambda rows: group.solve(), 4)

    assert len(returns) == 1


def test_simple_shows_the_goal_everywhere_and_nothing_else():
    group = Simple(8, "B", branches=1, vectors=2, visuals=1, sets=1, goals=(0, 2))
    rows = group.reset(3).steps["B"]
    specs = group.behavior_specs["B"].observations

    goals = group.solve().discrete[:, 0] * 2.0 - 1.0
    assert sorted(set(goals)) == [-1, 1]
    for observation in rows.observations:
        assert (observation.reshape(8, -1) == goals[:, None]).all()
    assert [(spec.shape, spec.kind, spec.goal) for spec in specs] == [
        ((1,), "vector", True),
        ((1,), "vector", False),
        ((3, 20, 20), "image", True),
        ((10, 5), "set", False),
    ]


def test_with_memory_the_goal_is_seen_in_the_first_three_observations_only():
    group = Simple(1, "B", branches=1, memory=True)

    _, seen = play(group, lambda rows: group.solve(), 5)

    shown = [float(rows.observations[0][0, 0]) for rows in seen[:5]]
    assert np.abs(shown).tolist() == [1, 1, 1, 0, 0]
    assert abs(seen[5].observations[0][-1, 0]) == 1  # the next episode has begun


# The others.


@pytest.mark.parametrize("cues", [2, 4])
def test_a_cue_is_answered_at_the_end_and_guessing_is_worth_nothing(cues):
    group = CueMemory(50, "B", cues=cues, delay=10)
    remembered = {}

    def answer(rows):
        observation = rows.observations[0][rows.ended :]
        for agent in np.flatnonzero(observation[:, :-1].any(axis=1)).tolist():
            remembered[agent] = observation[agent, :-1].argmax()
        return ActionBatch(np.zeros((50, 0), np.float32), np.array([[remembered[i]] for i in range(50)], np.int32))

    solved, seen = play(group, answer, 55)
    guessed, _ = play(group, at_random(group), 550)

    assert solved == [1.0] * 250
    assert np.mean(guessed) == pytest.approx(0.0, abs=0.05)
    assert min(guessed) == pytest.approx(-1 / (cues - 1))
    # Nothing of the cue is to be seen after the first step, and the flag says when to answer.
    assert not any(rows.observations[0][:, :-1].any() for rows in seen[1:11])
    assert [bool(rows.observations[0][:, -1].all()) for rows in seen[:11]] == [False] * 10 + [True]


@pytest.mark.lengthy
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_bright_square_is_where_the_answer_is(channels_last):
    group = PixelTask(20, "B", size=36, steps=5, channels_last=channels_last)

    def look(rows):
        pictures = rows.observations[0][rows.ended :]
        bright = (pictures if channels_last else np.moveaxis(pictures, 1, -1)).min(axis=-1) >= 128
        assert bright.any(axis=(1, 2)).all()
        y, x = (
            (bright.any(axis=axis) * np.arange(36)).sum(axis=1) / bright.any(axis=axis).sum(axis=1) - 17.5
            for axis in (2, 1)
        )
        sideways = np.abs(x) > np.abs(y)
        answer = np.where(sideways, np.where(x < 0, 0, 1), np.where(y < 0, 2, 3))
        return ActionBatch(np.zeros((20, 0), np.float32), answer[:, None].astype(np.int32))

    solved, _ = play(group, look, 20)
    guessed, _ = play(group, at_random(group), 100)

    assert solved == pytest.approx([1.0] * 80)
    assert np.mean(guessed) == pytest.approx(0.25, abs=0.03)
    assert group.behavior_specs["B"].observations[0].channels_last is channels_last


@pytest.mark.parametrize("options", [{}, {"winding": False}, {"noop": True}, {"one_hot": False}])
def test_the_corridor_is_won_at_its_end(options):
    group = Corridor(2, "B", length=20, limit=40, **options)

    returns, seen = play(group, lambda rows: group.solve(), 60)

    assert returns == [1.0] * 6
    assert seen[20].terminated.all()
    assert seen[1].rewards.tolist() == [0, 0]


def test_the_corridor_is_cut_at_the_limit_and_practically_never_won_by_chance():
    group = Corridor(100, "B")

    returns, seen = play(group, at_random(group), 1200)

    assert returns == [0.0] * 1000
    assert seen[120].truncated.all()


@pytest.mark.parametrize("choice", [0, 1])
def test_always_doing_the_same_leads_nowhere_in_a_winding_corridor(choice):
    assert not any(play(Corridor(1, "B"), always(choice), 200)[0])


def test_always_doing_the_same_leads_on_in_a_straight_corridor():
    assert all(play(Corridor(1, "B", winding=False), always(1), 200)[0])
