"""Makes the environments of a Gymnasium group, and steps single environments one after another, in this process.

The environments are made from an id or from a factory's result. The result is the environment's own vectorised
implementation if it has one, otherwise single environments. Instances need no separate processes, because actors are
already processes. Wrappers apply to single environments, and only single environments have windows, so both require
single environments, unless the options request another implementation.

Single environments' results are unpacked without checks. If that fails, the messages in `checks` say what the
environment has returned, and how to convert environments that use the old package `gym` or its four-value `step` API.
"""

from __future__ import annotations

import copy
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from headrace.stages.environments.checks import (
    addresses_of,
    described,
    flag_problem,
    info_problem,
    observation_problem,
    raise_broken,
    reward_problem,
    space_problem,
    stack,
)
from headrace.stages.environments.factory import HUMAN, make_all
from headrace.stages.environments.spaces.masks import MASK, like_masks
from headrace.stages.errors import BrokenEnvironmentError, StageError, describe_fault, error_summary

AnyEnv = gymnasium.Env[Any, Any]
Wrap = Callable[[AnyEnv], AnyEnv]
"""Function that wraps a single environment in all wrappers."""

log = logging.getLogger(__name__)


def make_vector(
    env_id: str,
    num_envs: int,
    options: Mapping[str, Any],
    name: str,
    wrap: Wrap | None = None,
    singly: bool = False,
) -> Envs:
    """Make a vector environment or single environments from a registered id.

    Args:
        env_id: the id in Gymnasium's registry; `module:id` first imports the module that registers it.
        num_envs: number of instances.
        options: keyword arguments for the environment. `vectorization_mode` chooses among its implementations (`sync`,
            `vector_entry_point`, `async`). Without this option, the vectorised implementation is preferred.
        name: the environment's name, used in messages.
        wrap: wraps each single environment; if given, single environments are preferred.
        singly: True to prefer single environments in any case.

    Raises:
        StageError: if the environment does not exist, its package is not installed, or wrappers don't work with the
            `vectorization_mode`.
        BrokenEnvironmentError: if the environment fails while it is made.
    """
    if env_id.startswith("ALE/") and env_id not in gymnasium.registry:
        try:
            importlib.import_module("ale_py")  # registers the ids
        except ImportError as error:
            raise StageError(
                f"{name} belongs to the package ale-py, which can't be imported ({error}); install it with: python -m "
                "pip install ale-py"
            ) from error
    try:
        return _make(env_id, num_envs, dict(options), wrap, singly, name)
    except StageError:
        raise
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        unprefixed = ":" not in env_id and not isinstance(error, gymnasium.error.DeprecatedEnv)
        hint = f" For your own environment, name its module: my_module:{env_id}" if unprefixed else ""
        old = f"; {OLD_GYM}" if "gym" in sys.modules else ""
        raise StageError(f"{name}: {error}{hint}{old}", key=("environment", "id")) from error
    except Exception as error:
        raise BrokenEnvironmentError(
            f"{name}: creating {num_envs} instances with options {dict(options)} raised {describe_fault(error)}",
            key=("environment", "options") if options and isinstance(error, TypeError) else (),
        ) from error


def vectorise(
    env: AnyEnv | AnyVectorEnv, make: Callable[[], AnyEnv], num_envs: int, name: str, wrap: Wrap | None = None
) -> Envs:
    """Make single environments from a factory's result, or return its vector environment.

    Args:
        env: a vector environment, or the first of the single environments.
        make: makes another single environment.
        num_envs: number of instances.
        name: the environment's name, used in messages.
        wrap: wraps each single environment.

    Raises:
        StageError: if a vector environment has the wrong size or would need wrapping.
        StageError, BrokenEnvironmentError: in the same cases as `make_all`.
    """
    if isinstance(env, VectorEnv):
        if wrap is not None:
            env.close()
            raise StageError(
                f"{name} returned a vector environment, but environment.wrappers apply to single environments; wrap "
                "the environments inside it"
            )
        if env.num_envs == num_envs:
            return env
        env.close()
        raise StageError(
            f"{name} returned a vector environment of {env.num_envs} instances, but {num_envs} are needed; add an "
            "argument num_envs to it, or set its number in environment.options"
        )
    return SingleEnvs(make_all(env, make, num_envs, name), name, wrap)


