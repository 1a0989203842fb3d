"""What becomes of an environment that a caller of run() has: its kind, its behaviour's name, and where it is stepped."""

from __future__ import annotations

import logging
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TransformReward
from small_zoo import Crowd

from headrace.config import ConfigError, RunConfig, load_config
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.given_environment import given_to
from headrace.stages.environments.given import find_given
from headrace.stages.errors import StageError

BARE: dict[str, Any] = {"default_settings": {"max_steps": 7}}


def make_pole(**options: Any) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", **options)


def make_crowd() -> Crowd:
    return Crowd({"a_0": (0, 3, 1.0)})


def own() -> gymnasium.Env:
    """An object that gymnasium.make has not made."""
    return gymnasium.make("CartPole-v1").unwrapped.__class__()


class Bare(gymnasium.Wrapper):
    """A wrapper that does not keep its arguments."""


def arranged(config: Any, environment: Any) -> RunConfig:
    with given_to(config, environment) as loaded:
        return loaded


def told(environment: Any, config: Any = BARE) -> tuple[Any, ...]:
    """Kind, id or factory, behaviours, instances, and where they are stepped if it had to be chosen."""
    loaded = arranged(config, environment)
    section, actors = loaded.environment, loaded.pipeline.hosts.actors
    assert section is not None
    where = "" if actors.is_auto("kind") else actors.kind
    return section.kind, section.id or section.factory, list(loaded.behaviors), section.num_envs, where


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("CartPole-v1", ("gymnasium", "CartPole-v1", ["CartPole"], 1, "")),
        ("mpe2.simple_tag_v3", ("pettingzoo", "mpe2.simple_tag_v3", ["simple_tag"], 1, "")),
        (lambda: make_pole(), ("gymnasium", "headrace.given:CartPole", ["CartPole"], 1, "")),
        (partial(make_pole, render_mode=None), ("gymnasium", "headrace.given:CartPole", ["CartPole"], 1, "")),
        ([lambda: make_pole(), make_pole], ("gymnasium", "headrace.given:CartPole", ["CartPole"], 2, "")),
        (make_pole(), ("gymnasium", "CartPole-v1", ["CartPole"], 1, "")),
        (make_pole(max_episode_steps=9), ("gymnasium", "headrace.given:CartPole", ["CartPole"], 1, "")),
        (own(), ("gymnasium", "headrace.given:CartPoleEnv", ["CartPoleEnv"], 1, "inline")),
        (Bare(make_pole()), ("gymnasium", "headrace.given:CartPole", ["CartPole"], 1, "inline")),
        (gymnasium.make_vec("CartPole-v1", 3), ("gymnasium", "headrace.given:CartPole", ["CartPole"], 3, "inline")),
        (SimpleNamespace(num_envs=2, step_async=0, env_method=0, envs=[own(), own()]),
         ("gymnasium", "headrace.given:CartPoleEnv", ["CartPoleEnv"], 2, "inline")),
        (make_crowd(), ("pettingzoo", "headrace.given:Crowd", ["Crowd"], 1, "inline")),
        (lambda: make_crowd(), ("pettingzoo", "headrace.given:Crowd", ["Crowd"], 1, "")),
    ],
)  # fmt: skip
def test_every_kind_of_users_environment_is_recognised(environment, expected):
    assert told(environment) == expected


def test_an_id_that_only_this_process_has_registered_is_sent_with_what_makes_it():
    entry: Any = CartPoleEnv
    gymnasium.register("OnlyHere-v3", entry)
    try:
        assert told("OnlyHere-v3") == ("gymnasium", "headrace.given:OnlyHere", ["OnlyHere"], 1, "")
    finally:
        del gymnasium.registry["OnlyHere-v3"]


def test_settings_of_the_configuration_are_kept_with_the_object(tmp_path):
    (tmp_path / "own.yaml").write_text(
        "environment: {kind: gymnasium, id: Pendulum-v1, num_envs: 4, max_episode_steps: 9}\n"
        "behaviors: {Pole: {max_steps: 70}}\n"
    )
    file = tmp_path / "own.yaml"
    for config in (file, load_config(file)):
        loaded = arranged(config, lambda: 1 / 0)  # its kind and its behaviour are known: none is made before the run
        assert loaded.environment is not None
        assert (loaded.environment.num_envs, loaded.environment.max_episode_steps) == (4, 9)
        assert (loaded.environment.id, loaded.environment.behavior) == (None, "Pole")
        assert loaded.pipeline.hosts.actors.is_auto("kind")
    assert loaded.source_folder == tmp_path.resolve()


