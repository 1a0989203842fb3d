"""Measurements of rows: each on columns whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.pipeline.diagnosis.measurements import WINDOW, RowMeasurements
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

SPEC = BehaviorSpec("B", (ObservationSpec("o", (2,)),), ActionSpec(continuous_size=1))
LENGTH = 16


class Collected(dict):
    def add(self, _category, name, value, how="mean"):
        assert how == "last"
        self[name] = value

    def extend(self, category, name, values, how="histogram"):
        raise AssertionError


def batch(seen, actions, rewards, following, terminated=True, agents=4):
    """One episode of 16 steps after the other for each agent; following [n, 2] is what follows each row."""
    n = len(seen)
    ends = np.arange(LENGTH - 1, n, LENGTH)
    count = len(ends)
    return TrajectoryBatch(
        "B",
        0,
        {
            "obs_0": seen.astype(np.float32),
            "continuous_actions": actions.astype(np.float32),
            "rewards": rewards.astype(np.float32),
        },
        {
            "lengths": np.full(count, LENGTH, np.int32),
            "agent_ids": np.arange(count) % agents,
            "terminated": np.full(count, terminated),
            "truncated": np.full(count, not terminated),
            "next_obs_0": following[ends].astype(np.float32),
        },
        {
            "episode_returns": np.add.reduceat(rewards, np.arange(0, n, LENGTH)).astype(np.float32),
            "episode_lengths": np.full(count, LENGTH, np.int32),
        },
    )


def measured(batches, every=2048):
    measurements, statistics = RowMeasurements(SPEC, squashed=True, every=every), Collected()
    for one in batches:
        measurements.add(one)
    measurements.report(statistics, "B")
    return statistics


@pytest.fixture
def walk():
    """Observations that an action moves, with rewards for the action's sign, in 128 episodes."""
    rng = np.random.default_rng(0)
    n = 128 * LENGTH
    actions = rng.uniform(-1, 1, (n, 1))
    seen, following = np.zeros((n, 2)), np.zeros((n, 2))
    at = None
    for i in range(n):
        at = rng.uniform(-1, 1, 2) if i % LENGTH == 0 else at
        seen[i] = at
        at = at + np.array([actions[i, 0], 0.1])
        following[i] = at
    return seen, actions, actions[:, 0] * 2, following


def test_what_the_action_does_is_explained_by_it_alone(walk):
    values = measured([batch(*walk)])
    assert values["Data/Change by Observation and Action"] > 0.99
    assert values["Data/Change by Observation"] < 0.1
    assert values["Data/Effect of Action"] > 0.9
    assert values["Data/Reward by Observation and Action"] > 0.99
    assert values["Data/Reward by Previous Step"] < 0.1


@pytest.mark.parametrize(("strength", "least", "most"), [(0.0, -0.1, 0.01), (0.5, 0.03, 0.3)])
def test_a_small_effect_on_one_component_is_told_from_none(strength, least, most):
    rng = np.random.default_rng(3)
    actions, noise = rng.uniform(-1, 1, (128 * LENGTH, 1)), rng.normal(size=(128, LENGTH, 2))
    noise[..., :1] += strength * actions.reshape(128, LENGTH, 1)
    following = noise.cumsum(1)
    seen, following = (following - noise).reshape(-1, 2), following.reshape(-1, 2)
    values = measured([batch(seen, actions, rng.normal(size=len(seen)), following)])
    assert least < values["Data/Effect of Action"] < most


def test_a_reward_that_comes_a_step_late_is_explained_by_the_step_before(walk):
    seen, actions, rewards, following = walk
    values = measured([batch(seen, actions, np.roll(rewards, 1), following, agents=1)])
    assert values["Data/Reward by Previous Step"] > 0.99
    assert values["Data/Reward by Observation and Action"] < 0.2  # the position shows some of the action before