def _make(env_id: str, num_envs: int, options: dict[str, Any], wrap: Wrap | None, singly: bool, name: str) -> Envs:
    module, _, registered = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    mode = options.pop("vectorization_mode", None)
    has_vectorised, lacks = False, ""
    if mode is None:
        spec = gymnasium.registry.get(registered)
        has_vectorised = spec is not None and spec.vector_entry_point is not None and not spec.additional_wrappers
        lacks = "has no window" if options.get("render_mode") == HUMAN else ""
        if has_vectorised and not lacks and wrap is None and not singly:
            try:
                return gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
            except Exception as error:
                if not options:
                    raise
                lacks = f"does not accept these options ({error_summary(error)})"
        mode = "sync"
    if mode == "sync":
        options = {"disable_env_checker": True, **options}  # `checks` has clearer messages
        singles = SingleEnvs((gymnasium.make(env_id, **options) for _ in range(num_envs)), name, wrap)
        if has_vectorised and lacks:
            log.info("%s runs as single environments (sync): its vectorised implementation %s.", env_id, lacks)
        return singles
    if wrap is not None and mode == "vector_entry_point":
        raise StageError(
            "environment.wrappers apply to single environments, and vectorization_mode 'vector_entry_point' has no "
            "single environments; leave one of the two out"
        )
    if mode != "vector_entry_point":
        wrappers: Any = [*([wrap] if wrap is not None else []), partial(prepared, name=name)]
        options = {"disable_env_checker": True, **options}
        return gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode, wrappers=wrappers, **options)
    envs = gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode, **options)
    if options.get("render_mode") == HUMAN and HUMAN not in envs.metadata.get("render_modes", ()):
        envs.close()
        raise StageError(
            f"environment.options: the vectorised implementation of {env_id} has no window, so render_mode human can't "
            "be combined with vectorization_mode 'vector_entry_point'; leave one of the two out"
        )
    return envs


class ParameterisedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes the parameters of each episode to a single environment, as options of every `reset`.

    Args:
        env: the environment.
        options: returns an episode's parameters. It is called once for each episode.
    """

    def __init__(self, env: AnyEnv, options: Callable[[], Mapping[str, float]]) -> None:
        super().__init__(env)
        self._options = options

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with these options and the parameters; the parameters take precedence."""
        return self.env.reset(seed=seed, options={**(options or {}), **self._options()})


_OLD_STEP = "four values are Gym's old API: split `done` into terminated (the task ended) and truncated (time ran out)"
OLD_GYM = (
    "the package shimmy converts environments of the old package gym: use environment: {id: "
    '"shimmy:GymV21Environment-v0", options: {env_id: …}}, or GymV26Environment-v0 for gym 0.26; for an environment '
    'that gym has not registered, import shimmy in a factory that returns gymnasium.make("GymV21Environment-v0", '
    "env=YourEnv())"
)


def advice_for_class(env: Any) -> str:
    """Return advice for an object of the package `gym`, or one with the same methods; empty for other objects."""
    if isinstance(env, type):
        return ". It is a class; return an instance of the class"
    if any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__):
        return f"; {OLD_GYM}"
    alike = all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space"))
    return ". Derive its class from gymnasium.Env; step must return five values, and reset two" if alike else ""


AnyVectorEnv = VectorEnv[Any, Any, Any]

_FALSE: Any = np.False_
_MISSING = object()
_RAISED: Any = object()
"""Stands for the result of a call that raised an error."""


def prepared(env: AnyEnv, name: str) -> AnyEnv:
    """Return an environment with valid spaces and metadata.

    Raises:
        StageError: if the environment has no spaces, or is a vector environment.
    """
    if isinstance(env.unwrapped, VectorEnv):
        raise StageError(
            f"{name}: creating one instance returned a vector environment ({type(env.unwrapped).__name__}); expected a "
            "single environment, or a factory with an argument num_envs that returns the vector environment"
        )
    for which in ("observation_space", "action_space"):
        if problem := space_problem(getattr(env, which, None), which):
            raise StageError(f"{name}: {problem}")
    if env.metadata is None:
        env.metadata = {}
    return env


