from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from environment_requests import group_of
from fakes import at_once

from headrace.config import EnvironmentSettings, ObservationSettings, RoleSettings
from headrace.config.environment import WrapperSettings
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.errors import BrokenEnvironmentError, LoadError, StageError

MODULE = """
import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

class Own:
    def __init__(self, num_envs, behavior, size=1):
        self.num_envs, self.behavior_specs, self.size, self.behavior = num_envs, {}, size, behavior
    def reset(self, seed=None): ...
    def step(self, actions): ...
    def close(self): ...

def single(g=10.0):
    return gymnasium.make("Pendulum-v1", g=g)

def vector(num_envs, g=10.0):
    return SyncVectorEnv([lambda: single(g)] * num_envs)

def failing():
    raise OSError("no such device")

def nothing():
    return 5

number = 5

def crowd(agents=2):
    from small_zoo import Crowd

    return Crowd({f"a_{number}": (0, 3, 1.0) for number in range(agents)})

def same(env):
    return env

def scaled(env, scale=2.0):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * scale)

def table():
    return gymnasium.wrappers.ReshapeObservation(single(), (3, 1))

gymnasium.register("FactoryTest-v0", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=9)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "factory_module.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("factory_module", None)
    gymnasium.registry.pop("FactoryTest-v0", None)


def by_factory(attribute, **options):
    return EnvironmentSettings(kind="gymnasium", factory=f"factory_module:{attribute}", options=options)


def test_a_gymnasium_id_gives_a_gymnasium_group():
    group = group_of(EnvironmentSettings(kind="gymnasium", id="Pendulum-v1", options={"g": 3.0}), "P", 3)

    assert isinstance(group, GymnasiumGroup)
    assert group.num_envs == 3
    group.reset(0)
    assert list(group.behavior_specs) == ["P"]
    group.close()


def test_an_id_may_name_a_module_next_to_the_yaml(folder):
    settings = EnvironmentSettings(kind="gymnasium", id="factory_module:FactoryTest-v0")

    group = group_of(settings, "P", 2, folder)

    assert group.num_envs == 2
    group.close()


def test_a_missing_module_of_an_id_is_reported(folder):
    settings = EnvironmentSettings(kind="gymnasium", id="factory_modul:FactoryTest-v0")

    with pytest.raises(LoadError, match=r"'factory_modul:FactoryTest-v0': no module named .*mean 'factory_module'\?"):
        group_of(settings, "P", 2, folder)


@pytest.mark.parametrize("attribute", ["single", "vector"])
def test_a_factory_may_give_single_environments_or_a_vector_of_them(folder, attribute):
    group = group_of(by_factory(attribute, g=2.5), "P", 3, folder)

    assert isinstance(group, GymnasiumGroup)
    steps = group.reset(4).steps["P"]
    assert steps.observations[0].shape == (3, 3)
    assert len(np.unique(steps.observations[0], axis=0)) == 3
    group.close()


def test_a_user_s_group_is_used_unchanged(folder):
    group: Any = group_of(by_factory("Own", size=8), "P", 3, folder)

    assert type(group).__name__ == "Own"
    assert (group.num_envs, group.behavior, group.size) == (3, "P", 8)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("factory_module:number", r"environment wrapper 'factory_module:number': expected a class or function, got 5"),
        ("factory_module:scald", r"environment wrapper 'factory_module:scald': .* did you mean 'scaled'\?"),
    ],
)
def test_an_invalid_wrapper_is_reported(folder, use, message):
    settings = EnvironmentSettings(kind="gymnasium", id="Pendulum-v1", wrappers=(WrapperSettings(use=use),))

    with pytest.raises(LoadError, match=message):
        group_of(settings, "P", 1, folder)


def test_settings_of_observations_reach_the_group(folder):
    asked = {"observation": ObservationSettings(kind="set")}
    settings = EnvironmentSettings(kind="gymnasium", factory="factory_module:table", observations=asked)

    group = group_of(settings, "P", 2, folder)

    group.reset(0)
    assert group.behavior_specs["P"].observations[0].kind == "set"
    group.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wrappers", (WrapperSettings(use="a:b"),)),
        ("observations", {"observation": ObservationSettings(goal=True)}),
        ("behaviors", {"*": RoleSettings(behavior="B")}),
        ("rotate_sides", True),
    ],
)
def test_settings_that_a_user_s_group_can_not_have_are_refused(folder, key, value):
    kind = "pettingzoo" if key in ("behaviors", "rotate_sides") else "gymnasium"
    settings = EnvironmentSettings(kind=kind, factory="factory_module:Own", **{key: value})

    with pytest.raises(StageError, match=rf"environment\.{key}: can't be combined with .* an EnvironmentGroup"):
        group_of(settings, "P", 2, folder)


def test_options_that_a_factory_does_not_take_are_reported(folder):
    with pytest.raises(
        StageError, match=r"environment\.options: .* does not accept {.*'wheels'.*; its parameters are \(g=10\.0\)"
    ):
        group_of(by_factory("single", wheels=3), "P", 3, folder)


def test_a_factory_that_raises_is_reported(folder):
    with pytest.raises(BrokenEnvironmentError, match="'factory_module:failing' raised OSError: no such device"):
        group_of(by_factory("failing"), "P", 3, folder)


def test_a_factory_that_gives_no_environment_is_reported(folder):
    with pytest.raises(LoadError, match=r"'factory_module:nothing' returned an int; expected a gymnasium\.Env"):
        group_of(by_factory("nothing"), "P", 3, folder)


def test_a_factory_that_can_not_be_called_is_reported(folder):
    with pytest.raises(LoadError, match="expected a callable that makes an environment, got 5"):
        group_of(by_factory("number"), "P", 3, folder)


def test_an_unknown_built_in_game_is_reported_with_a_suggestion():
    with pytest.raises(StageError, match=r"'Voley' is not a built-in game; did you mean 'Volley'\?"):
        group_of(EnvironmentSettings(kind="builtin", id="Voley"), "B", 1)
    with pytest.raises(StageError, match="'Chess' is not a built-in game; available: Volley"):
        group_of(EnvironmentSettings(kind="builtin", id="Chess"), "B", 1)
    with pytest.raises(StageError, match=r"'connect_four' is not a built-in game; did you mean 'ConnectFour'\?"):
        group_of(EnvironmentSettings(kind="builtin", id="connect_four"), "B", 1)


@pytest.mark.parametrize(
    ("game", "behaviors"), [("ConnectFour", {"Ball"}), ("Pursuit", {"Pursuer", "Evader"}), ("Volley", {"Ball"})]
)
def test_built_in_games_are_found_by_name(game, behaviors):
    group = group_of(EnvironmentSettings(kind="builtin", id=game), "Ball", 3)

    assert group.num_envs == 3
    assert {behavior_id.partition("?")[0] for behavior_id in group.behavior_specs} == behaviors


def zoo(**more):
    return EnvironmentSettings(kind="pettingzoo", factory="factory_module:crowd", **more)


def test_a_factory_may_give_pettingzoo_environments(folder):
    group = group_of(zoo(options={"agents": 3}), "Crowd", 4, folder)

    assert isinstance(group, PettingZooGroup)
    assert len(group.reset(0).steps["Crowd"].agent_ids) == 12
    group.close()


def test_settings_of_pettingzoo_reach_the_group(folder):
    roles = {"a_0": RoleSettings(behavior="One", team=1), "*": RoleSettings(behavior="Two", team=0)}
    wrapped = (WrapperSettings(use="factory_module:same"),)

    group = group_of(zoo(behaviors=roles, outcome="last_reward", wrappers=wrapped), "", 1, folder)

    group.reset(0)
    assert list(group.behavior_specs) == ["One?team=1", "Two?team=0"]
    with pytest.raises(StageError, match=r"environment\.rotate_sides: the sides can't be swapped"):
        group_of(zoo(behaviors=roles, rotate_sides=True), "", 1, folder)


def test_a_pettingzoo_id_is_a_module_next_to_the_yaml(folder):
    (folder / "factory_meadow_v0.py").write_text("from small_zoo import Counting as env")
    settings = EnvironmentSettings(kind="pettingzoo", id="factory_meadow_v0", options={"target": 3})

    group = group_of(settings, "Count", 2, folder)

    assert list(at_once(group.reset(0)).steps) == ["Count?team=0", "Count?team=1"]
    with pytest.raises(
        StageError, match=r"environment\.options: PettingZoo environment 'factory_meadow_v0' does not accept {'goal'"
    ):
        group_of(settings.model_copy(update={"options": {"goal": 3}}), "Count", 2, folder)
    sys.modules.pop("factory_meadow_v0")


def test_an_option_that_a_built_in_game_does_not_know_is_reported():
    with pytest.raises(
        StageError,
        match=r"environment\.options: built-in game 'Volley' does not accept {'wheels': .*; its parameters are",
    ):
        group_of(EnvironmentSettings(kind="builtin", id="Volley", options={"wheels": 3}), "B", 1)
