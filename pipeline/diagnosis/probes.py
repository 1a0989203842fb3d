"""Short experiments where a run's statistics can't tell the cause; each adds statistics that the rules read.

The environment's experiments run in a process of their own (`headrace.pipeline.main.run_shape.probe`), so a hang or a
crash there is reported as such. They play the environment as the run does, so every kind that can be played counts.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import RunConfig
from headrace.pipeline.diagnosis.measurements import MOST_COMPONENTS, RowMeasurements
from headrace.queues.messages import ActionBatch, Array, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, maybe_await
from headrace.stages.environments.stepping_time import random_actions

ROWS = 4096
"""Number of rows of random play, if `SECONDS` allow."""
SECONDS = 4.0
INSTANCES = 4
TICKS = 64
"""Maximum number of ticks for which each constant action is held."""
LEAST_TICKS = 5
"""Below this number of ticks, an equal outcome proves nothing."""
LEVELS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
"""Constant values of continuous actions, in the policy's range."""
NEAR = (-0.9996, 0.004)
"""Values beside the lower bound and beside 0, which matter only in a range that is far too wide."""
Fact = tuple[str, str, float]
"""Behaviour, statistic and value."""


async def environment_facts(config: RunConfig, folder: str = "") -> list[Fact]:
    """Play at random, then hold constant actions from the same seed; return what that shows.

    Args:
        config: the run's configuration.
        folder: the run's folder, whose policy is probed and whose settings learn a one-step task; empty for neither.

    Raises:
        StageError: as `make_group`.
    """
    facts = list[Fact]()
    group = make_group(EnvironmentRequest(_with_instances(config, INSTANCES)))
    try:
        for spec, batch in await _random_play(group):
            facts += [(spec.name, name, value) for name, value in measured(spec, batch)]
            if len(returns := batch.episodes["episode_returns"]):
                facts.append((spec.name, "Probe/Random Return", float(returns.mean())))
            settings = config.known_settings(spec.name)
            if folder and settings is not None:
                extrinsic = settings.reward_signals.extrinsic
                facts += policy_facts(folder, spec, batch, extrinsic.gamma if extrinsic is not None else 0.99)
                facts += await trainer_facts(config, spec)
    finally:
        await maybe_await(group.close)
    group = make_group(EnvironmentRequest(_with_instances(config, 1)))
    try:
        facts += await _constant_actions(group)
    finally:
        await maybe_await(group.close)
    return facts


def measured(spec: BehaviorSpec, batch: TrajectoryBatch) -> Iterator[tuple[str, float]]:
    """Yield the measurements of rows whose continuous actions are in the environment's form."""
    measurements, statistics = RowMeasurements(spec, squashed=True, every=batch.num_rows), _Collected()
    measurements.add(batch)
    measurements.report(statistics, spec.name)
    yield from statistics.values.items()


class _Collected:
    """Statistics as a map."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, _category: str, name: str, value: float, _how: str = "mean") -> None:
        self.values[name] = value

    def extend(self, category: str, name: str, values: Any, how: str = "histogram") -> None:
        raise AssertionError("measurements are single values")


def _with_instances(config: RunConfig, count: int) -> RunConfig:
    section = config.environment
    if section is None:
        return config
    options = {key: value for key, value in section.options.items() if key != "render_mode"}
    return config.model_copy(update={"environment": section.model_copy(update={"num_envs": count, "options": options})})


async def _random_play(group: EnvironmentGroup) -> list[tuple[BehaviorSpec, TrajectoryBatch]]:
    """Play uniformly random actions, and return each behaviour's rows."""
    random, records = np.random.default_rng(0), defaultdict[str, list[dict[str, Array]]](list)
    result, rows, end = await maybe_await(group.reset, 0), 0, time.monotonic() + SECONDS
    while rows < ROWS * max(1, len(records)) and time.monotonic() < end:
        actions = random_actions(group, result, random)
        for behavior_id, steps in result.steps.items():
            records[behavior_id].append(_record(steps, actions[behavior_id]))
            rows += len(steps.agent_ids) - steps.ended
        result = await maybe_await(group.step, actions)
    return [(group.behavior_specs[name], _as_batch(group.behavior_specs[name], many)) for name, many in records.items()]