class SingleEnvs:
    """Single environments, with `reset` and `step` like those of a `gymnasium.vector.SyncVectorEnv` in SAME_STEP mode.

    Differences: rewards and flags are sequences of raw values, which the caller checks. The infos contain only masks
    (a list), `final_obs` and `final_info` (an info or None for each instance), because other contents could break the
    batching. Final observations are copies, because many environments return the same array each time.

    Args:
        envs: the environments.
        name: the environment's name, used in messages.
        wrap: wraps each environment.

    Attributes:
        envs: the environments.
        single_observation_space, single_action_space: the spaces of each environment.

    Raises:
        StageError: if an environment has no spaces, is a vector environment, or has other spaces than the first one.
    """

    def __init__(self, envs: Iterable[AnyEnv], name: str, wrap: Wrap | None = None) -> None:
        self.envs: list[AnyEnv] = [prepared(env if wrap is None else wrap(env), name) for env in envs]
        self.num_envs = len(self.envs)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self._name = name
        for i, env in enumerate(self.envs):
            for which in ("observation_space", "action_space"):
                if (one := getattr(env, which)) != (first := getattr(self.envs[0], which)):
                    raise StageError(
                        f"{name}: instance {i} has the {which} {one}, but instance 0 has {first}; expected the same in "
                        "all instances"
                    )
        self._action_space = batch_space(self.single_action_space, self.num_envs)
        self._shared: bool | None = None
        """True if instances return the same array, in which case each observation is copied; None while unknown."""
        self._all_false = np.zeros(self.num_envs, np.bool_)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The first environment's metadata."""
        return self.envs[0].metadata

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; environment i is seeded with seed + i, if there is a seed.

        Raises:
            BrokenEnvironmentError: if an environment raises or returns an invalid value; the message names the
                instance.
        """
        observations, infos = [], dict[str, Any]()
        for i in range(self.num_envs):
            seeds = {"seed": None if seed is None else seed + i}
            observation, info = self._begin(i, seeds | ({"options": options} if options else {}))
            observations.append(_apart(observation))
            if MASK in info:
                add_mask(infos, info[MASK], i, self.num_envs)
            infos.update(dict.fromkeys(hints_of_masks(self.envs[i], info)))
        return stack(self.single_observation_space, observations, "reset()", self._label), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, and reset those whose episodes end. Raises the same errors as `reset`."""
        # Literals, because a call to `list[Any]` takes longer than many environments' steps.
        observations: list[Any] = []
        rewards: list[Any] = []
        flags: list[tuple[int, Any, Any]] = []  # only those other than False
        endings: list[tuple[int, Any, Any]] = []
        infos: dict[str, Any] = {}
        raw: list[Any] = []  # raw observations; keeping them alive keeps their addresses distinct
        shared, result = self._shared, _RAISED
        each_action = iter(actions) if isinstance(actions, np.ndarray) else iterate(self._action_space, actions)
        try:
            for env, action in zip(self.envs, each_action, strict=True):
                result = _RAISED
                result = observation, reward, terminated, truncated, info = env.step(action)
                rewards.append(reward)
                if (terminated is not False and terminated is not _FALSE) or (
                    truncated is not False and truncated is not _FALSE
                ):
                    i = len(observations)
                    flags.append((i, terminated, truncated))
                    if terminated or truncated:
                        endings.append((i, _apart(observation), _copied(info)))
                        observation, info = self._begin(i, {})
                if shared is not False:
                    raw.append(observation)
                    observation = _apart(observation)
                if (mask := info.get(MASK, _MISSING)) is not _MISSING:
                    add_mask(infos, mask, len(observations), self.num_envs)
                observations.append(observation)
        except Exception as error:
            self._fail(len(observations), "step", result, error)
        if shared is None:
            addresses = addresses_of(tuple(raw))
            self._shared = len({*addresses}) < len(addresses)
        if endings:
            infos["final_obs"], infos["final_info"] = np.empty((2, self.num_envs), object)
            for i, observation, info in endings:
                infos["final_obs"][i], infos["final_info"][i] = observation, info
        ends: Any = self._all_false
        cuts: Any = self._all_false
        if flags:
            ends, cuts = ([False] * self.num_envs for _ in range(2))
            for i, *both in flags:
                ends[i], cuts[i] = both
        batch = stack(self.single_observation_space, observations, "step()", self._label)
        return batch, rewards, ends, cuts, infos

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _begin(self, i: int, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        result = _RAISED
        try:
            result = _, info = self.envs[i].reset(**arguments)
            info.get(MASK)
        except Exception as error:
            self._fail(i, "reset", result, error)
        return result

    def _fail(self, i: int, call: str, result: Any, error: Exception) -> NoReturn:
        """Raise the error that describes a failed call, or a result that can't be used.

        Args:
            i: the instance.
            call: `reset` or `step`.
            result: the call's result; `_RAISED` if the call raised the error.
            error: the error from the call, or from using its result. Headrace's own errors are reraised unchanged.
        """
        if result is _RAISED and "expected 5, got 4" in str(error):  # from a wrapper that unpacks the old API's result
            raise BrokenEnvironmentError(
                f"{self._label(i)}: its {call}() raised {describe_fault(error)}; {_OLD_STEP}; {OLD_GYM}"
            ) from error
        space, raised = self.single_observation_space, result is _RAISED or isinstance(error, StageError)
        if not raised and (problem := _result_problem(space, call, result)):
            raise BrokenEnvironmentError(f"{self._label(i)}: {problem}") from error
        raise_broken(error, self._label(i), call)

    def _label(self, i: int | None) -> str:
        return self._name if i is None or self.num_envs == 1 else f"{self._name}, instance {i}"


Envs = AnyVectorEnv | SingleEnvs
"""What a group can step."""


def _result_problem(space: Any, call: str, result: Any) -> str | None:
    """Return what is wrong with the result of a call to an environment; None if it is valid."""
    if call == "reset" and (not isinstance(result, tuple) or len(result) != 2):
        old = "" if isinstance(result, tuple) or result is None else f"; {OLD_GYM}"
        return (
            f"its reset() returned {described(result)}; expected two values, an observation and an info dict: write "
            f"`return observation, {{}}`{old}"
        )
    if call == "step" and (not isinstance(result, tuple) or len(result) != 5):
        old = f" ({_OLD_STEP}; {OLD_GYM})" if isinstance(result, tuple) and len(result) == 4 else ""
        return (
            f"its step() returned {described(result)}; expected five values: observation, reward, terminated, "
            f"truncated, info{old}"
        )
    problem = info_problem(result[-1], f"{call}()")
    problem = problem or observation_problem(space, result[0], f"{call}()")
    if problem or call == "reset":
        return problem
    _, reward, terminated, truncated, _ = result
    return reward_problem(reward) or flag_problem(terminated, "terminated") or flag_problem(truncated, "truncated")


def _apart(observation: Any) -> Any:
    """Return a copy of an observation."""
    return observation.copy() if type(observation) is np.ndarray else copy.deepcopy(observation)


def _copied(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info with its arrays copied, because a reset may overwrite the originals."""
    return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}


# Masks in infos.


def add_mask(infos: dict[str, Any], mask: Any, i: int, num_envs: int) -> None:
    """Add a copy of an instance's mask to the infos, because instances may share the array behind it."""
    infos.setdefault(MASK, [None] * num_envs)[i] = copy.deepcopy(mask)


def hints_of_masks(env: Any, info: Iterable[Any]) -> list[str]:
    """Describe places that may hold masks but are not supported: other keys, a method, or a wrapper.

    Args:
        env: an environment with its wrappers.
        info: the keys of the info that the environment's `reset` returned.
    """
    hints, wrapper = [*info], None
    while True:
        if hasattr(env, "action_masks"):  # the method that sb3-contrib's MaskablePPO calls
            hints.append("action_masks()")
        if MASK in getattr(env.observation_space, "spaces", ()):
            hints += [] if wrapper is None else [f"{MASK} in the observations within {type(wrapper).__name__}"]
            break
        if not isinstance(env, gymnasium.Wrapper):
            break
        wrapper, env = env, env.env
    return like_masks(hints)
