"""Environments as objects: which of them leave their process, and who may have one."""

from __future__ import annotations

import threading

import gymnasium
import pytest
from environment_requests import request_of

from headrace.config import EnvironmentSettings
from headrace.queues.codec import pack, unpack
from headrace.stages.environments.factory import call_factory, make_group
from headrace.stages.environments.given import (
    GivenEnvironment,
    GivenObject,
    carried,
    find_given,
    giving,
    take_over,
    why_not_elsewhere,
)
from headrace.stages.errors import LoadError, StageError


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def settings(reference: str, num_envs: int = 1) -> EnvironmentSettings:
    return EnvironmentSettings(kind="gymnasium", factory=reference, num_envs=num_envs, behavior="Pole")


def test_a_closure_can_be_sent_to_another_process():
    gravity = 3.5
    with giving("<lambda>", GivenEnvironment([lambda: gymnasium.make("Pendulum-v1", g=gravity)])) as reference:
        assert reference == "headrace.given:lambda"
        ((_, content),) = unpack(pack(carried({"environment": {"factory": reference}}))).items()
    take_over({"headrace.given:sent": content})
    assert find_given("headrace.given:sent").maker(0)().unwrapped.g == 3.5


def test_two_runs_at_once_give_different_objects_of_one_name():
    with giving("make", GivenEnvironment([cartpole])) as one, giving("make", GivenEnvironment([cartpole])) as other:
        assert (one, other) == ("headrace.given:make", "headrace.given:make_2")


def test_an_environment_that_is_no_longer_available_is_refused_with_the_fix():
    with giving("make", GivenEnvironment([cartpole])) as reference:
        pass
    with pytest.raises(
        LoadError,
        match=r"'headrace.given:make': the environment was an object .*headrace.load\('results/<run-id>'\).resume",
    ):
        find_given(reference)


def test_an_environment_that_can_not_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(StageError, match="cannot pickle '_thread.lock' object"):
        GivenEnvironment([lambda: lock]).pickled()
    with pytest.raises(StageError, match="an environment object can't be sent to another process"):
        GivenEnvironment([GivenObject(cartpole())]).pickled()


def test_why_not_elsewhere_names_the_reason():
    with giving("a", GivenEnvironment([cartpole])) as made, giving("b", GivenEnvironment([GivenObject(0)])) as single:
        assert why_not_elsewhere(made) == why_not_elsewhere("my_env:MyEnv") == why_not_elsewhere(None) == ""
        assert why_not_elsewhere(single) == "TypeError: an environment object can't be sent to another process"


def test_an_environment_whose_modules_are_missing_is_named():
    take_over({"headrace.given:x": b"cno_such_module\nthing\n."})
    with pytest.raises(LoadError, match="can't be used in another process: ModuleNotFoundError: .*no_such_module"):
        find_given("headrace.given:x")


def test_each_instance_has_the_maker_of_its_number_over_all_actors():
    makers = [lambda number=number: number for number in range(4)]
    with giving("make", GivenEnvironment(makers)) as reference:
        first, second = (call_factory(request_of(settings(reference, 2), replica=replica), "it") for replica in (0, 1))
    assert (first[0], first[1]()) == (0, 1)
    assert (second[0], second[1]()) == (2, 3)


def test_an_object_is_used_by_one_group_at_a_time_and_stays_open():
    closed: list[str] = []

    class Told(gymnasium.Wrapper):
        def close(self) -> None:
            closed.append("closed")

    with giving("Told", GivenEnvironment([GivenObject(Told(cartpole()))])) as reference:
        group = make_group(request_of(settings(reference)))
        with pytest.raises(StageError, match="is a single object, but this run needs several"):
            make_group(request_of(settings(reference)))
        group.close()
        make_group(request_of(settings(reference))).close()
    assert not closed