def _record(steps: AgentSteps, actions: ActionBatch) -> dict[str, Array]:
    """Copy a tick's rows; endings, which come first, have no action."""
    ended = steps.ended

    def padded(column: Array) -> Array:
        return np.concatenate([np.zeros((ended, *column.shape[1:]), column.dtype), column])

    record: dict[str, Array] = {
        "agent_ids": steps.agent_ids.copy(),
        "episode_ids": steps.episode_ids.copy(),
        "rewards": steps.rewards.copy(),
        "decides": np.arange(len(steps.agent_ids)) >= ended,
        "terminated": np.concatenate([steps.terminated, np.zeros(len(steps.agent_ids) - ended, np.bool_)]),
        "continuous_actions": padded(actions.continuous),
        "discrete_actions": padded(actions.discrete),
    }
    if steps.action_masks is not None:
        record["action_masks"] = padded(steps.action_masks)
    return record | {f"obs_{i}": column.copy() for i, column in enumerate(steps.observations)}


def _as_batch(spec: BehaviorSpec, records: list[dict[str, Array]]) -> TrajectoryBatch:
    """Join what each agent saw, tick by tick, into one trajectory per episode."""
    order = np.argsort(np.concatenate([record["agent_ids"] for record in records]), kind="stable")
    seen = {name: np.concatenate([record[name] for record in records])[order] for name in records[0]}
    agents, episodes = seen["agent_ids"], seen["episode_ids"]
    follows = np.zeros(len(agents), np.bool_)
    follows[:-1] = (agents[1:] == agents[:-1]) & (episodes[1:] == episodes[:-1])
    rows = np.flatnonzero(seen["decides"] & follows)
    begins = np.r_[True, rows[1:] != rows[:-1] + 1]
    starts = np.flatnonzero(begins) if len(rows) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(rows)]).astype(np.int32)
    last = rows[starts + lengths - 1]
    columns = {
        name: seen[name][rows] for name in seen if name.startswith(("obs_", "continuous", "discrete", "action_"))
    }
    rewards = columns["rewards"] = seen["rewards"][rows + 1]
    over = ~seen["decides"][last + 1]
    trajectories = {
        "lengths": lengths,
        "agent_ids": agents[last],
        "terminated": over & seen["terminated"][last + 1],
        "truncated": over & ~seen["terminated"][last + 1],
        **{f"next_obs_{i}": seen[f"obs_{i}"][last + 1] for i in range(len(spec.observations))},
    }
    returns = np.add.reduceat(rewards, starts) if len(starts) else rewards
    ended = {"episode_returns": returns[over], "episode_lengths": lengths[over]}
    return TrajectoryBatch(spec.behavior_id, 0, columns, trajectories, ended)


