"""The trial of an environment before training: remarks about what it returns, in words for people.

Rooms of kinds yield remarks from a function that `config/environment_kinds.py` names as their `trial`. It runs in a
process of its own (`pipeline/main/environment_trial.py`), since it makes and steps environments.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from headrace.config import ConfigError, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import KeyPath
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import settled
from headrace.stages.error_text import describe_error
from headrace.stages.errors import StageError

STEPS = 200
"""Steps that an environment is tried for; episodes that end are followed by others."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is wrong with an environment."""

    text: str
    serious: bool = True
    """True if training can't work with it; False if it may be meant, or only costs something."""
    key: KeyPath = ()
    """The key of the YAML at fault, if one is."""


def try_kind(config: RunConfig) -> list[dict[str, Any]]:
    """Try the environments of a configuration by the function that the table names; returns remarks as plain data."""
    trial = config.environment_kind.trial
    assert trial is not None, "only kinds with a trial are tried"
    try:
        remarks = list(load_entry(trial)(config))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        remarks = [Remark(f"the environment, while it was tried, raised {describe_error(error)}; expected it to go on")]
    return [asdict(remark) for remark in remarks]


def without_windows(config: RunConfig) -> EnvironmentRequest:
    """Return the request of an actor for its environments, none of which opens a window."""
    settings = config.environment
    assert settings is not None, "only kinds with a section are tried"
    options = {key: value for key, value in settings.options.items() if (key, value) != ("render_mode", "human")}
    quiet = config.model_copy(update={"environment": settings.model_copy(update={"options": options})})
    return EnvironmentRequest(quiet)


def group_remarks(request: EnvironmentRequest) -> Iterator[Remark]:
    """Make the environments as an actor does, and reset them."""
    try:
        group = make_group(request)
        try:
            asyncio.run(_reset(group))
            for behavior_id in group.behavior_specs:
                request.config.behavior_settings(behavior_id.partition("?")[0])
        finally:
            group.close()
    except StageError as error:
        yield Remark(str(error), key=error.key)
    except ConfigError as error:
        yield Remark(str(error))


async def _reset(group: Any) -> None:
    await settled(group.reset(0))


class Observer:
    """Compares observations with a space; makes each remark once.

    Args:
        name: of the environment, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: set[tuple[str, str]] = set()

    def compare(self, space: Any, got: Any, call: str, at: str = "") -> Iterator[Remark]:
        """Yield what is wrong with an observation of a call; `at` is its place in a composed space."""
        parts: Any = getattr(space, "spaces", None)
        where = f"observation{f' {at!r}' if at else ''} from {call}()"
        if isinstance(parts, (tuple, list)) and isinstance(got, (tuple, list)) and len(parts) == len(got):
            for index, part in enumerate(parts):
                yield from self.compare(part, got[index], call, f"{at}.{index}".lstrip("."))
        elif hasattr(parts, "items") and isinstance(got, dict):
            if missing := [key for key in parts if key not in got]:
                yield from self._once(
                    at + "keys",
                    "keys",
                    f"{where} lacks the keys {', '.join(map(repr, missing))}, which its space has; it has: "
                    f"{', '.join(map(repr, got)) or 'none'}",
                )
            for key in parts:
                if key in got:
                    yield from self.compare(parts[key], got[key], call, f"{at}.{key}".lstrip("."))
        elif type(space).__name__ == "Box":
            yield from self._box(space, got, where, at)
        elif not space.contains(got):
            yield from self._once(
                at, "fit", f"{where} is {_short(got)}, which does not fit its space {space}; mend the one or the other"
            )

    def _box(self, space: Any, got: Any, where: str, at: str) -> Iterator[Remark]:
        try:
            values = np.asarray(got, np.float64)
        except (TypeError, ValueError):
            yield from self._once(
                at, "type", f"{where} is {_short(got)}; expected an array of shape {space.shape}, as its space says"
            )
            return
        if values.shape != space.shape:
            yield from self._once(
                at,
                "shape",
                f"{where} has shape {values.shape}, but its space says {space.shape}; return the shape of the space, "
                "or change the space",
            )
        elif not np.isfinite(values).all() and np.isfinite(space.low).all() | np.isnan(values).any():
            index = tuple(map(int, np.argwhere(~np.isfinite(values))[0])) if values.ndim else ()
            yield from self._once(
                at,
                "finite",
                f"{where} has a {values[index]} at {list(index)}: the environment itself returned it, not the policy; "
                "expected finite numbers, so look for a division by zero or an overflow in it",
            )
        elif (values < space.low).any() or (values > space.high).any():
            yield from self._once(
                at,
                "bounds",
                f"{where} has values from {values.min():g} to {values.max():g}, outside its space {space}; widen the "
                "bounds or clip (training does neither)",
                serious=False,
            )

    def _once(self, at: str, kind: str, text: str, serious: bool = True) -> Iterator[Remark]:
        if (at, kind) not in self._made:
            self._made.add((at, kind))
            yield Remark(f"{self._name}: {text}", serious)


def reward_remarks(reward: Any, name: str) -> Iterator[Remark]:
    """Yield what is wrong with a reward."""
    try:
        value = float(reward)
    except (TypeError, ValueError):
        yield Remark(f"{name}: step() returned the reward {_short(reward)}; expected a number, such as a float")
        return
    if not np.isfinite(value):
        yield Remark(
            f"{name}: step() returned the reward {value}; expected a finite number, so look for its cause there"
        )


def flag_remarks(flag: Any, which: str, name: str) -> Iterator[Remark]:
    """Yield what is wrong with `terminated` or `truncated`."""
    if not isinstance(flag, bool | np.bool_):
        yield Remark(
            f"{name}: step() returned {_short(flag)} as `{which}`; expected True or False (wrap it in bool())",
            serious=isinstance(flag, dict | list | tuple | str) or flag is None,
        )


def takes_seed(reset: Callable[..., Any]) -> bool:
    """Return True if a `reset` can be given a seed, or has no signature that could tell."""
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return True
    return "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def checker_remarks(check: Callable[[], Any], checker: str, name: str) -> Iterator[Remark]:
    """Run the field's own checker; what it raises is a warning, since what training needs was checked before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rendering and other things that training does not need
        try:
            check()
        except AssertionError as error:
            if str(error):  # a bare assertion says nothing to people
                yield Remark(f"{name}: {checker} says: {' '.join(str(error).split())}", serious=False)
        except Exception as error:
            yield Remark(f"{name}: {checker} ended with {describe_error(error)}", serious=False)


def each_once(remarks: Iterator[Remark]) -> Iterator[Remark]:
    """Leave out remarks that were made before, whatever their step."""
    made = set()
    for remark in remarks:
        if (text := replace(remark, key=()).text) not in made:
            made.add(text)
            yield remark


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text[:77]}..." if len(text) > 80 else text
