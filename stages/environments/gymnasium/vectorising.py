"""Makes the environments of a Gymnasium group, from an id or from a factory's result.

The result is the environment's own vectorised implementation if it has one, otherwise single environments. Instances
need no separate processes, because actors are already processes. Wrappers apply to single environments, and only single
environments have windows, so both require single environments, unless the options request another implementation.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.stages.environments.factory import HUMAN, takes_any
from headrace.stages.environments.gymnasium.singles import (
    AnyEnv,
    AnyVectorEnv,
    Envs,
    SingleEnvs,
    advice_for_id,
    prepared,
)
from headrace.stages.errors import BrokenEnvironmentError, StageError, describe_fault, error_summary

Wrap = Callable[[AnyEnv], AnyEnv]
"""Function that wraps a single environment in all wrappers."""

log = logging.getLogger(__name__)

_PACKAGES = {"ALE": ("ale_py", "ale-py")}
"""Per namespace, such as `ALE` in `ALE/Pong-v5`: the module that registers its ids when imported, and the module's
distribution."""


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
    _register(env_id, name)
    try:
        return _make(env_id, num_envs, dict(options), wrap, singly, name)
    except StageError:
        raise
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise StageError(
            f"{name}: {error} {_who_registers(env_id)}{advice_for_id(env_id)}",
            key=("environment", "id"),
        ) from error
    except TypeError as error:
        raise BrokenEnvironmentError(
            f"{name}: creating {num_envs} instances with options {dict(options)} raised {describe_fault(error)}; fix "
            "environment.options, which are passed as keyword arguments",
            key=("environment", "options") if options else (),
        ) from error
    except Exception as error:
        raise BrokenEnvironmentError(
            f"{name}: creating {num_envs} instances with options {dict(options)} raised {describe_fault(error)}"
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
        StageError: if a vector environment has the wrong size or would need wrapping, or `make` returns the same object
            again.
        BrokenEnvironmentError: if `make` raises.
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
            f"argument num_envs to it{f', or set environment.options.num_envs: {num_envs}' if takes_any(make) else ''}"
        )
    try:
        singles = [env, *(make() for _ in range(num_envs - 1))]
        if len({id(env) for env in singles}) < num_envs:
            raise StageError(f"{name} returned the same environment twice; it must make a new one on each call")
        return _wrapped(singles, wrap, name)
    except StageError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{name}: creating {num_envs} instances raised {describe_fault(error)}") from error


def _who_registers(env_id: str) -> str:
    """Describe which ids the module before the colon registers, or how to name a module."""
    module, _, registered = env_id.rpartition(":")
    if not module:
        return f"For an environment of your own, prefix the module that registers it: my_module:{registered}"
    package = module.partition(".")[0]
    points = {each: spec.entry_point for each, spec in gymnasium.registry.items()}
    own = [
        each
        for each, point in points.items()
        if str(point if isinstance(point, str) else getattr(point, "__module__", "")).partition(":")[0].split(".")[0]
        == package
    ]
    ids = difflib.get_close_matches(registered, own, n=4, cutoff=0)
    more = f" and {len(own) - len(ids)} more" if len(own) > len(ids) else ""
    return f"The module {module} registers no {registered}" + (f"; it registers {', '.join(ids)}{more}" if ids else "")


def _register(env_id: str, name: str) -> None:
    """Import the package of an id's namespace, if the namespace is known and not registered yet."""
    module, distribution = _PACKAGES.get(env_id.partition("/")[0], (None, None))
    if module is None or env_id in gymnasium.registry:
        return
    try:
        gymnasium.register_envs(importlib.import_module(module))
    except ImportError as error:
        raise StageError(
            f"{name} belongs to the package {distribution}, which can't be imported ({error}); install it with: python "
            f"-m pip install {distribution}"
        ) from error


def _make(env_id: str, num_envs: int, options: dict[str, Any], wrap: Wrap | None, singly: bool, name: str) -> Envs:
    module, _, registered = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    mode = options.pop("vectorization_mode", None)
    own, lacks = False, ""
    if mode is None:
        spec = gymnasium.registry.get(registered)
        own = spec is not None and spec.vector_entry_point is not None and not spec.additional_wrappers
        lacks = "has no window" if options.get("render_mode") == HUMAN else ""
        if own and not lacks and wrap is None and not singly:
            try:
                return gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
            except Exception as error:
                if not options:
                    raise
                lacks = f"does not accept these options ({error_summary(error)})"
        mode = "sync"
    if mode == "sync":
        options = {"disable_env_checker": True, **options}  # `checks` has clearer messages
        singles = _wrapped((gymnasium.make(env_id, **options) for _ in range(num_envs)), wrap, name)
        if own and lacks:
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


def _wrapped(singles: Iterable[AnyEnv], wrap: Wrap | None, name: str) -> SingleEnvs:
    return SingleEnvs([env if wrap is None else wrap(env) for env in singles], name)


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
