from dataclasses import replace

import numpy as np
from group_samples import Piece, batch_of
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.trainer.poca import mates_of, renumbered


def found(mates):
    """The mates of each member, as sets."""
    return [{int(n) for n in row[there]} for row, there in zip(mates.numbers, mates.present, strict=True)]


def test_mates_are_those_of_the_same_group_at_the_same_tick_of_the_same_actor():
    sources = np.array([0, 0, 0, 0, 1, 0])
    groups = np.array([7, 7, 8, 7, 7, 7])
    ticks = np.array([3, 3, 3, 4, 3, 3])
    mates = mates_of(sources, groups, ticks)
    assert found(mates) == [{1, 5}, {0, 5}, set(), set(), set(), {0, 1}]
    assert mates.numbers.shape == (6, 2)


@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_mates_equal_those_of_a_loop_over_all_pairs(keys):
    sources, groups, ticks = np.array(keys, np.int64).reshape(-1, 3).T
    expected = [{j for j, other in enumerate(keys) if j != i and other == key and key[1]} for i, key in enumerate(keys)]
    mates = mates_of(sources, groups, ticks)
    assert found(mates) == expected
    assert (mates.present.sum(1) == [len(each) for each in expected]).all()


def test_rows_from_before_a_resume_have_no_mates(make_trainer):
    """A resumed run's ticks restart at 0; agents that were mates remain mates."""

    def state(*batches):
        trainer = make_trainer(buffer_size=64)
        for batch in batches:
            trainer.add(batch)
        return renumbered(trainer.buffer.state_dict())

    pair = [Piece(agent, 0, [1, 2], [0, 0], [0, 0], [0, 0], 3) for agent in (1, 2)]
    later = [replace(piece, first_tick=7) for piece in pair]
    found = state(batch_of(later), batch_of(pair, source=3))
    assert found["rows"]["ticks"].tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert found["trajectories"]["next_ticks"].tolist() == [0, 0, 1, 1]
    assert found["trajectories"]["sources"].tolist() == [-1] * 4
    other = state(batch_of(pair, source=-1), batch_of(later))
    for table in ("rows", "trajectories"):
        for name, column in found[table].items():
            np.testing.assert_array_equal(column, other[table][name], name)
