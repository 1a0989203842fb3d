"""Episodes of agents that come, end and come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.environments.engines.rows import EpisodeTracker


def track(episodes, ended, deciding, generation=0):
    ids = np.array([*ended, *deciding], np.int64)
    found = episodes.track(ids, len(ended), generation)
    return found.episode_ids.tolist(), found.first.tolist(), found.generations.tolist()


def test_an_agent_is_in_one_episode_until_it_ends():
    episodes = EpisodeTracker()
    (first, _), begun, _ = track(episodes, [], [3, 5])
    assert begun == [True, True]
    (again, _), begun, _ = track(episodes, [], [3, 5])
    assert (again, begun) == (first, [False, False])
    (end, _), begun, _ = track(episodes, [3], [5])
    assert (end, begun) == (first, [False, False])
    (_, back), begun, _ = track(episodes, [], [5, 3])
    assert back > first
    assert begun == [False, True]


def test_an_agent_that_ends_and_begins_in_one_message_has_both_episodes():
    episodes = EpisodeTracker()
    (first,), _, _ = track(episodes, [], [3])
    (end, begun), fresh, _ = track(episodes, [3], [3])
    assert (end, fresh) == (first, [False, True])
    assert begun > first


def test_episodes_know_the_parameters_that_they_began_under():
    episodes = EpisodeTracker()
    track(episodes, [], [1, 2], generation=1)
    _, _, generations = track(episodes, [2, 9], [1], generation=3)
    assert generations == [1, 3], "who is not known begins and ends now"


def test_clear_starts_new_episodes():
    episodes = EpisodeTracker()
    (before,), _, _ = track(episodes, [], [3])
    episodes.clear()
    (after,), fresh, _ = track(episodes, [], [3])
    assert after > before
    assert fresh == [True]


messages = st.lists(
    st.tuples(st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 9), unique=True)), max_size=30
)


@pytest.mark.lengthy
@examples(30)
@given(messages)
def test_episodes_are_those_of_a_plain_table(told):
    episodes, table, newest = EpisodeTracker(), {}, {}
    for ended, deciding in told:
        ids, first, _ = track(episodes, ended, deciding)
        for row, agent in enumerate([*ended, *deciding]):
            if row == len(ended):
                for over in ended:
                    table.pop(over, None)
            if agent in table:
                assert (ids[row], first[row]) == (table[agent], False)
            else:
                assert first[row]
                assert ids[row] > newest.get(agent, -1)
            newest[agent] = ids[row]
            if row >= len(ended):
                table[agent] = ids[row]
        if not deciding:
            for over in ended:
                table.pop(over, None)
