"""Short experiments where a run's statistics can't tell the cause; each adds statistics that the rules read.

They run in a process of their own (`headrace.pipeline.main.run_shape.probe`), so a hang or a crash of the environment
is reported as such. They write each fact to a file as soon as it is known, so that none is lost then. They play the
environment as the run does, so every kind that can be played counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.config import RunConfig
from headrace.pipeline.diagnosis.measurements import LEAST_ROWS, PREFIX, Window, tables
from headrace.pipeline.main.run_shape import with_num_envs
from headrace.queues.messages import ActionBatch, StepBatch, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.agent.processor import AgentProcessor
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, maybe_await
from headrace.stages.environments.stepping_time import random_actions

ROWS = 4096
"""Number of rows of random play, if `SECONDS` allow."""
SECONDS = 4.0
LEARNING_SECONDS = 30.0
"""Seconds for the experiments with policies and trainers, which the behaviours share."""
INSTANCES = 4
TICKS = 64
"""Maximum number of ticks for which each constant action is held."""
LEAST_TICKS = 5
"""Below this number of ticks, an equal outcome proves nothing."""
LEVELS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
"""Constant values of continuous actions, in the policy's range."""
NEAR = (-0.9996, 0.004)
"""Values beside the lower bound and beside 0, which matter only in a range that is far too wide."""
Fact = tuple[str, float]
"""Statistic and value."""
T = TypeVar("T")


async def write_facts(config: RunConfig, path: str, folder: str = "") -> list[str]:
    """Play at random, hold constant actions from the same seed, and probe a run's policy and settings.

    Each line of the file becomes a JSON list: behaviour, statistic, value.

    Args:
        config: the run's configuration. A game that is a program of its own is only played at random.
        path: the file.
        folder: the run's folder, whose policy is probed and whose settings learn a one-step task; empty for neither.

    Raises:
        StageError: as `make_group`.
    """
    from headrace.pipeline.diagnosis.learners import learner_facts

    def write(behavior: str, facts: Iterable[Fact]) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps((behavior, name, value)) + "\n" for name, value in facts)

    apart = config.environment_kind.apart
    played = await _in_group(config, 1 if apart else INSTANCES, _random_play)
    for spec, batch in played:
        write(spec.name, measured(spec, batch))
        if len(returns := batch.episodes["episode_returns"]):
            write(spec.name, [("Probe/Random Return", float(returns.mean()))])
    if not apart:
        write(*await _in_group(config, 1, _constant_actions))
    end, known = time.monotonic() + LEARNING_SECONDS, [one for one in played if config.known_settings(one[0].name)]
    for i, (spec, batch) in enumerate(known if folder else ()):
        share = (end - time.monotonic()) / (len(known) - i)
        async for fact in learner_facts(config, Path(folder), spec, batch, share):
            write(spec.name, [fact])
    return []


async def _in_group(config: RunConfig, count: int, use: Callable[[EnvironmentGroup], Awaitable[T]]) -> T:
    """Return what a function finds in a group of this many instances, which open no window."""
    config = with_num_envs(config, count)
    if (section := config.environment) is not None:
        options = {key: value for key, value in section.options.items() if key != "render_mode"}
        config = config.model_copy(update={"environment": section.model_copy(update={"options": options})})
    group = make_group(EnvironmentRequest(config))
    try:
        return await use(group)
    finally:
        await maybe_await(group.close)


def measured(spec: BehaviorSpec, batch: TrajectoryBatch) -> Iterator[Fact]:
    """Yield the measurements of random play, whose continuous actions are in the environment's form."""
    if batch.num_rows >= LEAST_ROWS:
        for name, value in Window([tables(batch, spec, squashed=True)]).measure():
            yield PREFIX + name, value


async def _random_play(group: EnvironmentGroup) -> list[tuple[BehaviorSpec, TrajectoryBatch]]:
    """Play uniformly random actions, and return each behaviour's trajectories."""
    random, processor = np.random.default_rng(0), AgentProcessor(lambda name: ROWS)
    result, rows, end = await maybe_await(group.reset, 0), 0, time.monotonic() + SECONDS
    while rows < ROWS * max(1, len(group.behavior_specs)) and time.monotonic() < end:
        actions = random_actions(group, result, random)
        for behavior_id, steps in result.steps.items():
            processor.add(_decided(behavior_id, steps, actions[behavior_id]))
            rows += len(steps.agent_ids) - steps.ended
        result = await maybe_await(group.step, actions)
    return [(group.behavior_specs[batch.behavior_id], batch) for batch in processor.flush()]


