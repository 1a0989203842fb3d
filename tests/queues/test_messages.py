from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_conformance import assert_equal_batches

from headrace.queues.errors import ShapeError
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch

lengths_of_batches = st.lists(st.integers(1, 6), max_size=8)


def batch_of(lengths: list[int]) -> TrajectoryBatch:
    """Rows and trajectories are numbered in `rewards` and `agent_ids`."""
    n, k = sum(lengths), len(lengths)
    return TrajectoryBatch(
        "Ball?team=1",
        source=4,
        rows={"obs_0": np.arange(n * 2, dtype=np.float32).reshape(n, 2), "rewards": np.arange(n, dtype=np.float32)},
        trajectories={
            "lengths": np.array(lengths, np.int32),
            "agent_ids": np.arange(k),
            "terminated": np.arange(k) % 2 == 0,
            "truncated": np.arange(k) % 2 == 1,
            "credits": np.array(lengths, np.int32),
        },
        episodes={"episode_returns": np.array([1, 2], np.float32)},
        games={"game_outcome": np.array([0.5], np.float32)},
    )


@pytest.mark.parametrize("axis", ["rows", "trajectories", "episodes", "games"])
def test_columns_of_one_axis_that_differ_in_length_are_refused(axis: str):
    batch = batch_of([2, 1])
    columns = {name: getattr(batch, name) for name in ("rows", "trajectories", "episodes", "games")}
    columns[axis] = dict(columns[axis]) | {"short": np.zeros(0)}
    with pytest.raises(ShapeError, match=f"{axis}: all columns need the same length, got .*'short': 0"):
        TrajectoryBatch("Ball", 0, **columns)


def test_lengths_that_do_not_add_up_to_the_rows_are_refused():
    with pytest.raises(ShapeError, match="Ball: trajectory lengths add up to 3, but the batch has 4 rows"):
        TrajectoryBatch("Ball", 0, {"rewards": np.zeros(4)}, {"lengths": np.array([1, 2])})


@given(lengths=lengths_of_batches, data=st.data())
def test_the_two_halves_of_a_split_are_the_batch(lengths: list[int], data: st.DataObject):
    first = data.draw(st.integers(0, len(lengths)))
    batch = batch_of(lengths)
    head, tail = batch.split(first)
    assert (head.num_trajectories, tail.num_trajectories) == (first, len(lengths) - first)
    for axis in ("rows", "trajectories"):
        for name, column in getattr(batch, axis).items():
            halves = [getattr(half, axis)[name] for half in (head, tail)]
            np.testing.assert_array_equal(np.concatenate(halves), column)
            assert all(np.shares_memory(half, column) for half in halves if half.size)
    assert (head.episodes, head.games) == ({}, {})
    assert tail.episodes["episode_returns"].tolist() == [1, 2]
    assert tail.games["game_outcome"].tolist() == [0.5]
    assert head.credits + tail.credits == batch.credits


@given(lengths=lengths_of_batches, data=st.data())
def test_select_keeps_the_rows_of_the_trajectories_that_it_keeps(lengths: list[int], data: st.DataObject):
    keep = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    batch = batch_of(lengths)
    selected = batch.select(np.array(keep, np.bool_))
    rows, expected_rows, expected_agents = iter(range(sum(lengths))), [], []
    for agent, (length, kept) in enumerate(zip(lengths, keep, strict=True)):
        of_agent = [next(rows) for _ in range(length)]
        expected_rows += of_agent if kept else []
        expected_agents += [agent] if kept else []
    assert selected.rewards.tolist() == expected_rows
    assert selected.trajectories["agent_ids"].tolist() == expected_agents
    assert selected.episodes == batch.episodes


def test_replace_changes_columns_where_they_are_and_leaves_the_original_alone():
    batch = batch_of([2, 1])
    changed = batch.replace(
        rewards=batch.rewards * 10,
        agent_ids=np.array([7, 8]),
        episode_returns=np.array([5], np.float32),
        game_outcome=np.array([1.0], np.float32),
        bonus=np.ones(3, np.float32),
    )
    assert changed.rewards.tolist() == [0, 10, 20]
    assert changed.trajectories["agent_ids"].tolist() == [7, 8]
    assert changed.episodes["episode_returns"].tolist() == [5]
    assert changed.games["game_outcome"].tolist() == [1]
    assert changed.rows["bonus"].tolist() == [1, 1, 1]
    assert_equal_batches(batch, batch_of([2, 1]))


def test_a_copy_shares_nothing_with_the_batch():
    batch = batch_of([2, 1])
    copy = batch.copy()
    assert_equal_batches(copy, batch)
    for axis in ("rows", "trajectories", "episodes", "games"):
        for name, column in getattr(batch, axis).items():
            assert not np.shares_memory(column, getattr(copy, axis)[name])


def test_the_tensors_of_a_policy_are_views_shaped_by_its_layout():
    layout = (("w", (2, 3)), ("scale", ()), ("b", (3,)))
    update = PolicyUpdate("Ball?team=1", 5, np.arange(10, dtype=np.float32), layout, step=100)
    tensors = update.tensors()
    assert tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["scale"].shape == ()
    assert tensors["scale"] == 6
    assert tensors["b"].tolist() == [7, 8, 9]
    assert all(np.shares_memory(tensor, update.weights) for tensor in tensors.values())


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_policy_with_more_or_fewer_weights_than_its_layout_has_is_named(count):
    update = PolicyUpdate("Ball", 7, np.zeros(count, np.float32), (("w", (3,)),), 100)
    with pytest.raises(ShapeError, match=f"policy version 7 of Ball has {count} weights, but its layout requires 3"):
        update.tensors()