async def _constant_actions(group: EnvironmentGroup) -> list[Fact]:
    """Hold each of several constant actions from the same seed, and compare what the first agent sees."""
    behavior_id = next(iter((await maybe_await(group.reset, 1)).steps))
    spec = group.behavior_specs[behavior_id].actions
    held: list[tuple[float, int]] = [(level, 0) for level in LEVELS] if spec.continuous_size else []
    held = held or [(0.0, choice) for choice in range(min(8, max(spec.discrete_branches, default=0)))]
    began = time.monotonic()
    await _held(group, behavior_id, *held[0], LEAST_TICKS)
    tick_s = (time.monotonic() - began) / LEAST_TICKS
    runs = len(held) + 1 + len(NEAR)
    ticks = int(np.clip(SECONDS / (runs * max(tick_s, 1e-6)), LEAST_TICKS, TICKS))  # fewer where a tick takes long
    paths = [await _held(group, behavior_id, level, choice, ticks) for level, choice in held]
    again = await _held(group, behavior_id, *held[0], ticks)
    name = group.behavior_specs[behavior_id].name
    if not _same(paths[0], again):  # not reproducible from a seed, so a difference would prove nothing
        return [(name, "Probe/Reproducible", 0.0)]
    if max(map(len, paths)) < LEAST_TICKS:
        return [(name, "Probe/Reproducible", 1.0)]
    differ = [not _same(paths[0], path) for path in paths[1:]]
    facts: list[Fact] = [(name, "Probe/Reproducible", 1.0), (name, "Probe/Actions that Matter", float(np.mean(differ)))]
    if spec.continuous_size and any(differ):
        equal = [_same(before, after) for before, after in pairwise(paths)]
        near = [await _held(group, behavior_id, level, 0, ticks) for level in NEAR]
        between = any(not any(_same(path, held_path) for held_path in paths) for path in near)
        # Without values in between, as where only an action's sign counts, the range is as good as any other.
        facts.append((name, "Probe/Saturated Actions", float(np.mean(equal)) if between else 0.0))
    return facts


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
        discrete = np.zeros((d, len(spec.discrete_branches)), np.int32)
        at = 0
        for branch, size in enumerate(spec.discrete_branches):
            wanted = np.full(d, min(choice, size - 1))
            if one.action_masks is not None:
                allowed = one.action_masks[:, at : at + size]
                distance = np.abs(np.arange(size) - wanted[:, None]) + np.where(allowed, 0, size)
                wanted = distance.argmin(1)
            discrete[:, branch] = wanted
            at += size
        actions[behavior_id] = ActionBatch(np.full((d, spec.continuous_size), level, np.float32), discrete)
    return actions


# Experiments with the policy and the trainer.


def policy_facts(folder: str, spec: BehaviorSpec, batch: TrajectoryBatch, gamma: float) -> list[Fact]:
    """Return which components of a vector observation the run's policy reacts to, and whether its critic predicts.

    Each component is permuted over the rows of random play; a component that changes no decision is not looked at. The
    critic's values are compared with the rows' discounted returns, and with the returns of permuted rewards.
    """
    from headrace.pipeline.common.errors import RunError
    from headrace.pipeline.prediction.policy import load_policy
    from headrace.stages.trainer.on_policy.trainer import accumulated

    if len(spec.observations) != 1 or len(spec.observations[0].shape) != 1:
        return []
    try:
        policy = load_policy(folder, spec.name)
        seen, random = batch.rows["obs_0"][:1024], np.random.default_rng(0)
        usual, facts = _decisions(policy, seen), list[Fact]()
        for i in range(min(seen.shape[1], MOST_COMPONENTS)):
            permuted = seen.copy()
            permuted[:, i] = random.permutation(permuted[:, i])
            changed = float(np.abs(_decisions(policy, permuted) - usual).max(1).mean())
            facts.append((spec.name, f"Probe/Effect of Component {i}", changed))
        values = np.asarray(policy.value(seen), np.float64)
    except (RunError, TypeError, ValueError, AttributeError):  # no policy yet, one with memory, or without a critic
        return []
    for name, rewards in (("", batch.rewards), (" of Permuted Rewards", random.permutation(batch.rewards))):
        returns = accumulated(rewards[:, None].astype(np.float64), np.array([gamma]), batch.lengths)[: len(seen), 0]
        if returns.std() > 0 and values.std() > 0:
            explained = float(np.corrcoef(values, returns)[0, 1] ** 2)
            facts.append((spec.name, f"Probe/Return by Value{name}", explained))
    return facts


def _decisions(policy: Any, observations: Array) -> NDArray[np.float64]:
    """Return probabilities of choices and means of continuous actions [n, …]."""
    distribution = policy.distribution(observations)
    return np.concatenate([*distribution.probabilities, distribution.means], 1, dtype=np.float64)


async def trainer_facts(config: RunConfig, spec: BehaviorSpec) -> list[Fact]:
    """Let the run's own settings learn `OneStepTask` with the run's spaces; return the reward's share above chance.

    If it stays low, the settings are to blame rather than the environment. Vector observations only.
    """
    from headrace.pipeline.diagnosis.one_step import one_step_run

    if any(len(observation.shape) != 1 for observation in spec.observations) or not spec.observations:
        return []
    learned = await one_step_run(config, spec)
    return [] if learned is None else [(spec.name, "Probe/One-Step Task", learned)]