def _decided(behavior_id: str, steps: AgentSteps, actions: ActionBatch) -> StepBatch:
    """Return one tick's rows with the actions as decisions."""
    masks = {} if steps.action_masks is None else {"action_masks": steps.action_masks}
    zeros = np.zeros(len(steps.agent_ids) - steps.ended, np.int32)
    return StepBatch(
        behavior_id,
        steps.agent_ids,
        steps.env_ids,
        steps.episode_ids,
        steps.observations,
        steps.rewards,
        steps.ended,
        steps.terminated,
        steps.truncated,
        {"continuous_actions": actions.continuous, "discrete_actions": actions.discrete, **masks},
        policy_versions=zeros.astype(np.int64),
        generations=zeros,
        learning=zeros == 0,
        opponents=zeros - 1,
        group_ids=steps.group_ids,
        group_rewards=steps.group_rewards,
        env_frames=steps.env_frames,
        undiscounted=steps.undiscounted,
    )


async def _constant_actions(group: EnvironmentGroup) -> tuple[str, list[Fact]]:
    """Hold each of several constant actions from the same seed, and compare what the first agent sees.

    Returns:
        The agent's behaviour, and what the comparison shows.
    """
    behavior_id = next(iter((await maybe_await(group.reset, 1)).steps))
    spec, name = group.behavior_specs[behavior_id].actions, group.behavior_specs[behavior_id].name
    held: list[tuple[float, int]] = [(level, 0) for level in LEVELS] if spec.continuous_size else []
    held = held or [(0.0, choice) for choice in range(min(8, max(spec.discrete_branches, default=0)))]
    began = time.monotonic()
    await _held(group, behavior_id, *held[0], LEAST_TICKS)
    tick_s = (time.monotonic() - began) / LEAST_TICKS
    runs = len(held) + 1 + len(NEAR)
    ticks = int(np.clip(SECONDS / (runs * max(tick_s, 1e-6)), LEAST_TICKS, TICKS))  # fewer where a tick takes long
    paths = [await _held(group, behavior_id, level, choice, ticks) for level, choice in held]
    again = await _held(group, behavior_id, *held[0], ticks)
    if not _same(paths[0], again):  # not reproducible from a seed, so a difference would prove nothing
        return name, [("Probe/Reproducible", 0.0)]
    facts = [("Probe/Reproducible", 1.0)]
    differ = [not _same(paths[0], path) for path in paths[1:]]
    if max(map(len, paths)) >= LEAST_TICKS:
        facts.append(("Probe/Actions that Matter", float(np.mean(differ))))
        if spec.continuous_size and any(differ):
            equal = [_same(before, after) for before, after in pairwise(paths)]
            near = [await _held(group, behavior_id, level, 0, ticks) for level in NEAR]
            between = any(not any(_same(path, held_path) for held_path in paths) for path in near)
            # Without values in between, as where only an action's sign counts, the range is as good as any other.
            facts.append(("Probe/Saturated Actions", float(np.mean(equal)) if between else 0.0))
    return name, facts


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=True))


async def _held(
    group: EnvironmentGroup, behavior_id: str, level: float, choice: int, ticks: int
) -> NDArray[np.float64]:
    """Return what the first agent sees and is paid while all agents hold a constant action, until its episode ends."""
    result: StepResult = await maybe_await(group.reset, 1)
    path: list[NDArray[np.float64]] = []
    agent = int(result.steps[behavior_id].agent_ids[result.steps[behavior_id].ended])
    for _ in range(ticks):
        result = await maybe_await(group.step, _constant(group, result.steps, level, choice))
        steps = result.steps.get(behavior_id)
        if steps is None or agent not in steps.agent_ids:
            continue
        at = int(np.flatnonzero(steps.agent_ids == agent)[0])
        path.append(np.concatenate([*(one[at].ravel() for one in steps.observations), steps.rewards[at : at + 1]]))
        if at < steps.ended:
            break
    return np.array(path, np.float64)


def _constant(
    group: EnvironmentGroup, steps: Mapping[str, AgentSteps], level: float, choice: int
) -> dict[str, ActionBatch]:
    """Return the constant action, or in each branch the nearest choice that exists and is allowed."""
    actions = {}
    for behavior_id, one in steps.items():
        spec, d = group.behavior_specs[behavior_id].actions, len(one.agent_ids) - one.ended
        discrete, at = np.zeros((d, len(spec.discrete_branches)), np.int32), 0
        for branch, size in enumerate(spec.discrete_branches):
            distance = np.tile(np.abs(np.arange(size) - choice), (d, 1))
            if one.action_masks is not None:
                distance += np.where(one.action_masks[:, at : at + size], 0, max(size, choice + 1))
            discrete[:, branch] = distance.argmin(1)
            at += size
        actions[behavior_id] = ActionBatch(np.full((d, spec.continuous_size), level, np.float32), discrete)
    return actions
