import numpy as np
import pytest

from headrace.queues.columns import Column
from headrace.stages.trainer.replay_store import LazyColumn


@pytest.mark.parametrize("block_bytes", [1, 24, 2**20])
def test_rows_are_read_as_they_were_written_however_large_the_blocks_are(block_bytes):
    column = LazyColumn(Column("x", "int32", (2,)), 10, block_bytes)
    column.put(np.array([9, 0, 4]), np.array([[9, 9], [0, 0], [4, 4]]))
    column.put(np.array([4]), np.array([[5, 5]]))
    np.testing.assert_array_equal(column.take(np.array([4, 9, 9, 0])), [[5, 5], [9, 9], [9, 9], [0, 0]])


def test_blocks_are_made_as_far_as_rows_are_written():
    column = LazyColumn(Column("x", "uint8", (100,)), 10**12, block_bytes=1000)
    column.put(np.array([25]), np.zeros((1, 100), np.uint8))
    assert [len(part) for part in column.parts(26)] == [10, 10, 6]


def test_the_last_block_is_no_longer_than_the_capacity_asks_for():
    column = LazyColumn(Column("x", "uint8"), 5, block_bytes=3)
    assert [len(part) for part in column.parts(5)] == [3, 2]


def test_rows_of_no_width_are_rows_all_the_same():
    column = LazyColumn(Column("x", "float32", (0,)), 4)
    column.put(np.array([3]), np.empty((1, 0), np.float32))
    assert column.take(np.array([3, 3])).shape == (2, 0)
