"""Measures how long steps take with different numbers of instances, to choose the numbers of instances and actors.

`pipeline/main/run_shape.py` runs the measurement in a probe, because it makes and steps environments.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from statistics import median
from typing import NamedTuple

import numpy as np

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import uniform_actions
from headrace.stages.environments.factory import HUMAN, EnvironmentRequest, make_group
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, maybe_await

_WARM_TICKS = 3
"""Number of initial ticks that are not measured, because libraries load and caches fill during them."""
_LEAST_TICKS = 5
_COUNT_S = 0.15
"""Minimum seconds for which each number of instances is measured."""
_CLOSE_S = 5.0
"""Seconds that closing the instances may take."""
_FLOPS = 5e10
"""Multiplications and additions per second of a core. Half as many as fast products reach: learning does more."""


class StepCosts(NamedTuple):
    """What a number of instances costs an actor."""

    instances: int
    tick_s: float
    """Median seconds of a step of all instances."""
    learning_s: float
    """About how many seconds a trainer learns from that step."""
    start_s: float
    """Seconds that the actor takes to start, with its instances."""
    memory: float
    """The process's memory in bytes; 0 if unknown."""


async def measure_stepping(config: RunConfig, counts: list[int], gain: float, budget_s: float) -> list[StepCosts]:
    """Step each number of instances with random actions, and return what it costs. Call this in a new process.

    Args:
        config: the run's configuration.
        counts: the numbers to try, in this order.
        gain: the factor by which each number must raise the steps per second; a smaller factor ends the trials.
        budget_s: seconds after which no more numbers are tried.
    """
    began, process_s, measured = time.perf_counter(), time.process_time(), list[StepCosts]()
    for count in counts:
        measured.append(await _measure(config, count, process_s))
        if time.perf_counter() - began > budget_s:
            break
        if (
            len(measured) > 1 and count * measured[-2].tick_s < gain * measured[-2].instances * measured[-1].tick_s
        ):  # without a division by zero
            break
    return measured


async def _measure(config: RunConfig, count: int, process_s: float) -> StepCosts:
    assert config.environment is not None, "kinds without the section are not measured"
    options = {
        key: value for key, value in config.environment.options.items() if (key, value) != ("render_mode", HUMAN)
    }
    section = config.environment.model_copy(update={"num_envs": count, "options": options})
    began = time.perf_counter()
    group = make_group(EnvironmentRequest(config.model_copy(update={"environment": section})))
    try:
        random = np.random.default_rng(0)
        result = await maybe_await(group.reset, 0)
        start_s = process_s + time.perf_counter() - began
        took: list[float] = []
        end = time.perf_counter() + _COUNT_S
        while len(took) < _WARM_TICKS + _LEAST_TICKS or time.perf_counter() < end:
            actions = random_actions(group, result, random)
            began = time.perf_counter()
            result = await maybe_await(group.step, actions)
            took.append(time.perf_counter() - began)
        learning = [
            _learning_s(config, group.behavior_specs[name]) * len(steps.agent_ids)
            for name, steps in result.steps.items()
        ]
        return StepCosts(count, median(took[_WARM_TICKS:]), sum(learning), start_s, _memory())
    finally:
        with _limited(_CLOSE_S):
            await maybe_await(group.close)


def _memory() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a context that takes longer, because the run waits for it; on Windows, do nothing."""
    if sys.platform == "win32":
        yield
        return

    def give_up(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _learning_s(config: RunConfig, spec: BehaviorSpec) -> float:
    """Return about how long an on-policy trainer learns from a row: the time of its matrix products."""
    settings = config.behavior_settings(spec.name)
    widths = (sum(prod(seen.shape) for seen in spec.observations), *settings.network_settings.widths)
    weights = sum(inputs * units for inputs, units in pairwise(widths))
    # Actor and critic each take three products with their weights: one forward, two backward.
    return 2 * 3 * 2 * weights * getattr(settings.declared_hyperparameters, "num_epoch", 1) / _FLOPS


def random_actions(
    group: EnvironmentGroup, result: StepResult, random: np.random.Generator
) -> Mapping[str, ActionBatch]:
    """Return uniformly random actions for all agents that decide, within their masks."""
    return {
        behavior_id: uniform_actions(
            group.behavior_specs[behavior_id].actions, len(steps.agent_ids) - steps.ended, steps.action_masks, random
        )
        for behavior_id, steps in result.steps.items()
    }
