"""Group rewards in turn-based games: each agent's rows hold its teammates' rewards since its last one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from small_zoo import SEEN, THREE

from headrace.config import RoleSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of

ALL = {"*": RoleSettings(behavior="Team", team=0, group=True)}


class Gifts:
    """A game by turns in which every move rewards whom a script says.

    Args:
        moves: by agent: what each of its moves brings to whom; after the last one it is terminated.
        books: whether it tells what agents have received before it is their turn, as PettingZoo's own classes do.
    """

    def __init__(self, moves, books=True):
        self.possible_agents = list(moves)
        self.agents = []
        self._moves = moves
        self._books = books

    def __getattr__(self, name):
        if name == "_cumulative_rewards" and self._books:
            return self.received
        raise AttributeError(name)

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return THREE

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.received = dict.fromkeys(self.agents, 0.0)
        self.moved = dict.fromkeys(self.agents, 0)
        self.agent_selection = self.agents[0]
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        return np.zeros(2, np.float32)

    def last(self, observe=True):
        agent = self.agent_selection
        return self.observe(agent), self.received[agent], self._is_over(agent), False, {}

    def step(self, action):
        agent = self.agent_selection
        after = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self._is_over(agent):
            self.agents.remove(agent)
            del self.received[agent]
            self.agent_selection = after
            return
        self.received[agent] = 0.0
        gifts = self._moves[agent][self.moved[agent]]
        self.moved[agent] += 1
        for other in self.agents:
            self.received[other] += gifts.get(other, 0.0)
        self.agent_selection = agent if self._is_over(agent) else after

    def _is_over(self, agent):
        return self.moved[agent] == len(self._moves[agent])


def group_of(moves, roles=ALL, books=True):
    return PettingZooGroup([instance_of(Gifts(moves, books), "Zoo")], "Team", "Zoo", roles, rotate_sides=False)


def told(group, ticks):
    """By agent's number, of the rows of a reset and `ticks` moves: (own reward, group's reward) one after the other."""
    rows, result = {}, group.reset(0)
    for tick in range(ticks + 1):
        actions = {}
        for behavior_id, steps in result.steps.items():
            shared = np.full(len(steps.rewards), np.nan) if steps.group_rewards is None else steps.group_rewards
            for agent, own, of_group in zip(steps.agent_ids, steps.rewards, shared, strict=True):
                rows.setdefault(int(agent), []).append((float(own), float(of_group)))
            count = len(steps.agent_ids) - steps.ended
            actions[behavior_id] = ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
        result = group.step(actions) if tick < ticks else result
    return rows


@pytest.mark.parametrize("books", [True, False])
def test_a_teammate_s_reward_is_in_the_mover_s_next_row(books):
    rows = told(group_of({"a": [{"a": -0.5, "b": 1.0}] * 9, "b": [{}] * 9}, books=books), 4)

    # b's first reward came before its first move; its later ones are its own, and the costs are its mate's.
    assert rows == {0: [(0, 0), (-0.5, 1.0), (-0.5, 1.0)], 1: [(0, 0), (1.0, -0.5)]}


def test_an_agent_that_dies_gets_the_rewards_of_waiting_teammates():
    moves = {"a": [{"c": 5.0}], "b": [{}] * 9, "c": [{}] * 9}

    assert told(group_of(moves), 1)[0] == [(0, 0), (0, 5.0)]


def test_a_teammate_s_last_reward_counts_once():
    moves = {"a": [{}] * 9, "b": [{"b": 3.0}], "c": [{"a": 0.5}] * 9}
    rows = told(group_of(moves), 5)

    assert rows[1] == [(0, 0), (3.0, 0)]
    assert rows[0] == [(0, 0), (0.5, 3.0), (0.5, 0)]
    assert rows[2] == [(0, 0), (0, 0.5)], "what b received before c's first move is of no decision of c's"


def test_other_teams_rewards_are_not_shared():
    moves = {"a": [{"b": 1.0, "c": 7.0}] * 9, "b": [{}] * 9, "c": [{}] * 9}
    roles = {"c": RoleSettings(behavior="Other", team=1), "*": RoleSettings(behavior="Team", team=0, group=True)}
    rows = told(group_of(moves, roles), 6)

    assert rows[0] == [(0, 0), (0, 1.0), (0, 1.0)]
    assert [own for own, _ in rows[5]] == [0, 7.0]
    assert all(np.isnan(of_group) for _, of_group in rows[5]), "who is in no group has no group's reward"


GIFT = st.dictionaries(st.sampled_from("abc"), st.integers(-3, 3).map(float), max_size=3)


@pytest.mark.lengthy
@examples(25)
@given(st.fixed_dictionaries({agent: st.lists(GIFT, min_size=1, max_size=4) for agent in "abc"}))
def test_a_life_receives_all_that_the_group_received_since_its_first_move(moves):
    """Of one episode, against an account that is kept move by move."""
    whole = sum(map(len, moves.values()))
    env = Gifts(moves)
    env.reset()
    expected, began = {}, {}
    for _ in range(whole):
        mover = env.agent_selection
        began.setdefault(mover, True)
        gifts, alive = moves[mover][env.moved[mover]], list(env.agents)
        env.step(0)
        for agent in began:
            if agent in alive:
                expected[agent] = expected.get(agent, 0.0) + sum(gifts.get(other, 0.0) for other in alive)
        while env.agents and env.last()[2]:
            env.step(None)
    rows = told(group_of(moves), whole)
    for number, agent in enumerate(moves):
        # The next episode begins in the last tick, with a row of zeros for a.
        total = sum(own + of_group for own, of_group in rows[number])
        assert total == pytest.approx(expected[agent])
