"""Agents of any id that end and live again, or pause: in parallel and by turns, with rows, rewards and episodes right."""

from __future__ import annotations

import enum
import logging

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from small_zoo import Counting, play

from headrace.config import RoleSettings
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import LimitedInstance, instance_of
from headrace.stages.errors import BrokenEnvironmentError, StageError

SEEN = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Scripted:
    """Plays a list of ticks; each gives, by agent, what happens to it.

    `+`: it is in `agents` and sees the number of steps; `.`: it is in `agents`, but sees nothing; missing: it is not
    in `agents`. `T` and `C` before these end its episode (terminated, or cut short). Each pays 1 in every step
    that it is named in, but in none after its death. Actions must be those of the agents that see something. What an
    agent sees is the same array each time, written over.
    """

    def __init__(self, *ticks, agents=("a", "b"), pay=None):
        self.ticks, self.possible_agents, self.agents, self.time, self.pay = ticks, list(agents), [], 0, pay
        self.given, self.arrays = [], {}

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.time = 0
        return self.told()[0], {}

    def step(self, actions):
        assert set(actions) == {a for a, what in self.ticks[self.time].items() if "+" in what}, self.time
        self.given.append(actions)
        self.time += 1
        return self.told()

    def told(self):
        tick = self.ticks[self.time]
        self.agents = [agent for agent, what in tick.items() if what.strip("TC")]
        seen = {
            a: self.arrays.setdefault(a, np.zeros(1, np.float32))
            for a, what in tick.items()
            if "+" in what or what in "TC"
        }
        for array in seen.values():
            array[:] = self.time
        rewards = self.pay[self.time] if self.pay else dict.fromkeys(tick, 1.0)
        return seen, rewards, *({a: flag in what for a, what in tick.items()} for flag in "TC"), {}


def group_of(*envs, limit=None, said=None, **roles):
    instances = [instance_of(env, "Zoo", said) for env in envs]
    if limit:
        instances = [LimitedInstance(each, limit) for each in instances]
    return PettingZooGroup(instances, "B", "Zoo", roles or {"*": RoleSettings(team=0)})


def history(results, names=("a", "b"), behavior="B"):
    """By agent, its rows: (episode, what it saw, reward, its end)."""
    rows = {name: [] for name in names}
    for result in results:
        if behavior not in result.steps:
            continue
        steps = result.steps[behavior]
        for i, agent_id in enumerate(steps.agent_ids):
            end = ("T" if steps.terminated[i] else "C") if i < steps.ended else ""
            row = (int(steps.episode_ids[i]), steps.observations[0][i, 0].item(), steps.rewards[i].item(), end)
            rows[names[agent_id]].append(row)
    return rows


def test_an_agent_that_ends_and_stays_begins_another_episode_in_the_same_step():
    env = Scripted({"a": "+", "b": "+"}, {"a": "+", "b": "T+"}, {"a": "+", "b": "+"}, {"a": "T", "b": "C"})
    rows = history(play(group_of(env), 3))

    assert rows["a"][:4] == [(0, 0, 0, ""), (0, 1, 1, ""), (0, 2, 1, ""), (0, 3, 1, "T")]
    assert rows["b"][:5] == [(0, 0, 0, ""), (0, 1, 1, "T"), (1, 1, 0, ""), (1, 2, 1, ""), (1, 3, 1, "C")]
    assert rows["b"][5] == (2, 0, 0, ""), "the game began anew"


def test_a_lone_agent_that_ends_but_stays_listed_begins_another_episode(caplog):
    env = Scripted(*({"b": "T+" if t % 3 == 0 and t else "+"} for t in range(9)), {"b": "T"}, agents=["b"])
    with caplog.at_level(logging.WARNING):
        rows = history(play(group_of(env, env.__class__(*env.ticks, agents=["b"]), said=set()), 9), ["b"] * 2)["b"]

    assert [seen for _, seen, _, end in rows if end] == [3, 3, 6, 6, 9, 9]
    (text,) = [record.getMessage() for record in caplog.records]
    assert "agent 'b' ended and is still in agents, so it begins another episode" in text


def test_ended_agents_that_stay_in_agents_are_named():
    env = Scripted({"a": "+", "b": "+"}, *({"a": "+", "b": "T+"} for _ in range(30)))
    with pytest.raises(
        BrokenEnvironmentError, match="'b' has ended in 20 steps in a row, but is still in agents; remove"
    ):
        play(group_of(env), 30)