def test_objects_are_found_while_the_run_lasts():
    with given_to(BARE, own()) as loaded:
        assert loaded.environment is not None
        reference = str(loaded.environment.factory)
        assert find_given(reference)
    with pytest.raises(StageError, match="pass it again"):
        find_given(reference)


def test_the_log_reports_whether_an_object_is_stepped_in_main_or_made_again(caplog):
    caplog.set_level(logging.INFO, "headrace.pipeline.given_environment")
    arranged(BARE, Bare(make_pole()))
    assert (
        "The main process steps the environments, because the environment is an object that can't be recreated from its spec: its wrapper Bare"
        in (caplog.text)
    )
    arranged(BARE, make_pole())
    assert "makes the run's environments from the object's spec" in caplog.text


def test_the_object_itself_is_stepped_if_actors_are_inline_and_only_one_instance_is_needed():
    env = make_pole()
    config = {**BARE, "pipeline": {"hosts": {"actors": {"kind": "inline"}}}}
    with given_to(config, env) as loaded:
        assert loaded.environment is not None
        assert find_given(str(loaded.environment.factory)).maker(0)() is env


def test_an_environment_that_can_not_be_pickled_is_stepped_in_main(caplog):
    caplog.set_level(logging.INFO, "headrace.pipeline.given_environment")
    lock = threading.Lock()
    assert told(lambda: (make_pole(), lock)[0])[4] == "inline"
    assert "can't be sent to another process: TypeError: cannot pickle '_thread.lock' object" in caplog.text


@pytest.mark.parametrize(
    ("environment", "sections", "message"),
    [
        (5, {}, r"run\(environment=…\): expected a Gymnasium or PettingZoo environment, .*; got an int"),
        ([], {}, "the list is empty"),
        (lambda: 5, {}, "lambda returned an int; expected a Gymnasium or PettingZoo environment"),
        (lambda: 1 / 0, {}, "lambda raised ZeroDivisionError"),
        (make_pole, {"environment": {"kind": "gymnasium", "options": {}}, "behaviours": {}}, "behaviours"),
        (own(), {"environment": {"kind": "gymnasium", "num_envs": 4}}, "num_envs: 4 conflicts with"),
        ([own, own], {"pipeline": {"hosts": {"actors": {"replicas": 3}}}}, "which gives 2"),
        (own(), {"pipeline": {"hosts": {"actors": {"kind": "process"}}}}, "'process' is not possible, because the environment is"),
        (own(), {"evaluation": {"every": 100}}, "evaluation: needs a second environment"),
        (lambda: own(), {"pipeline": {"hosts": {"actors": {"kind": "ray"}}}}, "'ray' does not work with run"),
        (SimpleNamespace(num_envs=2, step_async=0, env_method=0, envs=[], venv=1), {}, "network_settings.normalize"),
        (SimpleNamespace(num_envs=2, step_async=0, env_method=0), {}, "pass the list of functions"),
    ],
)  # fmt: skip
def test_invalid_environments_and_conflicting_settings_are_refused(environment, sections, message):
    with pytest.raises((ConfigError, RunError), match=message):
        arranged({**BARE, **sections}, environment)


def test_a_resumed_run_keeps_the_reference_to_its_environment():
    before = {"environment": {"kind": "gymnasium", "factory": "headrace.given:Maze"}, "behaviors": {"Rat": {}}}
    assert told(lambda: make_pole(), before)[1] == "headrace.given:Maze"


def test_a_list_is_shared_by_actors():
    loaded = arranged({**BARE, "pipeline": {"hosts": {"actors": {"replicas": 2}}}}, [lambda: make_pole()] * 4)
    assert loaded.environment is not None
    assert loaded.environment.num_envs == 2


def test_a_function_of_the_script_is_sent_and_the_script_is_not_imported(monkeypatch):
    monkeypatch.setitem(make_pole.__globals__, "__name__", "__main__")
    monkeypatch.setattr(make_pole, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "make_pole", make_pole, raising=False)
    assert told(make_pole)[1] == "headrace.given:CartPole"


def test_copies_of_the_object_have_exactly_its_wrappers():
    for env in (make_pole().unwrapped, make_pole(), TransformReward(make_pole(max_episode_steps=9), float)):
        with given_to({**BARE, "environment": {"kind": "gymnasium", "num_envs": 2}}, [env] * 2) as loaded:
            assert loaded.environment is not None
            made = find_given(str(loaded.environment.factory)).maker(0)()
        assert str(made) == str(env)
