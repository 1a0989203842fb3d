"""Environments in which all agents act at once, as a group of instances."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_zoo import SEEN, Crowd, play

from headrace.config import RoleSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import BrokenEnvironmentError, NotFiniteError, StageError

TWO = {"red_0": (0, 3, 1.0), "blue_0": (0, 3, -2.0)}
TEAMS = {"red_*": RoleSettings(behavior="Red", team=0), "blue_*": RoleSettings(behavior="Blue", team=1)}


def group_of(*envs: Any, behavior: str = "All", **settings: Any) -> PettingZooGroup:
    return PettingZooGroup([instance_of(env, "Zoo") for env in envs], behavior, "Zoo", **settings)


def test_the_group_can_be_rendered():
    group = group_of(Crowd(TWO), Crowd(TWO))

    assert isinstance(group, EnvironmentGroup)
    play(group, 2)
    np.testing.assert_array_equal(group.render(1), np.full((4, 6, 3), 2))


def test_all_agents_decide_in_columns():
    group = group_of(Crowd(TWO), Crowd(TWO), roles={"*": RoleSettings()})
    first, second = play(group, 1)

    # Two agents that share a behaviour are opponents, and change sides from one instance to the next.
    zero, one = second.steps["All?team=0"], second.steps["All?team=1"]
    for steps in (zero, one):
        assert steps.ended == 0
        assert [steps.agent_ids.dtype, steps.env_ids.dtype, steps.episode_ids.dtype] == [np.int64, np.int32, np.int64]
        assert steps.rewards.dtype == np.float32
        np.testing.assert_array_equal(steps.env_ids, [0, 1])
        np.testing.assert_array_equal(steps.episode_ids, [0, 0])
    np.testing.assert_array_equal(zero.rewards, [1, -2])
    np.testing.assert_array_equal(one.rewards, [-2, 1])
    np.testing.assert_array_equal(zero.observations[0], [[0, 1], [1, 1]])
    np.testing.assert_array_equal(first.steps["All?team=0"].rewards, [0, 0])
    assert len({*zero.agent_ids.tolist(), *one.agent_ids.tolist()}) == 4


def test_behaviours_and_teams_follow_from_the_agents_names():
    group = group_of(Crowd(TWO), Crowd(TWO), roles=TEAMS)
    result = play(group, 1)[-1]

    assert list(group.behavior_specs) == ["Blue?team=1", "Red?team=0"]
    assert group.behavior_specs["Red?team=0"].team == 0
    np.testing.assert_array_equal(result.steps["Red?team=0"].rewards, [1, 1])
    np.testing.assert_array_equal(result.steps["Blue?team=1"].rewards, [-2, -2])


def test_behaviours_of_one_team_have_no_team_in_their_ids():
    group = group_of(Crowd(TWO), roles={"red_*": RoleSettings(behavior="Red"), "*": RoleSettings(behavior="Blue")})
    results = play(group, 3)

    assert list(group.behavior_specs) == ["Blue", "Red"]
    assert all(result.games is None for result in results), "a team alone plays no games"


def test_an_instance_restarts_within_the_tick_in_which_it_ends():
    group = group_of(Crowd(TWO, truncated=["blue_0"]), roles=TEAMS)
    last = play(group, 3)[-1]

    red, blue = last.steps["Red?team=0"], last.steps["Blue?team=1"]
    assert (red.ended, blue.ended) == (1, 1)
    np.testing.assert_array_equal(red.rewards, [1, 0])
    np.testing.assert_array_equal(red.episode_ids, [0, 1])
    assert red.agent_ids[0] == red.agent_ids[1]
    np.testing.assert_array_equal(red.observations[0], [[0, 3], [0, 0]])
    assert (red.terminated.tolist(), red.truncated.tolist()) == ([True], [False])
    assert (blue.terminated.tolist(), blue.truncated.tolist()) == ([False], [True])


def test_the_others_continue_after_an_agent_dies():
    group = group_of(Crowd({"red_0": (0, 1, 5.0), "red_1": (0, 3, 1.0), "blue_0": (0, 3, 0.0)}), roles=TEAMS)
    results = play(group, 3)

    died = results[1]
    np.testing.assert_array_equal(died.steps["Red?team=0"].rewards, [5, 1])
    assert died.steps["Red?team=0"].ended == 1
    assert len(died.games.env_ids) == 0, "an agent's end is not the end of its game"
    assert len(results[2].steps["Red?team=0"].agent_ids) == 1
    np.testing.assert_array_equal(results[3].games.env_ids, [0])
    np.testing.assert_array_equal(results[3].games.outcomes, [[1, 0]])
    again = results[3].steps["Red?team=0"]
    np.testing.assert_array_equal(again.episode_ids[again.ended :], [1, 1])


def test_agents_may_join_while_others_play():
    env = Crowd({"a_0": (0, 4, 1.0), "a_1": (2, 4, 3.0)})
    results = play(group_of(env, roles={"*": RoleSettings(team=0)}), 4)

    assert [len(result.steps["All"].agent_ids) for result in results] == [1, 1, 2, 2, 3]
    joined = results[2].steps["All"]
    np.testing.assert_array_equal(joined.rewards, [1, 0])
    np.testing.assert_array_equal(joined.observations[0], [[0, 2], [1, 2]])
    np.testing.assert_array_equal(results[3].steps["All"].rewards, [1, 3])


def test_terminated_agents_need_no_last_observation():
    group = group_of(Crowd({"a_0": (0, 1, 1.0), "a_1": (0, 2, 0.0)}, silent=True), roles={"*": RoleSettings(team=0)})
    steps = play(group, 1)[-1].steps["All"]

    assert steps.ended == 1
    assert steps.terminated[0]


def test_truncated_agents_need_a_last_observation():
    env = Crowd({"a_0": (0, 1, 1.0), "a_1": (0, 2, 0.0)}, truncated=["a_0"], silent=True)

    with pytest.raises(BrokenEnvironmentError, match=r"Zoo: step\(\) returned no observation for agent 'a_0'"):
        play(group_of(env), 1)


def test_an_agent_that_vanishes_with_the_game_but_without_an_end_is_reported():
    class Forgetful(Crowd):
        def step(self, actions):
            seen, rewards, terminations, *rest = super().step(actions)
            if not self.agents:
                del terminations["blue_0"]
            return seen, rewards, terminations, *rest

    with pytest.raises(BrokenEnvironmentError, match="'blue_0' is no longer in agents, but was neither terminated nor"):
        play(group_of(Forgetful(TWO)), 3)


def test_an_environment_that_raises_is_reported():
    class Failing(Crowd):
        def step(self, actions):
            raise OSError("no such device")

    with pytest.raises(
        BrokenEnvironmentError, match=r"Zoo: its step\(\) raised OSError: no such device \(at .*\.py:\d+, in step\)"
    ):
        play(group_of(Failing(TWO)), 1)


def test_actions_reach_the_agents_that_they_are_meant_for_in_the_form_of_their_space():
    both = spaces.Dict({"aim": spaces.Box(-2, 2, (1,), np.float32), "fire": spaces.Discrete(2)})
    envs = [Crowd(TWO, action_spaces={"red_0": both}) for _ in range(2)]
    group = group_of(*envs, roles=TEAMS)
    group.reset(0)

    group.step(
        {
            "Red?team=0": ActionBatch(np.array([[0.5], [-1]], np.float32), np.array([[1], [0]], np.int32)),
            "Blue?team=1": ActionBatch(np.zeros((2, 0), np.float32), np.array([[2], [1]], np.int32)),
        }
    )

    (first,), (second,) = envs[0].actions, envs[1].actions
    assert (float(first["red_0"]["aim"][0]), int(first["red_0"]["fire"]), int(first["blue_0"])) == (1.0, 1, 2)
    assert (float(second["red_0"]["aim"][0]), int(second["red_0"]["fire"]), int(second["blue_0"])) == (-2.0, 0, 1)


def test_each_instance_has_its_own_sequence_of_seeds():
    def seeds(seed):
        envs = [Crowd(TWO), Crowd(TWO)]
        play(group_of(*envs), 7, seed)
        return [env.seeds for env in envs]

    first, again, other = seeds(5), seeds(5), seeds(6)
    assert [some[0] for some in first] == [5, 6]
    assert first == again
    assert len({*first[0][1:], *first[1][1:]}) == 4, "later episodes are all different"
    assert first[0][1:] != other[0][1:]


def test_teams_change_sides_with_every_episode_and_start_differently():
    group = group_of(Crowd(TWO), Crowd(TWO), Crowd(TWO))
    results = play(group, 6)

    # The red agent's observation begins with 0; which team plays it, by instance:
    def red_is_team_0(result):
        steps = result.steps["All?team=0"]
        return (steps.observations[0][steps.ended :, 0] == 0).tolist()

    assert red_is_team_0(results[0]) == [True, False, True]
    assert red_is_team_0(results[3]) == [False, True, False]
    assert red_is_team_0(results[6]) == [True, False, True]
    np.testing.assert_array_equal(results[3].games.outcomes, [[1, 0], [0, 1], [1, 0]])


def test_rotate_sides_false_keeps_the_sides():
    results = play(group_of(Crowd(TWO), Crowd(TWO), rotate_sides=False), 3)

    np.testing.assert_array_equal(results[3].games.outcomes, [[1, 0], [1, 0]])
    assert (results[3].steps["All?team=0"].observations[0][:, 0] == 0).all()


@pytest.mark.parametrize("roles", [TEAMS, {"*": RoleSettings(behavior="One", team=0)}])
def test_sides_that_differ_can_not_be_changed(roles):
    env = Crowd(TWO)
    with pytest.raises(StageError, match="environment.rotate_sides: the sides can't be swapped"):
        group_of(env, roles=roles, rotate_sides=True)
    assert env.closed == 1


def test_a_game_is_won_by_the_sum_of_a_teams_rewards_or_by_the_last_ones():
    script = {"red_0": (0, 4, 1.0), "red_1": (0, 1, -2.5), "blue_0": (0, 4, 0.6)}

    by_return = play(group_of(Crowd(script), roles=TEAMS), 4)[-1].games  # red 4 - 2.5, blue 2.4
    by_last = play(group_of(Crowd(script), roles=TEAMS, outcome="last_reward"), 4)[-1].games  # red 1 - 2.5, blue 0.6

    np.testing.assert_array_equal(by_return.outcomes, [[0, 1]])
    np.testing.assert_array_equal(by_last.outcomes, [[0, 1]])
    level = {"red_0": (0, 4, 0.6), "blue_0": (0, 4, 0.6), "blue_1": (0, 2, 0.1)}
    won = play(group_of(Crowd(level), roles=TEAMS), 4)[-1].games
    np.testing.assert_array_equal(won.outcomes, [[0, 1]])
    lost_early = {"red_0": (0, 4, 0.6), "blue_0": (0, 4, 0.7), "blue_1": (0, 2, -0.4)}
    rules = [
        play(group_of(Crowd(lost_early), roles=TEAMS, outcome=rule), 4)[-1].games for rule in ("return", "last_reward")
    ]
    np.testing.assert_array_equal(rules[0].outcomes, [[1, 0]])  # 2.4 against 2.8 - 0.8
    np.testing.assert_array_equal(rules[1].outcomes, [[1, 0]])  # 0.6 against 0.7 - 0.4


def test_a_team_may_be_a_group():
    script = {"red_0": (0, 2, 1.0), "red_1": (0, 2, 1.0), "blue_0": (0, 2, 0.0)}
    roles = {**TEAMS, "red_*": RoleSettings(behavior="Red", team=0, group=True)}
    group = group_of(Crowd(script), Crowd(script), roles=roles)
    result = play(group, 1)[-1]

    red, blue = result.steps["Red?team=0"], result.steps["Blue?team=1"]
    assert group.behavior_specs["Red?team=0"].grouped
    assert not group.behavior_specs["Blue?team=1"].grouped
    np.testing.assert_array_equal(red.group_ids[:2], red.group_ids[0])
    assert 0 < red.group_ids[0] != red.group_ids[2] > 0
    assert blue.group_ids is None


class Secretive(Crowd):
    """As a world that makes its agents as it goes: it has no possible_agents."""

    def __init__(self, script):
        super().__init__(script)
        self.names = list(script)
        del self.possible_agents

    def seen_by(self, agents):
        for agent in agents:
            self._seen[agent][:] = self.names.index(agent), self._time
        return {agent: self._seen[agent] for agent in agents}


def test_unknown_agents_get_their_behaviour_when_they_join():
    script = {"worker_0": (0, 9, 1.0), "queen_0": (1, 9, 0.0)}
    roles = {"worker_*": RoleSettings(behavior="Worker"), "queen_*": RoleSettings(behavior="Queen")}
    group = group_of(Secretive(script), roles=roles)
    group.reset(0)
    assert set(group.behavior_specs) == {"Worker"}
    result = play(group, 1)[-1]
    assert set(group.behavior_specs) == {"Worker", "Queen"}
    np.testing.assert_array_equal(result.steps["Queen"].observations[0], [[1, 1]])


def test_masks_may_come_in_infos():
    group = group_of(Crowd(TWO, infos={"action_mask": np.array([1, 0, 1])}), roles=TEAMS)
    result = play(group, 1)[-1]

    assert group.behavior_specs["Red?team=0"].actions.masked
    np.testing.assert_array_equal(result.steps["Red?team=0"].action_masks, [[True, False, True]])


def test_an_episode_that_is_over_at_once_is_reported():
    with pytest.raises(BrokenEnvironmentError, match="so the episode ended before any agent could act"):
        group_of(Crowd({"a": (1, 2, 0.0)})).reset(0)


def test_rendering_without_a_render_mode_is_refused():
    env = Crowd(TWO)
    env.render_mode = None

    with pytest.raises(
        StageError, match=r"\(Crowd\) renders no images: .* render_mode None; its metadata lists render_modes .*\[\]"
    ):
        group_of(env).render()


def test_observation_settings_apply_to_the_behaviours_that_have_this_observation():
    from headrace.config import ObservationSettings

    camera = spaces.Dict({"camera": spaces.Box(0, 255, (16, 16, 3), np.uint8), "goal": SEEN})

    class Seeing(Crowd):
        def seen_by(self, agents):
            seen = super().seen_by(agents)
            return {
                agent: {"camera": np.zeros((16, 16, 3), np.uint8), "goal": seen[agent]}
                if agent == "red_0"
                else seen[agent]
                for agent in agents
            }

    env = Seeing(TWO, observation_spaces={"red_0": camera})
    group = group_of(env, roles=TEAMS, observations={"goal": ObservationSettings(goal=True)})
    group.reset(0)

    red, blue = (group.behavior_specs[name].observations for name in ("Red?team=0", "Blue?team=1"))
    assert [(o.name, o.kind, o.goal) for o in red] == [("camera", "image", False), ("goal", "vector", True)]
    assert [(o.name, o.goal) for o in blue] == [("observation", False)]
    with pytest.raises(StageError, match="it has no observation 'gaol'; did you mean 'goal'"):
        group_of(
            Seeing(TWO, observation_spaces={"red_0": camera}), roles=TEAMS, observations={"gaol": ObservationSettings()}
        )


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (np.nan, "nan; expected a finite number"),
        (-np.inf, "-inf; expected a finite number"),
        (1e300, "1e+300, which is too large for float32"),
        (-(10**400), "-1.79769e+308 or beyond, which is too large for float32"),
        (Decimal("1e400"), "1.79769e+308 or beyond, which is too large for float32"),
    ],
)
@pytest.mark.parametrize("roles", [TEAMS, {"*": RoleSettings(team=0)}], ids=["a game", "no game"])
def test_a_reward_that_is_not_finite_is_reported_by_agent_and_instance(reward, words, roles):
    group = group_of(Crowd(TWO), Crowd({**TWO, "blue_0": (0, 3, reward)}), behavior="Blue", roles=roles)
    with pytest.raises(NotFiniteError) as refused:
        play(group, 1)
    assert str(refused.value).startswith(f"Zoo: agent 'blue_0' of Blue in instance 1: its reward is {words}")