@pytest.mark.parametrize("pause", [{"a": "+"}, {"a": "+", "b": "."}])
@pytest.mark.parametrize("length", [1, 3])
def test_an_agent_that_pauses_gets_no_action_and_its_rewards_add_up(pause, length, caplog):
    env = Scripted(
        {"a": "+", "b": "+"}, *[pause] * length, {"a": "+", "b": "+"}, {"a": "T", "b": "T"}, pay=[{"a": 1, "b": 2}] * 9
    )
    with caplog.at_level(logging.WARNING):
        rows = history(play(group_of(env), length + 2))["b"]

    assert rows[:3] == [(0, 0, 0, ""), (0, length + 1, 2 * (length + 1), ""), (0, length + 2, 2, "T")]
    (text,) = [record.getMessage() for record in caplog.records]
    assert "agent 'b' is " in text
    assert "so it pauses: it receives no action until" in text


def test_an_agent_that_is_not_back_when_the_game_ends_is_cut_short(caplog):
    both = {"a": "+", "b": "+"}
    env = Scripted(both, both, {"a": "+"}, {"a": "T"}, pay=[{"a": 1, "b": 2}] * 9)
    rows = history(play(group_of(env), 3))["b"]

    assert rows[:3] == [(0, 0, 0, ""), (0, 1, 2, ""), (0, 1, 4, "C")]
    assert "its end counts as truncated" in caplog.text


@pytest.mark.parametrize("pause", [{"a": "+"}, {"a": "+", "b": "."}])
def test_a_time_limit_also_ends_paused_episodes(pause):
    both = {"a": "+", "b": "+"}
    env = Scripted(both, both, *[pause] * 5, pay=[{"a": 1, "b": 2}] * 9)
    rows = history(play(group_of(env, limit=3), 3))

    assert rows["a"][3] == (0, 3, 1, "C")
    assert rows["b"][:3] == [(0, 0, 0, ""), (0, 1, 2, ""), (0, 1, 4, "C")]


def test_agents_may_pause_from_the_start_and_all_at_once():
    quiet = {"a": ".", "b": "."}
    env = Scripted(quiet, {"a": "+", "b": "."}, quiet, quiet, {"a": "+", "b": "+"}, {"a": "T", "b": "T"})
    rows = history(play(group_of(env), 2))

    assert rows["a"][:3] == [(0, 1, 0, ""), (0, 4, 3, ""), (0, 5, 1, "T")]
    assert rows["b"][:2] == [(0, 4, 0, ""), (0, 5, 1, "T")]
    assert env.given[2:4] == [{}, {}], "steps in which nobody acts"


def test_a_game_without_observations_for_10_000_steps_is_refused():
    with pytest.raises(BrokenEnvironmentError, match=r"none of agents \(a\) has had an observation for 10000 steps"):
        group_of(Scripted(*[{"a": "."}] * 10_002)).reset(0)


