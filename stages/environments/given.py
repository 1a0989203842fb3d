"""Environments that a caller of `run()` gives as objects; the configuration, which is data, names them by a word.

Main keeps the objects while the run goes on. Its own child processes get what makes them by cloudpickle, within the
message that starts each of them; bytes that came in any other way are never unpickled.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import LoadError, StageError, error_summary

MODULE = "headrace.given"
"""No module: before the colon of a factory that is an object."""
AGAIN = (
    "it was an object that Python code gave to run(…, environment=…), and is in no file; give it again: "
    "headrace.load('results/<run-id>').resume(environment=…); headrace.evaluate plays its policies"
)

MOST_BYTES = 2**31
"""The most that a start message takes of an object."""
_given: dict[str, GivenEnvironment | bytes] = {}
"""By the word that names them in this process; bytes until they are asked for."""


def offers(environment: object, *names: str) -> bool:
    """Return True if an object has all attributes of these names."""
    return all(hasattr(environment, name) for name in names)


def is_vec_env(environment: object) -> bool:
    """Return True for a VecEnv of Stable-Baselines3's."""
    return offers(environment, "num_envs", "step_async", "env_method")


class GivenObject:
    """An environment object of the caller's, which stays open; one group at a time has it.

    Args:
        env: the object.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._lent = False

    def __call__(self) -> Any:
        """Return the object.

        Raises:
            StageError: if somebody has it.
        """
        if self._lent:
            raise StageError(
                "the environment given to run() is one object, and this run needs another one beside it; give a "
                "function that makes one"
            )
        self._lent = True
        return self._env

    @property
    def shared(self) -> Any:
        """The object itself, for who neither resets, steps nor closes it."""
        return self._env

    def take_back(self) -> None:
        """Nobody has it any more."""
        self._lent = False

    def __reduce__(self) -> Any:
        """It stays in its process."""
        raise TypeError("an environment object can't go to another process")


@dataclass(frozen=True)
class GivenEnvironment:
    """What makes the instances of an environment."""

    makers: list[Callable[..., Any]]
    """Of each instance one; of more instances than there are, these again."""

    def maker(self, first: int) -> Callable[..., Any]:
        """Return what makes one instance after the other, from this number on."""
        if len(self.makers) == 1:
            return self.makers[0]
        numbers = itertools.count(first)
        return lambda: self.makers[next(numbers) % len(self.makers)]()

    def lend_to(self, group: EnvironmentGroup) -> None:
        """Let a group leave objects of the caller's open when it is closed."""
        lent = [each for each in self.makers if isinstance(each, GivenObject)]
        if lent:
            vars(group)["close"] = partial(_take_back, lent)

    def pickled(self) -> bytes:
        """Return it as bytes for another process.

        Raises:
            StageError: if it can't be; the message says why.
        """
        try:
            import cloudpickle  # Gymnasium needs it, too

            data = bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise StageError(error_summary(error)) from error
        if len(data) > MOST_BYTES:
            raise StageError(f"what it holds takes {len(data) / 2**30:.1f} GiB, and {MOST_BYTES / 2**30:g} can be sent")
        return data


@contextmanager
def giving(name: str, environment: GivenEnvironment) -> Iterator[str]:
    """Let factories be found by the word that this returns; the word has the name in it."""
    word = re.sub(r"\W+", "_", name).strip("_") or "environment"
    names = itertools.chain([word], (f"{word}_{number}" for number in itertools.count(2)))
    reference = next(each for each in (f"{MODULE}:{name}" for name in names) if each not in _given)
    _given[reference] = environment
    try:
        yield reference
    finally:
        del _given[reference]


def is_given(reference: object) -> TypeGuard[str]:
    """Return True if `environment.factory` names an object."""
    return isinstance(reference, str) and reference.startswith(f"{MODULE}:")


def find_given(reference: str) -> GivenEnvironment:
    """Return the environment that a word names in this process.

    Raises:
        LoadError: if there is none, or what another process has sent can't be used here.
    """
    found = _given.get(reference)
    if found is None:
        raise LoadError(f"environment.factory {reference!r}: {AGAIN}")
    if isinstance(found, bytes):
        try:
            import cloudpickle

            # Only this line unpickles: the bytes came through a socket that main opened (docs/decisions/008).
            found = _given[reference] = cloudpickle.loads(found)
        except Exception as error:
            raise LoadError(
                f"the environment given to run() can't be used in another process: {error_summary(error)}; give a "
                "function at the top of a module, or let actors run in main (pipeline.hosts.actors.kind: inline)"
            ) from error
    assert isinstance(found, GivenEnvironment), "it was one where it comes from"
    return found


def given_object(reference: object) -> Any:
    """Return the caller's object, or the first of several, that a factory names in this process; None if none is."""
    found = find_given(reference).makers[0] if is_given(reference) else None
    return found.shared if isinstance(found, GivenObject) else None


def why_not_elsewhere(reference: object) -> str:
    """Return why no other process can make what a factory names; empty if one can, or it is no object of a caller's."""
    found = _given.get(reference) if is_given(reference) else None
    try:
        if isinstance(found, GivenEnvironment):
            found.pickled()
    except StageError as error:
        return str(error)
    return ""


def carried(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what a child of this process needs to make the environments of a configuration, as plain data."""
    reference = str((config.get("environment") or {}).get("factory"))
    found = _given.get(reference)
    return {reference: found.pickled()} if isinstance(found, GivenEnvironment) else {}


def take_over(given: Mapping[str, bytes]) -> None:
    """Take what `carried` returned in the process that has started this one."""
    for reference, data in given.items():
        _given.setdefault(reference, data)


def _take_back(lent: Sequence[GivenObject]) -> None:
    for each in lent:
        each.take_back()
