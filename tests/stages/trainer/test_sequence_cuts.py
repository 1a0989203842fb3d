import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.trainer.trajectories import SequenceCuts


@pytest.mark.parametrize(
    ("longest", "rows", "real"),
    [
        (1, [[0], [1], [2], [3]], [[1], [1], [1], [1]]),
        (2, [[0, 1], [2, 2], [3, 3]], [[1, 1], [1, 0], [1, 0]]),
        (3, [[0, 1, 2], [3, 3, 3]], [[1, 1, 1], [1, 0, 0]]),
        (4, [[0, 1, 2, 2], [3, 3, 3, 3]], [[1, 1, 1, 0], [1, 0, 0, 0]]),
    ],
)
def test_trajectories_are_cut_from_their_starts_and_padded_at_their_ends(longest, rows, real):
    cuts = SequenceCuts.of(np.array([3, 1]), longest)
    padded, mask = cuts.padded(np.arange(len(cuts)))
    assert padded.tolist() == rows
    assert mask.astype(int).tolist() == real


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12), length=st.integers(1, 12))
def test_every_row_is_in_exactly_one_sequence_and_in_order(lengths, length):
    cuts = SequenceCuts.of(np.array(lengths, np.int32), length)
    rows, real = cuts.padded(np.arange(len(cuts)))
    assert rows[real].tolist() == list(range(sum(lengths)))
    assert cuts.sizes.max() <= length
    first_rows = np.cumsum(lengths) - lengths
    assert cuts.starts[cuts.first].tolist() == first_rows.tolist()