def test_a_lost_reward_of_a_dead_agent_is_warned_of_once(caplog):
    env = Scripted(
        {"a": "+", "b": "+"}, {"a": "+", "b": "T"}, {"a": "+"}, {"a": "+"}, {"a": "T"}, pay=[{"a": 1, "b": 2}] * 9
    )
    play(group_of(env), 4)
    (text,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "a reward of 2 for agent 'b', whose episode is over" in text


def test_rewards_and_infos_and_ends_may_be_left_out_for_an_agent():
    class Sparing(Scripted):
        def step(self, actions):
            seen, rewards, terminations, truncations, _ = super().step(actions)
            said = [{a: value for a, value in each.items() if value} for each in (terminations, truncations)]
            return seen, {"a": rewards["a"]}, *said, {"a": {"x": 1}}

    env = Sparing({"a": "+", "b": "+"}, {"a": "+", "b": "+"}, {"a": "T", "b": "C"})
    assert history(play(group_of(env), 2))["b"][:3] == [(0, 0, 0, ""), (0, 1, 0, ""), (0, 2, 0, "C")]


@st.composite
def games(draw):
    """Ticks of three agents, of which the first acts always, so that each tick of the group is one of the game."""
    what = st.sampled_from(["+", "+", ".", "", "T", "C", "C+", "T."])
    ticks = [{"a": "+", "b": draw(what), "c": draw(what)} for _ in range(draw(st.integers(1, 12)))]
    named = [{agent: what for agent, what in tick.items() if what} for tick in ticks]
    named[0] = {agent: what for agent, what in named[0].items() if what.strip("TC") == what}
    return [*named, dict.fromkeys("abc", "T")]


@pytest.mark.lengthy
@given(games())
def test_each_life_is_an_episode_whose_rewards_all_count(ticks):
    results = play(group_of(Scripted(*ticks, agents="abc", pay=[{"a": 1, "b": 2, "c": 4}] * 99)), len(ticks) - 1)
    rows = history(results, "abc")

    for agent, pay in {"a": 1, "b": 2, "c": 4}.items():
        expected, episode, owed, saw = [], -1, None, None
        for time, tick in enumerate(ticks):
            what = tick.get(agent, "")
            owed = owed if owed is None else owed + pay
            if owed is not None and what.strip("+."):
                episode += saw is None
                expected += [] if saw is None else [(episode, time if "." not in what else saw, owed, what[0])]
                owed = saw = None
            if "+" in what:
                episode += saw is None
                expected.append((episode, time, owed if saw is not None else 0, ""))
            owed, saw = (0, time) if "+" in what else (owed or 0, saw) if "." in what else (owed, saw)
        begun = 1 if ticks[0].get(agent) == "+" else 0
        assert rows[agent][: len(rows[agent]) - begun] == expected


class Side(enum.Enum):
    RED = 1
    BLUE = 2


IDS = [
    (0, 1),
    ((0, 0), (0, 1)),
    (Side.RED, Side.BLUE),
    (1, "1"),
]


@pytest.mark.parametrize("ids", IDS, ids=str)
def test_agents_may_have_ids_of_any_kind(ids):
    one, two = ids
    ticks = {one: "+", two: "+"}, {one: "+", two: "T+"}, {one: "+"}, {one: "T", two: "T"}
    env = Scripted(*ticks, agents=ids, pay=[{one: 1, two: 2}] * 9)
    results = play(group_of(env), 3)

    assert history(results)["a"][:4] == [(0, 0, 0, ""), (0, 1, 1, ""), (0, 2, 1, ""), (0, 3, 1, "T")]
    assert history(results)["b"][:4] == [(0, 0, 0, ""), (0, 1, 2, "T"), (1, 1, 0, ""), (1, 3, 4, "T")]


@pytest.mark.parametrize(
    "ids",
    [
        (0, 1),
        ("car[0]", "car[1]"),
        (Side.RED, Side.BLUE),
    ],
    ids=str,
)
def test_patterns_fit_the_names_of_ids(ids):
    roles = {str(agent): RoleSettings(behavior=f"B{number}") for number, agent in enumerate(ids)}
    group = group_of(Scripted(dict.fromkeys(ids, "+"), agents=ids), **roles)
    group.reset(0)

    assert list(group.behavior_specs) == ["B0", "B1"]


@pytest.mark.parametrize(
    "ids",
    [
        ([0], [1]),
        ("a", "a"),
        (1, True),
    ],
    ids=str,
)
def test_invalid_ids_are_refused(ids):
    with pytest.raises(StageError, match="^Zoo: agent '.*': expected unique, hashable agent ids"):
        group_of(Scripted(agents=ids))


def test_possible_agents_may_be_an_array_or_missing():
    for known in (np.arange(2), (), None):
        env = Scripted({0: "+", 1: "+"}, {0: "T", 1: "T"}, agents=())
        env.possible_agents = known  # type: ignore[assignment]
        assert history(play(group_of(env), 1))["b"][:2] == [(0, 0, 0, ""), (0, 1, 1, "T")]


class Turns(Counting):
    """Counts with ids of any kind; players named in `gone` leave `agents` between two turns of theirs."""

    def __init__(self, ids=("a", "b"), **options):
        super().__init__(masks="", players=len(ids), **options)
        self.possible_agents = list(ids)


@pytest.mark.parametrize("ids", IDS, ids=str)
def test_agents_of_turn_based_games_may_have_ids_of_any_kind(ids):
    rows = history(play(group_of(Turns(ids)), 4))

    # Moves of 1 each: the second player reaches 4.
    assert rows["a"][:3] == [(0, 0, 0, ""), (0, 2, 0, ""), (0, 4, -1, "T")]
    assert rows["b"][:3] == [(0, 1, 0, ""), (0, 3, 0, ""), (0, 4, 1, "T")]


@pytest.mark.parametrize("known", [True, False])
def test_an_agent_that_leaves_without_a_last_turn_keeps_its_last_decision(known, caplog):
    class Clearing(Turns):
        """Empties `agents` at its end, instead of letting each take its last turn."""

        terminations: dict = {}

        def step(self, action):
            super().step(action)
            if self._over:
                self.agents = []
                self.terminations = dict.fromkeys(self.possible_agents, True) if known else {}
                self._cumulative_rewards = self._pay

    rows = history(play(group_of(Clearing()), 4))

    assert [rows[name][2][2:] for name in "ab"] == [(-1, "T" if known else "C"), (1, "T" if known else "C")]
    assert ("its end counts as truncated" in caplog.text) == (not known)
