from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.queues import codec
from headrace.queues.links import TooLargeError, pieces
from headrace.queues.messages import TrajectoryBatch


def batch_of(lengths: list[int], episodes: int) -> TrajectoryBatch:
    n = sum(lengths)
    return TrajectoryBatch(
        "Ball?team=0",
        0,
        {"obs_0": np.zeros((n, 5), np.uint8), "rewards": np.arange(n, dtype=np.float32)},
        {"lengths": np.array(lengths, np.int32), "agent_ids": np.arange(len(lengths))},
        {"episode_returns": np.zeros(episodes, np.float32)},
    )


def pieces_of(batch: TrajectoryBatch, slab_bytes: int) -> list[TrajectoryBatch]:
    parts: list[TrajectoryBatch] = []
    for part in pieces(batch, slab_bytes):
        assert isinstance(part, TrajectoryBatch)
        parts.append(part)
    return parts


def slab_bytes_of(batch: TrajectoryBatch) -> int:
    return codec.offsets(codec.describe(batch)[0])[1]


@pytest.mark.lengthy
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    episodes=st.integers(0, 10),
    slab_bytes=st.integers(300, 2000),
)
def test_pieces_fit_and_are_the_batch_in_order(lengths: list[int], episodes: int, slab_bytes: int):
    batch = batch_of(lengths, episodes)
    try:
        parts = pieces_of(batch, slab_bytes)
    except TooLargeError:
        alone = [slab_bytes_of(batch_of([length], episodes)) for length in lengths]
        assert max(alone) > slab_bytes
        return
    assert all(slab_bytes_of(part) <= slab_bytes for part in parts)
    assert [length for part in parts for length in part.lengths] == lengths
    assert [row for part in parts for row in part.rewards] == list(range(sum(lengths)))
    assert [row for part in parts for row in part.trajectories["agent_ids"]] == list(range(len(lengths)))
    assert sum(len(part.episodes.get("episode_returns", ())) for part in parts) == episodes
