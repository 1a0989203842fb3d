import numpy as np
import pytest

from headrace.stages.errors import StageError
from headrace.stages.trainer.trajectories import AgentTable, Chains, add_to_episodes


def ids(*numbers):
    return np.array(numbers, np.int64)


def test_trajectories_of_an_agents_episode_are_chained_in_order_of_arrival():
    agents, episodes = ids(7, 3, 7, 3, 7, 7), ids(1, 1, 1, 1, 1, 2)
    ended = np.array([False, False, False, False, True, False])
    chains = Chains.of(agents, episodes, ended)
    assert chains.previous.tolist() == [-1, -1, 0, 1, 2, -1]
    assert [sorted(each.tolist()) for each in chains.rounds] == [[0, 1, 5], [2, 3], [4]]
    assert chains.latest.tolist() == [False, False, False, True, False, True]


def test_nothing_continues_an_episode_that_ended():
    chains = Chains.of(ids(1, 1), ids(4, 4), np.array([True, False]))
    assert chains.previous.tolist() == [-1, -1]
    assert chains.latest.tolist() == [False, True]


def pieces(agents, episodes, ended=False):
    return Chains.of(agents, episodes, np.broadcast_to(ended, len(agents)))


def known(table, agents, episodes):
    return table.values_of(pieces(agents, episodes))[:, 0].tolist()


def test_an_agents_entry_is_found_only_in_the_same_episode():
    table = AgentTable(1, "float32")
    assert known(table, ids(1), ids(0)) == [0.0]
    table.keep(pieces(ids(9, 2), ids(5, 0)), np.array([[1.5], [2.5]]), 1)
    assert known(table, ids(2, 9, 9, 4, 11), ids(0, 5, 6, 0, 5)) == [2.5, 1.5, 0.0, 0.0, 0.0]


def test_a_loaded_table_knows_what_was_saved():
    table, other = AgentTable(2, "float64"), AgentTable(2, "float64")
    table.keep(pieces(ids(5, 4), ids(1, 2)), np.array([[0.1, 0.2], [0.3, 0.4]]), 3)
    state = table.state_dict()
    other.load_state_dict(state)
    state["values"][:] = 0
    assert other.values_of(pieces(ids(4, 5), ids(2, 1))).tolist() == [[0.3, 0.4], [0.1, 0.2]]
    with pytest.raises(StageError, match=r"expected rows of shape \(3,\), got \(2,\)"):
        AgentTable(3, "float64").load_state_dict(state)


def test_only_an_agents_last_values_are_kept_and_none_after_its_episode():
    table = AgentTable(1, "float64")
    table.keep(pieces(ids(1, 2, 1, 3), ids(0, 0, 0, 0)), np.array([[1.0], [2.0], [3.0], [4.0]]), 1)
    assert known(table, ids(1, 2, 3), ids(0, 0, 0)) == [3.0, 2.0, 4.0]
    table.keep(pieces(ids(2), ids(0), True), np.array([[5.0]]), 2)
    assert known(table, ids(1, 2, 3), ids(0, 0, 0)) == [3.0, 0.0, 4.0]


def test_amounts_add_up_over_an_episode_in_however_many_pieces_it_comes():
    table = AgentTable(1, "float64")
    assert add_to_episodes(table, pieces(ids(1, 2), ids(0, 0)), np.array([[1.0], [10.0]]), 1).tolist() == []
    chains = pieces(ids(1, 1), ids(0, 0), np.array([False, True]))
    finished = add_to_episodes(table, chains, np.array([[2.0], [4.0]]), 2)
    assert finished.tolist() == [[7.0]]
    assert known(table, ids(1, 2), ids(0, 0)) == [0.0, 10.0]
