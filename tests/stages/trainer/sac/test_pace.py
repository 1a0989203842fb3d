"""Updates that are due, in rounds: as many as a loop over steps makes, however these come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from trainer_samples import VECTOR, context_of

from headrace.config import SACHyperparameters
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.trainer.replay.pace import PaceSettings, UpdatePace

SPEC = BehaviorSpec("Test", (VECTOR,), ActionSpec(2))


def pace_of(**hyperparameters):
    return UpdatePace(context_of("sac", SPEC), SACHyperparameters.model_validate(hyperparameters))


def pieces(over, cut):
    """One agent's steps as batches of trajectories, cut after so many steps and where an episode is over."""
    ends = sorted({*(np.flatnonzero(over) + 1).tolist(), *range(cut, len(over), cut), len(over)})
    for begin, end in zip([0, *ends], ends, strict=False):
        columns = {"terminated": np.array([over[end - 1]]), "truncated": np.array([False])}
        lengths = np.array([end - begin], np.int32)
        yield TrajectoryBatch("Test", 0, {"rewards": np.zeros(end - begin)}, {"lengths": lengths, **columns}), end


def made(pace, batches):
    """Make the updates that are due; returns their number so far after each batch."""
    found, total = [], 0
    for batch, step in batches:
        pace.add(batch, step)
        due = pace.updates_due(pace.of_policy)
        while pace.is_due(pace.of_policy):
            pace.of_policy.count()
            due, total = due - 1, total + 1
        assert due == 0
        found.append(total)
    return found


def by_steps(over, freq, by_episodes, updates, first):
    """Updates after each step, as Stable-Baselines3 collects and trains in turn; -1: as many as collected."""
    found, total, collected, episodes = [], 0, 0, 0
    for step, end in enumerate(over, 1):
        collected, episodes = collected + 1, episodes + end
        if (episodes if by_episodes else collected) == freq:
            total += (updates if updates > 0 else collected) if step > first else 0
            collected = episodes = 0
        found.append(total)
    return found


@pytest.mark.lengthy
@examples(20)
@given(
    seed=st.integers(0, 10**6),
    freq=st.sampled_from([1, 2, 4, 7, 32]),
    by_episodes=st.booleans(),
    updates=st.sampled_from([-1, 1, 8, 10]),
    first=st.sampled_from([0, 1, 20, 33]),
    cut=st.integers(1, 40),
)
def test_a_round_has_its_updates_when_it_is_over(seed, freq, by_episodes, updates, first, cut):
    over = np.random.default_rng(seed).random(70) < 0.15
    pace = pace_of(
        train_freq=freq,
        gradient_steps=None if updates < 0 else updates,
        update_at="episode_end" if by_episodes else "step",
        buffer_init_steps=first,
    )
    batches = list(pieces(over, cut))
    expected = by_steps(over.tolist(), freq, by_episodes, updates, first)
    assert made(pace, batches) == [expected[step - 1] for _, step in batches]


@pytest.mark.parametrize("updates", [None, 3])
@pytest.mark.parametrize("by", ["step", "episode_end"])
def test_a_resumed_run_continues_its_round(updates, by):
    keys = {"train_freq": 3, "gradient_steps": updates, "update_at": by, "buffer_init_steps": 10}
    batches = list(pieces(np.random.default_rng(1).random(200) < 0.2, 5))
    whole, first, resumed = (pace_of(**keys) for _ in range(3))
    expected, half = made(whole, batches), len(batches) // 2
    before = made(first, batches[:half])[-1]
    resumed.load_state_dict(first.state_dict(), batches[half - 1][1])
    assert [before + each for each in made(resumed, batches[half:])] == expected[half:]


def test_signals_that_learn_keep_their_ratio_at_the_ends_of_rounds():
    pace = pace_of(train_freq=10, gradient_steps=1, reward_signal_steps_per_update=2)
    for batch, step in pieces(np.zeros(29, np.bool_), 1):
        pace.add(batch, step)
    assert (pace.updates_due(pace.of_policy), pace.updates_due(pace.of_signals)) == (2, 10)


@pytest.mark.parametrize(
    "given",
    [{}, {"steps_per_update": 3.0, "buffer_init_steps": 5}, {"train_freq": 8, "gradient_steps": 3}],
    ids=["defaults", "steps", "rounds"],
)
def test_a_trainer_without_the_hyperparameters_of_sac_has_the_same_pace(given):
    batches = list(pieces([False, False, True] * 12, 4))
    settings = PaceSettings(**given)
    assert made(UpdatePace(context_of("sac", SPEC), settings), batches) == made(pace_of(**given), batches)
