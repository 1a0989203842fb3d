"""Environments that a caller of `run()` passes as objects; the configuration, which is data, refers to them by name.

The main process keeps the objects during the run. Its child processes receive the objects' makers, pickled with
cloudpickle, in the message that starts each child; bytes from any other source are never unpickled.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any, TypeGuard

from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import LoadError, StageError, error_summary

MODULE = "headrace.given"
"""The module part of `environment.factory` if the environment was passed as an object."""
AGAIN = (
    "the environment was an object that Python code passed to run(…, environment=…), and is in no file; pass it "
    "again: headrace.load('results/<run-id>').resume(environment=…); headrace.evaluate plays its policies"
)

MOST_BYTES = 2**31
"""Maximum size in bytes of a pickled environment in a start message."""
_given: dict[str, GivenEnvironment | bytes] = {}
"""This process's environments, keyed by reference string; an environment from another process stays pickled until its
first use."""


def offers(environment: object, *names: str) -> bool:
    """Return True if an object has all of these attributes."""
    return all(hasattr(environment, name) for name in names)


def is_vec_env(environment: object) -> bool:
    """Return True for a VecEnv of Stable-Baselines3."""
    return offers(environment, "num_envs", "step_async", "env_method")


class GivenObject:
    """An environment object that a caller passed to `run()`. It stays open, and only one group at a time uses it.

    Args:
        env: the object.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._lent = False

    def __call__(self) -> Any:
        """Lend the object to a group.

        Raises:
            StageError: if another group is using it.
        """
        if self._lent:
            raise StageError(
                "the environment passed to run() is a single object, but this run needs several; pass a function that "
                "makes one"
            )
        self._lent = True
        return self._env

    @property
    def shared(self) -> Any:
        """The object itself, for callers that neither reset, step nor close it."""
        return self._env

    def take_back(self) -> None:
        """Record that no group uses the object any more."""
        self._lent = False

    def __reduce__(self) -> Any:
        """Refuse to be pickled: the object stays in its process."""
        raise TypeError("an environment object can't be sent to another process")


@dataclass(frozen=True)
class GivenEnvironment:
    """The makers of an environment's instances."""

    makers: list[Callable[..., Any]]
    """One maker per instance; if there are more instances, the makers are reused in order."""

    def maker(self, first: int) -> Callable[..., Any]:
        """Return a function that makes one instance per call, starting with instance `first`."""
        if len(self.makers) == 1:
            return self.makers[0]
        numbers = itertools.count(first)
        return lambda: self.makers[next(numbers) % len(self.makers)]()

    def lend_to(self, group: EnvironmentGroup) -> None:
        """Make the group's `close` leave the caller's objects open."""
        lent = [maker for maker in self.makers if isinstance(maker, GivenObject)]
        if lent:
            vars(group)["close"] = partial(_take_back, lent)

    def pickled(self) -> bytes:
        """Return the environment as bytes for another process.

        Raises:
            StageError: if pickling fails; the message gives the reason.
        """
        try:
            import cloudpickle  # Gymnasium depends on cloudpickle too

            data = bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise StageError(error_summary(error)) from error
        if len(data) > MOST_BYTES:
            raise StageError(
                f"its contents take {len(data) / 2**30:.1f} GiB, but at most {MOST_BYTES / 2**30:g} GiB can be sent"
            )
        return data


@contextmanager
def giving(name: str, environment: GivenEnvironment) -> Iterator[str]:
    """Yield a unique reference that contains `name` and refers to the environment within the context."""
    word = re.sub(r"\W+", "_", name).strip("_") or "environment"
    names = itertools.chain([word], (f"{word}_{number}" for number in itertools.count(2)))
    reference = next(candidate for candidate in (f"{MODULE}:{name}" for name in names) if candidate not in _given)
    _given[reference] = environment
    try:
        yield reference
    finally:
        del _given[reference]


def is_given(reference: object) -> TypeGuard[str]:
    """Return True if a value of `environment.factory` refers to an object."""
    return isinstance(reference, str) and reference.startswith(f"{MODULE}:")


def find_given(reference: str) -> GivenEnvironment:
    """Return the environment that a reference refers to in this process.

    Raises:
        LoadError: if it refers to no environment, or if the environment came from another process and can't be used
            here.
    """
    given = _given.get(reference)
    if given is None:
        raise LoadError(f"environment.factory {reference!r}: {AGAIN}")
    if isinstance(given, bytes):
        try:
            import cloudpickle

            # Only this line unpickles: the bytes came through a socket that main opened (docs/decisions/008).
            given = _given[reference] = cloudpickle.loads(given)
        except Exception as error:
            raise LoadError(
                f"the environment passed to run() can't be used in another process: {error_summary(error)}; pass a "
                "function at the top level of a module, or run actors in main (pipeline.hosts.actors.kind: inline)"
            ) from error
    assert isinstance(given, GivenEnvironment), "it was one where it comes from"
    return given


def given_object(reference: object) -> Any:
    """Return the caller's object that a factory reference refers to, or the first of several.

    None if it refers to none.
    """
    maker = find_given(reference).makers[0] if is_given(reference) else None
    return maker.shared if isinstance(maker, GivenObject) else None


_ADDRESS = re.compile(r" at 0x\w+(, file .*?, line \d+)?")


def identity_of(reference: object) -> object:
    """Return JSON values that differ between environments and are the same in every process.

    For a caller's environment, they contain the makers' names and arguments and, if no module has them, their code. For
    any other environment, they are the reference itself.
    """
    if not is_given(reference):
        return reference
    makers = find_given(reference).makers
    texts = (
        repr((maker, None if isinstance(maker, type) else getattr(maker, "__dict__", None), _content(maker)))
        for maker in makers
    )
    return sorted({_ADDRESS.sub("", text) for text in texts})


def _content(maker: object, depth: int = 4) -> object:
    """Return what the representation of a function or class does not contain: its code, and the objects in it."""
    if isinstance(maker, partial):
        return _content(maker.func, depth)
    if not isinstance(maker, type | FunctionType) or not depth:
        return None
    if maker.__module__ != "__main__" and "<" not in maker.__qualname__:  # the module has the code
        return None
    if isinstance(maker, FunctionType):
        inner = [cell.cell_contents for cell in maker.__closure__ or () if cell != CellType()]
        inner += [maker.__code__, maker.__defaults__, maker.__kwdefaults__]
    else:
        inner = [*maker.__bases__, *vars(maker), *vars(maker).values()]
    return [(_code(item), _content(item, depth - 1)) for item in inner]


def _code(part: object) -> object:
    if isinstance(part, CodeType):
        return part.co_code, part.co_names, [_code(constant) for constant in part.co_consts]
    return sorted(map(repr, part)) if isinstance(part, set | frozenset) else part


def why_not_elsewhere(reference: object) -> str:
    """Return why other processes can't make the caller's environment.

    Empty if they can, or if the caller passed none.
    """
    given = _given.get(reference) if is_given(reference) else None
    try:
        if isinstance(given, GivenEnvironment):
            given.pickled()
    except StageError as error:
        return str(error)
    return ""


def carried(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the pickled environment that a child process needs, keyed by reference string; empty if it needs none."""
    reference = str((config.get("environment") or {}).get("factory"))
    given = _given.get(reference)
    return {reference: given.pickled()} if isinstance(given, GivenEnvironment) else {}


def take_over(given: Mapping[str, bytes]) -> None:
    """Store the environments that the parent process's `carried` returned."""
    for reference, data in given.items():
        _given.setdefault(reference, data)


def _take_back(lent: Sequence[GivenObject]) -> None:
    for environment in lent:
        environment.take_back()
