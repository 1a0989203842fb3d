"""What agents remember between their decisions, as they come, go and come back."""

import numpy as np
from fakes import FakePolicy
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.protocol import Recall

FIRST = np.array([0.0, 1.0, 0.0], np.float32)


def ids(*numbers):
    return np.array(numbers, np.int64)


def remembered(*values):
    """Memories [d, 2] and previous actions [d, 3] that can be told apart."""
    column = np.array(values, np.float32)[:, None]
    return Recall(column + np.array([0.0, 0.5], np.float32), column + np.array([0.1, 0.2, 0.3], np.float32))


def firsts(recall):
    """The values that `remembered` was called with; None where nothing is remembered."""
    values = []
    for memory, action in zip(recall.memories, recall.previous_actions, strict=True):
        fresh = not memory.any()
        assert np.array_equal(action, FIRST) == fresh, "memories and actions belong together"
        values.append(None if fresh else float(memory[0]))
    return values


def store(**options):
    return AgentMemories(2, FIRST, **options)


def test_unknown_agents_remember_nothing():
    recall = store().recall(ids(5, 7**20), ids(0, 3))
    assert recall.memories.tolist() == [[0, 0], [0, 0]]
    assert recall.previous_actions.tolist() == [FIRST.tolist()] * 2


def test_agents_recall_what_was_kept_for_them_in_whatever_order_they_decide():
    memories = store()
    memories.keep(ids(30, 10, 20), ids(0, 0, 0), remembered(3, 1, 2))
    memories.keep(ids(10), ids(0), remembered(11))
    assert firsts(memories.recall(ids(10, 40, 20, 30), ids(0, 0, 0, 0))) == [11.0, None, 2.0, 3.0]


def test_an_agent_in_another_episode_remembers_nothing_even_if_it_never_ended():
    memories = store()
    memories.keep(ids(1, 2), ids(4, 4), remembered(1, 2))
    assert firsts(memories.recall(ids(1, 2), ids(4, 5))) == [1.0, None]


def test_agents_that_ended_are_forgotten_and_their_places_used_again():
    memories = store()
    memories.keep(ids(1, 2, 3), ids(0, 0, 0), remembered(1, 2, 3))
    memories.forget(ids(2, 99, 2))
    assert len(memories) == 2
    assert firsts(memories.recall(ids(1, 2, 3), ids(0, 0, 0))) == [1.0, None, 3.0]
    memories.keep(ids(4), ids(0), remembered(4))
    assert firsts(memories.recall(ids(4, 2), ids(0, 0))) == [4.0, None]


def test_clearing_forgets_all_agents():
    memories = store()
    memories.keep(ids(1, 2), ids(0, 0), remembered(1, 2))
    memories.clear()
    assert len(memories) == 0
    assert firsts(memories.recall(ids(1, 2), ids(0, 0))) == [None, None]


def test_kept_and_recalled_memories_are_copies():
    memories = store()
    kept = remembered(1)
    memories.keep(ids(1), ids(0), kept)
    kept.memories[:] = kept.previous_actions[:] = 9.0
    recall = memories.recall(ids(1), ids(0))
    recall.memories[:] = recall.previous_actions[:] = 9.0
    unknown = memories.recall(ids(2), ids(0))
    unknown.memories[:] = unknown.previous_actions[:] = 9.0
    assert firsts(memories.recall(ids(1, 2), ids(0, 0))) == [1.0, None]


def test_agents_that_vanish_are_forgotten_before_the_store_grows_without_end():
    memories = store(patience=10)
    memories.keep(ids(0), ids(0), remembered(5))
    for tick in range(1, 500):
        memories.keep(ids(0, tick), ids(0, 0), remembered(5, 6))  # one stays, the others are seen once
    assert len(memories) < 50
    assert firsts(memories.recall(ids(0, 499, 1), ids(0, 0, 0))) == [5.0, 6.0, None]


def test_agents_that_decide_seldom_are_not_forgotten_while_there_is_room():
    memories = store(patience=2)
    memories.keep(ids(1, 2, 3), ids(0, 0, 0), remembered(1, 2, 3))
    for _ in range(50):
        memories.keep(ids(2), ids(0), remembered(2))
    assert firsts(memories.recall(ids(1, 2, 3), ids(0, 0, 0))) == [1.0, 2.0, 3.0]


def test_a_policy_without_memory_needs_no_store():
    assert AgentMemories.for_policy(FakePolicy(), ActionSpec(2)) is None


def test_before_the_first_action_stands_choice_0_of_each_branch():
    class Policy(FakePolicy):
        memory_size = 4

    recall = AgentMemories.for_policy(Policy(), ActionSpec(1, (2, 3))).recall(ids(1), ids(0))
    assert recall.memories.tolist() == [[0, 0, 0, 0]]
    assert recall.previous_actions.tolist() == [[0, 1, 0, 1, 0, 0]]


AGENTS = st.integers(0, 12)
TICKS = st.one_of(
    st.tuples(st.just("decide"), st.lists(AGENTS, unique=True, max_size=8)),
    st.tuples(st.just("end"), st.lists(AGENTS, max_size=4)),
    st.tuples(st.just("restart unannounced"), st.lists(AGENTS, unique=True, max_size=3)),
    st.tuples(st.just("clear"), st.just([])),
)


@examples(30)
@given(st.lists(TICKS, max_size=40))
def test_the_store_behaves_like_a_dictionary_keyed_by_agent_and_episode(ticks):
    memories, model, episodes = store(), {}, dict.fromkeys(range(13), 0)
    for value, (what, agents) in enumerate(ticks, 1):
        if what == "decide":
            agent_ids, episode_ids = ids(*agents), ids(*(episodes[agent] for agent in agents))
            expected = [model.get((agent, episodes[agent])) for agent in agents]
            assert firsts(memories.recall(agent_ids, episode_ids)) == expected
            values = [value + agent / 100 for agent in agents]
            memories.keep(agent_ids, episode_ids, remembered(*values))
            for agent, kept in zip(agents, values, strict=True):
                model[agent, episodes[agent]] = float(np.float32(kept))
        elif what == "clear":
            memories.clear()
            model.clear()
        else:
            for agent in agents:
                if what == "end":
                    model.pop((agent, episodes[agent]), None)
                episodes[agent] += 1
            if what == "end":
                memories.forget(ids(*agents))
        assert len(memories) <= len(episodes)
