"""What peculiar environments need to be trained as they are, or which words they are refused with."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.singles import SingleEnvs, make_vector
from headrace.stages.environments.protocol import maybe_await
from headrace.stages.errors import BrokenEnvironmentError, LoadError, StageError

MODULE = "odd_environments_of_this_test"


class Plain(gymnasium.Env):
    """Four steps; observes a number that the seed decides."""

    observation_space: gymnasium.Space = Box(0, 1, (1,), np.float32)
    action_space: gymnasium.Space = Discrete(2)
    taken = 0

    def seen(self):
        return np.array([self.np_random.random()], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self.seen(), {}

    def step(self, action):
        self.taken += 1
        return self.seen(), 1.0, self.taken >= 4, False, {}


@pytest.fixture
def group_of(monkeypatch):
    """Makes the group of a configuration whose factory and wrappers are given."""

    def make(factory, wrappers=(), num_envs=2, **section):
        module = ModuleType(MODULE)
        module.make = factory  # type: ignore[attr-defined]
        for wrapper in wrappers:
            setattr(module, wrapper.__name__, wrapper)
        monkeypatch.setitem(sys.modules, MODULE, module)
        used = [{"use": f"{MODULE}:{wrapper.__name__}"} for wrapper in wrappers]
        environment = {"kind": "gymnasium", "factory": f"{MODULE}:make", "num_envs": num_envs, **section}
        config = RunConfig.from_plain({"environment": {**environment, "wrappers": used}, "behaviors": {"B": {}}})
        group = make_group(EnvironmentRequest(config))
        made.append(group)
        return group

    made: list = []
    yield make
    for group in made:
        group.close()


def actions(count=2):
    return {"B": ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))}


# Classes that are both Env and VectorEnv, as EnvPool's are.


class Pool(gymnasium.Env, VectorEnv):  # type: ignore[misc]
    """As EnvPool's: `observation_space` is that of one instance, and nothing is said of autoreset."""

    metadata: dict = {}

    def __init__(self, num_envs=2):
        self.envs = SyncVectorEnv([Plain] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.num_envs = num_envs
        self.observation_space = self.single_observation_space = Plain.observation_space
        self.action_space = self.single_action_space = Plain.action_space

    def reset(self, *, seed=None, options=None):
        return self.envs.reset(seed=seed)

    def step(self, actions):
        return self.envs.step(actions)

    def close(self, **arguments):
        self.envs.close()


@pytest.mark.parametrize("limit", [None, 3])
def test_an_environment_that_is_single_and_vectorised_is_taken_for_vectorised(group_of, limit):
    group = group_of(Pool, max_episode_steps=limit)

    async def play():
        return [await maybe_await(group.reset, 0)] + [
            await maybe_await(group.step, actions()) for _ in range(limit or 4)
        ]

    ticks = [tick.steps["B"] for tick in asyncio.run(play())]
    assert [len(steps.agent_ids) for steps in ticks][:3] == [2, 2, 2]
    assert (ticks[-1].ended, ticks[-1].truncated.any()) == (2, limit is not None)


# Options that a vectorised implementation lacks.


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("env_id", "options", "shape"),
    [("ALE/Pong-v5", {"obs_type": "ram"}, (128,)), ("ALE/Pong-v5", {"frameskip": (2, 5)}, (210, 160, 3))],
)
def test_options_that_a_vectorised_implementation_lacks_make_single_environments(env_id, options, shape, caplog):
    pytest.importorskip("ale_py")
    with caplog.at_level(logging.INFO):
        envs = make_vector(env_id, 2, options, "Env")

    assert isinstance(envs, SingleEnvs)
    assert envs.single_observation_space.shape == shape
    (text,) = [record.getMessage() for record in caplog.records if "single environments" in record.getMessage()]
    assert text.startswith(f"{env_id} runs as single environments (sync): its vectorised implementation does not")
    envs.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of CartPole in Gymnasium 1.1
def test_options_that_no_implementation_has_are_refused(caplog):
    with caplog.at_level(logging.INFO), pytest.raises(BrokenEnvironmentError, match="'wheels'"):
        make_vector("CartPole-v1", 2, {"wheels": 3}, "Env")
    assert "single environments" not in caplog.text


def test_a_reset_without_a_seed_is_reported_with_its_class(group_of):
    class Unseeded(Plain):
        def reset(self):  # type: ignore[override]
            return self.seen(), {}

    with pytest.raises(
        BrokenEnvironmentError,
        match=r"its reset\(\) raised TypeError: .*Unseeded\.reset\(\) got an unexpected .*'seed'",
    ):
        group_of(Unseeded).reset(0)


# Errors inside installed packages.


def test_an_error_of_gymnasiums_own_environments_shows_its_line(monkeypatch):
    envs = make_vector("Pendulum-v1", 1, {}, "Gymnasium environment 'Pendulum-v1'")
    envs.reset()
    assert isinstance(envs, SingleEnvs)
    del envs.envs[0].unwrapped.state  # type: ignore[attr-defined]
    with pytest.raises(BrokenEnvironmentError, match=r"'Pendulum-v1': .*'state'.* \(at .*pendulum.py:\d+, in step\)"):
        envs.step(np.zeros((1, 1), np.float32))


# Old Gym.


