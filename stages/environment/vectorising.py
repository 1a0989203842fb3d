"""Making the vector environment that a Gymnasium group drives, of an id or of what a factory gave.

The environment's own vectorised implementation is taken where there is one, else `SyncVectorEnv`; no
processes of its own for each instance, since actors are processes already.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from stages.errors import BrokenEnvironmentError, StageError

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]


def make_vector(env_id: str, num_envs: int, options: Mapping[str, Any], name: str) -> AnyVectorEnv:
    """Make a registered environment.

    Args:
        env_id: Gymnasium's id; `module:id` imports the module that registers it first.
        num_envs: number of instances.
        options: keyword arguments for the environment. `vectorization_mode` chooses among its implementations
            (`sync`, `vector_entry_point`, `async`); without it, the vectorised one is taken where there is
            one.
        name: what messages call the environment.

    Raises:
        StageError: if there is no such environment.
        BrokenEnvironmentError: if making it failed.
    """
    try:
        return _make(env_id, num_envs, dict(options))
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise StageError(f"{name}: {error}") from error
    except Exception as error:
        raise BrokenEnvironmentError(
            f"{name}: making {num_envs} of it with options {dict(options)} raised {type(error).__name__}: {error}"
        ) from error


def vectorise(made: AnyEnv | AnyVectorEnv, make: Callable[[], AnyEnv], num_envs: int, name: str) -> AnyVectorEnv:
    """Make a vector environment of what a factory gave.

    Args:
        made: a vector environment, or the first of the single environments.
        make: makes another single environment.
        num_envs: number of instances.
        name: what messages call the environment.

    Raises:
        StageError: if a vector environment is of another size, or `make` gives the same object again.
        BrokenEnvironmentError: if `make` raises.
    """
    if isinstance(made, VectorEnv):
        if made.num_envs == num_envs:
            return made
        made.close()
        raise StageError(
            f"{name} gave a vector environment of {made.num_envs} instances where {num_envs} are wanted; "
            "let it take an argument num_envs"
        )
    try:
        singles = [made, *(make() for _ in range(num_envs - 1))]
        if len({id(env) for env in singles}) < num_envs:
            raise StageError(f"{name} gave the same environment twice; it must make a new one at each call")
        return _in_turn([partial(_itself, env) for env in singles])
    except StageError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(
            f"{name}: making {num_envs} of it raised {type(error).__name__}: {error}"
        ) from error


def _make(env_id: str, num_envs: int, options: dict[str, Any]) -> AnyVectorEnv:
    module, _, registered = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    mode = options.pop("vectorization_mode", None)
    if mode is None:
        spec = gymnasium.registry.get(registered)
        own = spec is not None and spec.vector_entry_point is not None and not spec.additional_wrappers
        mode = "vector_entry_point" if own else "sync"
    if mode == "sync":
        return _in_turn([lambda: gymnasium.make(env_id, **options)] * num_envs)
    return gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode, **options)


def _in_turn(makers: list[Callable[[], AnyEnv]]) -> AnyVectorEnv:
    # Observations need no second copy: the group makes one when it takes them over.
    return _KeepingVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


class _KeepingVectorEnv(SyncVectorEnv[Any, Any]):
    """SyncVectorEnv whose final observations are not written over by the reset in the same step.

    SyncVectorEnv copies observations when it batches them, but a final one goes into the infos as the
    object that the environment returned, and many environments return the same array each time.
    """

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if "final_obs" in env_info:
            env_info = {**env_info, "final_obs": copy.deepcopy(env_info["final_obs"])}
        return super()._add_info(vector_infos, env_info, env_num)


def _itself(env: AnyEnv) -> AnyEnv:
    return env
