import numpy as np
import pytest

from queues.columns import Column
from stages.errors import StageError
from stages.trainer.on_policy.rollout_buffer import ColumnTable

COLUMNS = (Column("a", "float32", (2,)), Column("b", "int64"))


def rows(start, n):
    numbers = np.arange(start, start + n)
    return {"a": np.stack([numbers, -numbers], axis=1).astype(np.float32), "b": numbers, "unknown": numbers}


def test_it_copies_what_is_appended():
    table, source = ColumnTable(COLUMNS, 4), rows(0, 3)
    table.append(source)
    source["b"][:] = 99
    assert table["b"].tolist() == [0, 1, 2]


def test_it_grows_where_rows_overshoot_and_keeps_their_order():
    table = ColumnTable(COLUMNS, 2)
    for start, n in ((0, 2), (2, 1), (3, 20)):
        table.append(rows(start, n))
    assert len(table) == 23
    np.testing.assert_array_equal(table["b"], np.arange(23))
    np.testing.assert_array_equal(table["a"][:, 1], -np.arange(23.0))


def test_after_clearing_it_starts_anew():
    table = ColumnTable(COLUMNS, 4)
    table.append(rows(0, 3))
    table.clear()
    assert len(table) == 0
    table.append(rows(7, 1))
    assert table["b"].tolist() == [7]


def test_a_loaded_state_is_what_was_saved_and_does_not_share_memory_with_it():
    table, other = ColumnTable(COLUMNS, 4), ColumnTable(COLUMNS, 1)
    table.append(rows(0, 3))
    other.append(rows(50, 1))
    state = table.state_dict()
    other.load_state_dict(state)
    table.clear()
    table.append(rows(9, 3))
    state["b"][:] = 0
    assert other["b"].tolist() == [0, 1, 2]


def test_a_state_of_other_columns_is_refused_by_name():
    table = ColumnTable(COLUMNS, 4)
    with pytest.raises(StageError, match=r"'a': expected rows of shape \(2,\), got \(3,\)"):
        table.load_state_dict({"a": np.zeros((1, 3)), "b": np.zeros(1)})
    with pytest.raises(StageError, match=r"'b': expected rows of shape \(\), got None"):
        table.load_state_dict({"a": np.zeros((1, 2))})
