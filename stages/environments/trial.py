"""Environments that are made and stepped before training: a trial with remarks for people, timing, and their specs.

Rooms of kinds yield remarks from a function that `config/environment_kinds.py` names as their `trial`. Trials and
timing run in a process of their own (`pipeline/main/environment_trial.py`), since they make and step environments.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from headrace.config import ConfigError, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import KeyPath
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains.kinds import uniform_actions
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, settled
from headrace.stages.errors import StageError, describe_error

STEPS = 200
"""Steps that an environment is tried for; episodes that end are followed by others."""
_WARM_TICKS = 3
"""Ticks that are not counted: libraries load, caches fill."""
_LEAST_TICKS = 5
_COUNT_S = 0.15
"""Seconds of ticks with each number of instances."""


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
        self._remarked: set[tuple[str, str]] = set()

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
        if (at, kind) not in self._remarked:
            self._remarked.add((at, kind))
            yield Remark(f"{self._name}: {text}", serious)


def passed_on(remarks: Iterable[Remark]) -> Generator[Remark, None, bool]:
    """Yield remarks; returns True if any of them is serious."""
    serious = False
    for remark in remarks:
        serious |= remark.serious
        yield remark
    return serious


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
    texts = set()
    for remark in remarks:
        if remark.text not in texts:
            texts.add(remark.text)
            yield remark


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text[:77]}..." if len(text) > 80 else text


async def announced_specs(request: EnvironmentRequest) -> dict[str, BehaviorSpec]:
    """Return the specs of a run's environment, by behaviour name.

    Raises:
        StageError: if it can't be made or started.
    """
    config = request.config
    one = {"num_envs": 1}
    environment = config.environment and config.environment.model_copy(update=one)
    settings = config.env_settings.model_copy(update=one)
    alone = config.model_copy(update={"environment": environment, "env_settings": settings})
    group = make_group(replace(request, config=alone))
    try:
        await settled(group.reset(request.seed))
        return {spec.name: spec for spec in group.behavior_specs.values()}
    finally:
        closing = group.close()
        if closing is not None:
            await closing


# The time that steps take, by the number of instances; for who chooses that number.


def measure_stepping(config: RunConfig, counts: list[int], gain: float, budget_s: float) -> list[tuple[int, float]]:
    """Step so many instances by random actions; returns each number with the median seconds of a tick.

    Args:
        config: the run's.
        counts: the numbers to try, in this order.
        gain: ends with the first number whose steps per second are not this many times those of the one before.
        budget_s: seconds after which no further number is tried.
    """
    began, found = time.perf_counter(), list[tuple[int, float]]()
    for count in counts:
        tick_s = asyncio.run(_measure(config, count))
        found.append((count, tick_s))
        if time.perf_counter() - began > budget_s:
            break
        if len(found) > 1 and count / tick_s < gain * found[-2][0] / found[-2][1]:
            break
    return found


async def _measure(config: RunConfig, count: int) -> float:
    assert config.environment is not None, "kinds without the section are not measured"
    section = config.environment.model_copy(update={"num_envs": count})
    request = without_windows(config.model_copy(update={"environment": section}))
    group = make_group(request)
    try:
        random = np.random.default_rng(0)
        result = await settled(group.reset(0))
        took: list[float] = []
        end = time.perf_counter() + _COUNT_S
        while len(took) < _WARM_TICKS + _LEAST_TICKS or time.perf_counter() < end:
            actions = _random_actions(group, result, random)
            began = time.perf_counter()
            result = await settled(group.step(actions))
            took.append(time.perf_counter() - began)
        return median(took[_WARM_TICKS:])
    finally:
        closing: Any = group.close()
        if closing is not None:
            await closing


def _random_actions(
    group: EnvironmentGroup, result: StepResult, random: np.random.Generator
) -> Mapping[str, ActionBatch]:
    return {
        behavior_id: uniform_actions(
            group.behavior_specs[behavior_id].actions, len(steps.agent_ids) - steps.ended, steps.action_masks, random
        )
        for behavior_id, steps in result.steps.items()
    }
