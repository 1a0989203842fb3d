"""Demonstrations as batches: the agent processor's columns, all episodes in every round."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from imitation_spec import SPEC
from trainer_samples import IMAGE

from headrace.stages.trainer.imitation.loading import read_stream
from headrace.stages.trainer.imitation.source import demonstration_batches

WIDE = replace(SPEC, observations=(*SPEC.observations, IMAGE), actions=replace(SPEC.actions, masked=True))


@pytest.fixture
def demonstrations(record, expert):
    """Three episodes of 4, 6 and 3 steps, the second in two trajectories; the last one terminated."""
    batch = expert(
        [4, 1, 5, 3],
        WIDE,
        agent_ids=[3, 3, 3, 3],
        episode_ids=[0, 1, 1, 2],
        terminated=[False, False, False, True],
        truncated=[True, False, True, False],
    )
    return read_stream(record([batch], spec=WIDE), "Test")


def batches(demonstrations, count, rows_per_batch=100, seed=0, seen=0):
    return list(islice(demonstration_batches(demonstrations, rows_per_batch, seed, seen), count))


def test_every_round_has_all_episodes_each_time_in_another_order(demonstrations):
    orders = [batch.trajectories["episode_ids"].tolist() for batch in batches(demonstrations, 20)]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert orders == [batch.trajectories["episode_ids"].tolist() for batch in batches(demonstrations, 20)]


def test_a_resumed_source_continues_with_the_same_order(demonstrations):
    whole = batches(demonstrations, 20, rows_per_batch=5)
    seen = 0
    for index, batch in enumerate(whole):
        rest = batches(demonstrations, 20 - index, rows_per_batch=5, seen=seen)
        assert [each.trajectories["episode_ids"].tolist() for each in rest] == [
            each.trajectories["episode_ids"].tolist() for each in whole[index:]
        ]
        np.testing.assert_array_equal(rest[0].rows["obs_0"], batch.rows["obs_0"])
        seen += batch.num_rows


def test_an_episode_is_the_same_whenever_it_comes_by(demonstrations):
    starts, lengths = demonstrations.episode_starts, demonstrations.episode_lengths
    for batch in batches(demonstrations, 3):
        at = 0
        for episode in batch.trajectories["episode_ids"]:
            rows = slice(starts[episode], starts[episode] + lengths[episode])
            found = slice(at, at + lengths[episode])
            np.testing.assert_array_equal(batch.rows["obs_0"][found], demonstrations.observations[0][rows])
            np.testing.assert_array_equal(batch.rows["obs_1"][found], demonstrations.observations[1][rows])
            np.testing.assert_allclose(
                batch.rows["continuous_actions"][found], 3 * demonstrations.continuous[rows], rtol=1e-6
            )
            np.testing.assert_array_equal(batch.rows["discrete_actions"][found], demonstrations.choices[rows])
            np.testing.assert_array_equal(batch.rows["action_masks"][found], demonstrations.masks[rows])
            at += lengths[episode]


def test_whole_episodes_share_a_batch_and_longer_ones_are_cut(demonstrations):
    many = batches(demonstrations, 30, rows_per_batch=5)
    assert all(batch.num_rows <= 5 for batch in many)
    pieces = {}
    for batch in many:
        for k, episode in enumerate(batch.trajectories["episode_ids"].tolist()):
            pieces.setdefault(episode, []).append(int(batch.lengths[k]))
    assert set(pieces[0]) == {4}
    assert set(pieces[2]) == {3}
    assert pieces[1][:4] == [5, 1, 5, 1]


def test_a_cut_tells_what_came_before_and_what_comes_after(demonstrations):
    vectors, finals = demonstrations.observations[0], demonstrations.final_observations[0]
    seen = {}
    for batch in batches(demonstrations, 30, rows_per_batch=5):
        for k, episode in enumerate(batch.trajectories["episode_ids"].tolist()):
            seen[episode, int(batch.lengths[k])] = {name: column[k] for name, column in batch.trajectories.items()}
    first, second = seen[1, 5], seen[1, 1]  # of the second episode, rows 4 to 9
    np.testing.assert_array_equal(first["next_obs_0"], vectors[9])
    np.testing.assert_array_equal(first["next_obs_1"], demonstrations.observations[1][9])
    assert not first["previous_continuous_actions"].any()
    assert not (first["terminated"] or first["truncated"])
    np.testing.assert_array_equal(second["next_obs_0"], finals[2])
    np.testing.assert_allclose(second["previous_continuous_actions"], 3 * demonstrations.continuous[8], rtol=1e-6)
    np.testing.assert_array_equal(second["previous_discrete_actions"], demonstrations.choices[8])
    assert (second["terminated"], second["truncated"]) == (False, True)
    assert (seen[2, 3]["terminated"], seen[2, 3]["truncated"]) == (True, False)
    np.testing.assert_array_equal(seen[0, 4]["next_obs_0"], finals[0])
