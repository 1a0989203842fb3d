import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.queues.columns import Column
from headrace.stages.trainer.impala import UnrollReplay
from headrace.stages.trainer.replay.replay_memory import ReplayFileError, read_replay, write_replay

T = 4
ROWS = (Column("number", "int64"), Column("seen", "float32", (2,)))
TRAJECTORIES = (Column("lengths", "int64"), Column("terminated", "bool"), Column("next_seen", "float32", (2,)))


def new_replay(capacity=3, sampling="fifo"):
    return UnrollReplay(ROWS, TRAJECTORIES, T, capacity, sampling)


class Stream:
    """Unrolls whose rows have rising numbers, and whose trajectories have endings drawn at random."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.unrolls = {}

    def add(self, replay, count):
        for parts in (self._unrolls(count),):
            replay.add(*parts, self.random)

    def _unrolls(self, count):
        lengths, n = [], count * T
        for _ in range(count):
            left = T
            while left:
                lengths.append(int(self.random.integers(1, left + 1)))
                left -= lengths[-1]
        first = T * len(self.unrolls)
        number = first + np.arange(n)
        ends = first + np.cumsum(lengths)
        rows = {"number": number, "seen": np.stack([number, -number], 1).astype(np.float32), "unknown": number}
        trajectories = {"lengths": np.array(lengths), "terminated": ends % 3 == 0, "next_seen": _pair(ends)}
        for at in range(count):
            within = (ends > first + at * T) & (ends <= first + (at + 1) * T)
            self.unrolls[len(self.unrolls)] = ends[within]
        return rows, trajectories


def _pair(numbers):
    return np.stack([numbers, -numbers], 1).astype(np.float32)


def kept(replay, random=None):
    """Numbers of the unrolls, and the ends of the trajectories in each, of all that is kept."""
    rows, trajectories = replay.draw(len(replay), random or np.random.default_rng(1))
    np.testing.assert_array_equal(rows["seen"], _pair(rows["number"]))
    ends = rows["number"][np.cumsum(trajectories["lengths"]) - 1] + 1
    np.testing.assert_array_equal(trajectories["next_seen"], _pair(ends))
    np.testing.assert_array_equal(trajectories["terminated"], ends % 3 == 0)
    whole = rows["number"].reshape(-1, T)
    np.testing.assert_array_equal(whole - whole[:, :1], np.tile(np.arange(T), (len(whole), 1)))
    return {int(one[0]) // T: ends[(ends > one[0]) & (ends <= one[0] + T)].tolist() for one in whole}


@pytest.mark.lengthy
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    capacity=st.integers(1, 5),
    sampling=st.sampled_from(["fifo", "reservoir"]),
    seed=st.integers(0, 1000),
)
@examples(20)
def test_samples_come_from_the_replay_and_a_fifo_keeps_the_newest(counts, capacity, sampling, seed):
    replay, stream = new_replay(capacity, sampling), Stream(seed)
    for count in counts:
        stream.add(replay, count)
        found = kept(replay)
        assert len(found) == len(replay) == min(capacity, len(stream.unrolls))
        for number, ends in found.items():
            assert ends == stream.unrolls[number].tolist()
        if sampling == "fifo":
            assert sorted(found) == list(stream.unrolls)[-capacity:]


@pytest.mark.lengthy
def test_a_reservoir_keeps_every_unroll_of_the_run_with_the_same_probability():
    capacity, total, runs = 5, 20, 300
    often = np.zeros(total)
    for seed in range(runs):
        replay, stream = new_replay(capacity, "reservoir"), Stream(seed)
        for _ in range(4):
            stream.add(replay, 5)
        often[list(kept(replay))] += 1
    # Each is kept in a quarter of the runs, ± 4 standard deviations of such a count.
    assert abs(often / runs - capacity / total).max() < 4 * np.sqrt(0.25 * 0.75 / runs)


@pytest.mark.parametrize("sampling", ["fifo", "reservoir"])
def test_a_restored_replay_equals_the_saved_one_and_continues_identically(sampling, tmp_path):
    replay, stream = new_replay(sampling=sampling), Stream()
    stream.add(replay, 7)
    write_replay(replay, tmp_path / "unrolls.bin", 28)
    other = new_replay(sampling=sampling)
    read_replay(other, tmp_path / "unrolls.bin", 28)
    again = Stream()
    again.add(new_replay(sampling=sampling), 7)
    for _ in range(5):
        assert kept(other) == kept(replay)
        stream.add(replay, 2)
        again.add(other, 2)


def test_a_file_of_another_capacity_is_refused_by_the_keys_name(tmp_path):
    replay = new_replay(3)
    Stream().add(replay, 2)
    write_replay(replay, tmp_path / "unrolls.bin")
    with pytest.raises(ReplayFileError, match="saved with replay_capacity 3, which is now 5"):
        read_replay(new_replay(5), tmp_path / "unrolls.bin")