@pytest.fixture
def gym(monkeypatch):
    """A stand-in of the package `gym`."""
    package = ModuleType("gym")
    package.Env = type("Env", (), {"__module__": "gym.core"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gym", package)
    return package


def test_a_class_of_old_gym_is_refused_with_its_converter(group_of, gym):
    with pytest.raises(LoadError, match=r"returned an Old; expected a gymnasium.Env.* shimmy converts environments"):
        group_of(type("Old", (gym.Env,), {}))


def test_an_id_of_old_gym_is_refused_with_its_converter(gym):
    with pytest.raises(StageError, match=r'environment: {id: "shimmy:GymV21Environment-v0"') as caught:
        make_vector("Old-v0", 1, {}, "Env")
    assert caught.value.key == ("environment", "id")


@pytest.mark.parametrize("limited", [False, True])
def test_four_values_are_refused_with_the_converter(group_of, limited):
    class Four(Plain):
        def step(self, action):
            return self.seen(), 1.0, False, {}

    group = group_of(Four, max_episode_steps=9 if limited else None)
    group.reset(0)
    with pytest.raises(BrokenEnvironmentError, match="split `done` into .*GymV21Environment-v0"):
        group.step(actions())


# What else may be odd.


@pytest.mark.parametrize("made", [object, dict, lambda: None, lambda: [Plain()]])
def test_objects_that_are_not_environments_are_refused(group_of, made):
    with pytest.raises(
        LoadError, match="returned an? .*; expected a gymnasium.Env, a gymnasium.vector.VectorEnv or an Env"
    ):
        group_of(made)


def test_the_error_for_a_class_with_an_environments_methods_suggests_deriving_from_env(group_of):
    class Duck:
        observation_space, action_space = Plain.observation_space, Plain.action_space
        reset, step = Plain.reset, Plain.step

    with pytest.raises(LoadError, match=r"returned a Duck; .*\. Derive its class from gymnasium.Env"):
        group_of(Duck)


def test_a_class_instead_of_an_instance_is_refused(group_of):
    with pytest.raises(
        LoadError, match=r"returned a type; expected .*\. It is a class; return an instance of the class"
    ):
        group_of(lambda: Plain)


def test_instances_that_differ_in_their_spaces_are_refused(group_of):
    sizes = iter([2, 3])
    with pytest.raises(
        StageError, match=r"instance 1 has the action_space Discrete\(3\), but instance 0 has Discrete\(2\); expe"
    ):
        group_of(lambda: type("Varying", (Plain,), {"action_space": Discrete(next(sizes))})())


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize(("space", "words"), [(None, "it has no"), ({"n": 2}, "its .* is {'n': 2} of builtins")])
def test_spaces_must_be_there(group_of, which, space, words):
    with pytest.raises(StageError, match=f"{words}.* a space from gymnasium.spaces"):
        group_of(type("Bare", (Plain,), {which: space}))


class Swallowing(gymnasium.Wrapper):
    def step(self, action):
        self.env.step(action)


class Misshapen(Plain):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.lengthy
@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # Gymnasium's own words about it
@pytest.mark.parametrize(
    ("env", "wrapper", "words"),
    [
        (Misshapen, None, r"ValueError: could not broadcast input array from shape \(2,\)"),
        (Plain, Swallowing, "TypeError: cannot unpack non-iterable NoneType"),
    ],
)
def test_an_environment_that_breaks_in_its_process_is_reported(env, wrapper, words, monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})
    gymnasium.register("Apart-v0", env)
    vector = make_vector("Apart-v0", 2, {"vectorization_mode": "async"}, "Env", wrapper)
    group = GymnasiumGroup(vector, "B", "Env")
    group.reset(0)
    with pytest.raises(BrokenEnvironmentError, match=rf"^Env: its step\(\) raised {words}"):
        group.step(actions())


# Rewards that are vectors, by design.


class Weighing(Plain):
    """Rewards two things."""

    reward: Any = np.array([0.0, -1.0], np.float32)

    def step(self, action):
        seen, _, *others = super().step(action)
        return seen, self.reward, *others


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("reward", [np.array([0.0, -1.0], np.float32), [0, 0]])
def test_a_vector_of_rewards_is_refused_without_a_restart(group_of, reward, num_envs):
    group = group_of(type("Weighing", (Weighing,), {"reward": reward}), num_envs=num_envs)
    where = "" if num_envs == 1 else ", instance 0"

    async def play():
        await maybe_await(group.reset, 0)
        await maybe_await(group.step, actions(num_envs))

    with pytest.raises(StageError, match=rf"make'{where}: step\(\) returned reward .*; expected a num.* weigh") as it:
        asyncio.run(play())
    assert not isinstance(it.value, BrokenEnvironmentError), "it would be restarted in vain"


# Ids that nobody registers, and factories that are not asked for the number of instances.


def test_an_unknown_id_is_refused_with_the_form_for_ids_of_own_modules():
    with pytest.raises(StageError, match="doesn't exist.* name its module: my_module:Duel-v0"):
        make_vector("Duel-v0", 1, {}, "Env")
    with pytest.raises(StageError, match=r"Environment `Duel` doesn't exist\.$"):
        make_vector(f"{__name__}:Duel-v0", 1, {}, "Env")


def test_a_factory_that_takes_any_option_can_be_given_the_number_of_instances(group_of):
    def make(**options):
        return SyncVectorEnv([Plain] * options.get("num_envs", 1))

    with pytest.raises(StageError, match="an argument num_envs to it, or set its number in environment.options$"):
        group_of(make)
    assert group_of(make, options={"num_envs": 2}, max_episode_steps=3).num_envs == 2
