"""Agents of a Unity program as PettingZoo's environments, at once and by turns: they come, pause, end and come again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from unity_runs import PlayedEnvironments
from unity_said import NAME, Scene, says, spec

from headrace.stages.environments.engines.unity.errors import UnityActionException, UnityException
from headrace.unity import EngineConfigurationChannel, UnityAECEnv, UnityParallelEnv

pettingzoo_test = pytest.importorskip("pettingzoo.test")
WALKS = spec(continuous=1)


def named(number, behavior=NAME, life=1):
    return f"{behavior}?agent_id={number}" + (f"&life={life}" if life > 1 else "")


def parallel(specs, *script, **options):
    """An environment, and the program of which `reset` says what comes first in the script, twice."""
    scene = Scene(specs, script[0], *script)
    return UnityParallelEnv(scene, **options), scene


def by_number(part):
    return {int(agent.partition("agent_id=")[2].partition("&")[0]): value for agent, value in part.items()}


def go(env):
    return env.step({agent: [0.0] for agent in env.agents})


def test_agents_act_at_once_and_end_at_different_times():
    env, scene = parallel(
        WALKS, says({3: 0.5, 5: 0.25}), says({5: 0.75}, {3: 1.0}, reward=2.0), says(ended={5: 0.0}, interrupted=True)
    )
    observations, infos = env.reset()
    assert by_number(observations) == {3: [0.5], 5: [0.25]}
    assert env.agents == env.possible_agents == [named(3), named(5)]
    assert infos[named(3)] == {"behavior_name": NAME, "group_id": 0, "group_reward": 0.0}
    observations, rewards, terminated, truncated, infos = env.step({named(5): [0.5], named(3): [-0.5]})
    assert scene.acted == [(NAME, [[-0.5], [0.5]], [[], []])], "in the order in which they asked"
    assert by_number(observations) == {3: [1.0], 5: [0.75]}
    assert by_number(rewards) == {3: 2.0, 5: 2.0}
    assert (by_number(terminated), by_number(truncated)) == ({3: True, 5: False}, {3: False, 5: False})
    assert infos[named(3)]["interrupted"] is False
    assert "interrupted" not in infos[named(5)]
    assert env.agents == [named(5)]
    _, _, terminated, truncated, infos = go(env)
    assert (by_number(terminated), by_number(truncated)) == ({5: False}, {5: True})
    assert infos[named(5)]["interrupted"] is True
    assert not env.agents


def test_behaviours_have_their_own_spaces():
    specs = {"Hunter": spec((2,), continuous=2), "Prey": spec((1,), (3, 4, 4), branches=(3,))}
    scene = Scene(specs, *[{"Hunter": says({0: 0.0}), "Prey": says({1: 0.5})}] * 3)
    env = UnityParallelEnv(scene)
    observations, infos = env.reset()
    hunter, prey = env.agents
    assert env.action_space(hunter) == spaces.Box(-1, 1, (2,), np.float32)
    seen: Any = env.observation_space(prey)
    assert seen["action_mask"] == spaces.MultiBinary(3)
    assert env.observation_spaces == {agent: env.observation_space(agent) for agent in env.agents}
    assert env.action_spaces == {agent: env.action_space(agent) for agent in env.agents}
    for agent in env.agents:
        assert env.observation_space(agent).contains(observations[agent])
        assert env.observation_space(agent) is env.observation_space(agent)
    env.step({hunter: [0.5, 0.25], prey: 2})
    assert scene.acted == [("Hunter", [[0.5, 0.25]], [[]]), ("Prey", [[]], [[2]])]
    assert (infos[hunter]["behavior_name"], infos[prey]["behavior_name"]) == ("Hunter", "Prey")


def test_an_agent_without_requests_leaves_agents_and_returns():
    env, _ = parallel(WALKS, says({3: 0.0, 5: 0.0}), says({3: 0.5}), says({3: 0.0, 5: 0.25}))
    env.reset()
    assert by_number(go(env)[0]) == {3: [0.5]}
    assert env.agents == [named(3)]
    assert by_number(go(env)[0]) == {3: [0.0], 5: [0.25]}
    assert env.possible_agents == [named(3), named(5)]


def test_a_pause_of_all_agents_is_skipped_and_loses_no_ending():
    env, scene = parallel(WALKS, says({3: 0.0, 5: 0.0}), says(ended={3: 1.0}), says(), says({5: 0.25}))
    env.reset()
    observations, _, terminated, _, _ = go(env)
    assert by_number(observations) == {3: [1.0], 5: [0.25]}
    assert by_number(terminated) == {3: True, 5: False}
    assert scene.orders[-3:] == ["step"] * 3


def test_new_agents_join_and_a_reused_number_starts_a_new_life():
    env, _ = parallel(WALKS, says({3: 0.0}), says({3: 0.5, 9: 0.25}, {3: 1.0}), says(ended={3: 0.0, 9: 0.0}))
    env.reset()
    observations, _, terminated, _, _ = go(env)
    assert env.agents == [named(3, life=2), named(9)]
    assert observations[named(3)] == [1.0]
    assert observations[named(3, life=2)] == [0.5]
    assert terminated == {named(3): True, named(3, life=2): False, named(9): False}
    assert env.possible_agents == [named(3), named(3, life=2), named(9)]
    assert env.action_space(named(3, life=2)) is env.action_space(named(3))
    go(env)
    assert not env.agents


def test_a_reset_starts_with_the_requesting_agents_under_the_same_names():
    script = [says({3: 0.0}), says({3: 0.0}, {3: 0.0}), says(ended={4: 0.0}), says(), says({3: 0.5, 7: 0.0})]
    env, _ = parallel(WALKS, *script)
    env.reset()
    go(env)
    observations, infos = env.reset()
    assert env.agents == [named(3), named(7)]
    assert set(observations) == set(infos) == {named(3), named(7)}


def test_a_behaviour_may_appear_later():
    late = {NAME: says({3: 0.0}), "Late": says({4: 0.5})}
    scene = Scene({NAME: WALKS}, says({3: 0.0}), says({3: 0.0}), late)
    env = UnityParallelEnv(scene)
    env.reset()
    scene._specs = scene.behavior_specs = {NAME: WALKS, "Late": spec(branches=(2,))}
    assert by_number(go(env)[0])[4]["observation"] == [0.5]
    assert env.action_space("Late?agent_id=4") == spaces.Discrete(2)


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        ({3: [0.0]}, r"no action was passed for Walker\?team=0\?agent_id=5"),
        ({3: [0.0], 5: [0.0], 9: [0.0]}, "agent_id=9 is not requesting a decision; agents that are: .*agent_id=3, "),
        ({3: [0.0], 5: [np.nan]}, "agent_id=5: got action .*nan"),
        ({3: [0.0, 1.0], 5: [0.0]}, r"agent_id=3: got action \[0.0, 1.0\]; expected one of Box"),
    ],
)
def test_actions_that_do_not_fit_are_refused_by_agent(actions, problem):
    env, scene = parallel(WALKS, says({3: 0.0, 5: 0.0}))
    env.reset()
    with pytest.raises(UnityActionException, match=problem):
        env.step({named(number): action for number, action in actions.items()})
    assert not scene.acted


def test_actions_after_all_agents_have_ended_are_refused():
    env, _ = parallel(WALKS, says({3: 0.0}), says(ended={3: 0.0}))
    env.reset()
    go(env)
    with pytest.raises(UnityActionException, match="agents that are: none; call reset"):
        env.step({named(3): [0.0]})


def test_an_unknown_agent_has_no_spaces():
    env, _ = parallel(WALKS, says({3: 0.0}))
    with pytest.raises(UnityException, match=r"unknown agent 'red_0'; the behaviours are: Walker\?team=0"):
        env.action_space("red_0")


@pytest.mark.parametrize("kind", [UnityParallelEnv, UnityAECEnv])
@pytest.mark.parametrize("branches", [(3,), (3, 2)])
def test_masks_are_in_the_observation_and_in_the_info(kind, branches):
    forbidden = [[False, True, False], [True, False]][: len(branches)]
    scene = Scene(spec(branches=branches), *[says({3: 0.5}, forbidden=forbidden)] * 2)
    env = kind(scene)
    begun = env.reset()
    observation, _, _, _, info = env.last() if begun is None else (begun[0][named(3)], 0, 0, 0, begun[1][named(3)])
    assert env.observation_space(named(3)).contains(observation)
    for mask in (observation["action_mask"], info["action_mask"]):
        for _ in range(20):
            chosen = np.atleast_1d(env.action_space(named(3)).sample(mask))
            assert chosen[0] != 1
            assert len(branches) == 1 or chosen[1] == 1


def test_infos_contain_group_and_group_reward():
    env, _ = parallel(WALKS, says({3: 0.0}, group=2), says({3: 0.0}, reward=0.5, group=2))
    env.reset()
    info = go(env)[4][named(3)]
    assert (info["group_id"], info["group_reward"]) == (2, 5.0)


NUMBERS = st.sets(st.integers(0, 3), max_size=4)


@pytest.mark.lengthy
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
@examples(25)
def test_each_life_gets_its_rewards_and_ends_once(script):
    """Whoever asks and ends when, and keeps its number or not."""
    script = [({0, 1}, set()), *script, (set(), {0, 1, 2, 3})]
    said = [says(dict.fromkeys(asking, 0.0), dict.fromkeys(ended, 1.0), reward=1.0) for asking, ended in script]
    env = UnityParallelEnv(Scene(WALKS, *said[:1], *said))
    env.reset()
    earned, over = dict.fromkeys(env.agents, 1.0), []
    while env.agents:
        asked = set(env.agents)
        observations, rewards, terminated, *_ = go(env)
        assert asked | set(env.agents) | set(earned) >= set(observations) >= set(env.agents)
        for agent, reward in rewards.items():
            earned[agent] = earned.get(agent, 0.0) + reward
        over += [agent for agent in observations if terminated[agent]]
    assert earned == earnings(script)
    assert sorted(over) == sorted(earned)


def earnings(script):
    """What each life earns, one at a time, until nobody lives."""
    earned, lives, living = {}, dict.fromkeys(range(4), 0), {}
    for asking, ended in script:
        for number in ended & living.keys():
            earned[living.pop(number)] += 1.0
        for number in asking:
            if number not in living:
                lives[number] += 1
                living[number] = named(number, life=lives[number])
            earned[living[number]] = earned.get(living[number], 0.0) + 1.0
        if not living:
            break
    return earned


# By turns.


def test_by_turns_the_program_steps_when_all_agents_have_acted():
    script = [says({3: 0.5, 5: 0.25}), says({5: 0.75}, {3: 1.0}, reward=2.0), says({5: 0.0}, reward=1.0)]
    scene = Scene(WALKS, script[0], *script)
    env = UnityAECEnv(scene)
    env.reset()
    heard = []
    for agent in env.agent_iter(5):
        observation, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        heard.append((by_number({agent: 0}).popitem()[0], observation.tolist(), reward, over))
        if len(heard) < 5:
            env.step(None if over else [0.1 * len(heard)])
    assert heard == [
        (3, [0.5], 0.0, False),
        (5, [0.25], 0.0, False),
        (3, [1.0], 2.0, True),
        (5, [0.75], 2.0, False),
        (5, [0.0], 1.0, False),
    ]
    assert np.allclose(scene.acted[0][1], [[0.1], [0.2]])
    assert env.agents == [named(5)]


def test_by_turns_actions_before_a_reset_are_refused():
    env = UnityAECEnv(Scene(WALKS, says({3: 0.0})))
    with pytest.raises(UnityActionException, match="call reset"):
        env.step([0.0])


def test_a_reset_in_the_middle_of_a_round_forgets_the_round():
    scene = Scene(WALKS, *[says({3: 0.5, 5: 0.25})] * 4)
    env = UnityAECEnv(scene)
    env.reset()
    env.step([1.0])
    env.reset()
    assert env.agent_selection == named(3)
    env.step([0.5])
    env.step([0.25])
    assert scene.acted == [(NAME, [[0.5], [0.25]], [[], []])]


# The stand-in Unity.


@pytest.fixture
def unity():
    """Plays scenes."""
    played = PlayedEnvironments()
    yield played
    played.close()


SCENES = {
    "a branch": ("--branches", 3, "--mask"),
    "both": ("--continuous", 2, "--branches", 2, 3),
    "pictures": ("--scene", "visual"),
    "two behaviours": ("--behaviors", "A", "B"),
    "two teams": ("--scene", "duel"),
    "a crowd that comes and goes": ("--scene", "crowd"),
    "several sensors": ("--scene", "given", "--continuous", 1, "--shapes", "8", "20x23", "3x8x8"),
}
CHECKED = [
    pytest.param(kind, arguments, id=f"{kind}-{name}", marks=[pytest.mark.slow] if (number + turns) % 2 else [])
    for turns, kind in enumerate(("at once", "by turns"))
    for number, (name, arguments) in enumerate(SCENES.items())
]
"""Each scene in one of the two kinds of environments; in the other as well under `-m slow`."""


@pytest.mark.lengthy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "arguments"), CHECKED)
def test_pettingzoo_s_own_checkers_find_nothing(unity, kind, arguments):
    program = unity("--agents", 3, "--max-steps", 12, *arguments)
    if kind == "at once":
        pettingzoo_test.parallel_api_test(UnityParallelEnv(program), num_cycles=30)
    else:
        pettingzoo_test.api_test(UnityAECEnv(program), num_cycles=30)


@pytest.mark.lengthy
def test_side_channels_are_found_by_their_class(unity):
    channel = EngineConfigurationChannel()
    program = unity(side_channels=[channel])
    assert UnityParallelEnv(program).side_channel == {"EngineConfigurationChannel": channel}
    assert UnityAECEnv(program).side_channel["EngineConfigurationChannel"] is channel