def test_hidden_velocity_shows_in_the_rows_before():
    n = 128 * LENGTH
    rng = np.random.default_rng(1)
    velocity = np.repeat(rng.normal(size=(n // LENGTH, 2)), LENGTH, 0)
    at = np.tile(np.arange(LENGTH)[:, None], (n // LENGTH, 2)) * velocity + np.repeat(
        rng.normal(size=(n // LENGTH, 2)) * 50, LENGTH, 0
    )
    values = measured([batch(at, rng.uniform(-1, 1, (n, 1)), np.zeros(n), at + velocity)])
    assert values["Data/Change by Observation and Action"] < 0.3
    assert values["Data/Change with History"] > 0.6


def test_scale_offset_and_constant_components(walk):
    seen, actions, rewards, following = walk
    seen = np.stack([1e5 + 100 * seen[:, 0], np.full(len(seen), 7.0)], 1)
    values = measured([batch(seen, actions, rewards, seen)])
    assert values["Data/Constant Observations"] == 0.5
    assert values["Data/Observation Offset"] > 500


def test_starts_that_repeat_and_episodes_that_go_on_where_the_last_one_ended(walk):
    seen, actions, rewards, following = walk
    n = len(seen)
    line = np.repeat(np.cumsum(np.ones(n))[:, None], 2, 1)
    values = measured([batch(line, actions, rewards, line + 1, agents=1)])
    assert values["Data/Starts at Last End"] == 1
    stale = line.copy()
    stale[1::LENGTH] = stale[::LENGTH]
    values = measured([batch(stale, actions, rewards, np.r_[stale[1:], stale[-1:] + 1], agents=1)])
    assert values["Data/Repeated Starts"] == 1
    assert values["Data/Repeated Observations"] < 0.01


def test_rewards_episodes_and_bounds(walk):
    seen, actions, rewards, following = walk
    few = np.where(np.arange(len(rewards)) % LENGTH == LENGTH - 1, 5.0, 0.0)
    values = measured([batch(seen, np.ones_like(actions), few, following)])
    assert values["Data/Rewarded Steps"] == pytest.approx(1 / LENGTH)
    assert values["Data/Actions at Bounds"] == 1
    assert values["Data/Median Episode Length"] == LENGTH
    assert values["Data/Terminated Episodes"] == 1
    assert values["Data/Return Deviation"] == 0
    assert values["Data/Reward at End"] > 1


def test_the_end_of_an_episode_shows_in_the_observation_that_tells_it(walk):
    seen, actions, rewards, following = walk
    clock = np.tile(np.arange(LENGTH, dtype=float), len(seen) // LENGTH)
    told = np.stack([clock, clock], 1)
    assert measured([batch(told, actions, rewards, told + 1)])["Data/End by Observation"] == 1
    rng = np.random.default_rng(2)
    noise = rng.normal(size=seen.shape)
    assert measured([batch(noise, actions, rewards, noise)])["Data/End by Observation"] < 0.7


def test_a_window_is_bounded_and_the_next_one_comes_later(walk):
    measurements, statistics = RowMeasurements(SPEC, squashed=True, every=10 * WINDOW), Collected()
    one = batch(*walk)
    for _ in range(4):
        measurements.add(one)
    measurements.report(statistics, "B")
    assert statistics
    statistics.clear()
    measurements.add(one)
    measurements.report(statistics, "B")
    assert not statistics


def test_rows_that_cannot_be_measured_are_named_once_and_end_nothing(walk, caplog):
    one = batch(*walk)
    odd = TrajectoryBatch("B", 0, one.rows, {name: of for name, of in one.trajectories.items() if name != "agent_ids"})
    assert not measured([odd, odd, one])
    (record,) = caplog.records
    assert "can't be measured" in record.getMessage()
    assert "agent_ids" in record.getMessage()


def test_too_few_rows_say_nothing(walk):
    few = [column[: 4 * LENGTH] for column in walk]
    assert not measured([batch(*few)])


def test_batches_are_copied(walk):
    measurements, statistics = RowMeasurements(SPEC, squashed=True, every=2048), Collected()
    one = batch(*walk)
    measurements.add(one)
    for column in (*one.rows.values(), *one.trajectories.values()):
        column[...] = 0
    measurements.report(statistics, "B")
    assert statistics["Data/Observation Scale"] > 0.1
