"""Short experiments where a run's statistics can't tell the cause: each tells statistics or a sentence.

They run in a process of their own (`headrace.pipeline.main.run_shape.probe`), so a hang or a crash of the environment
is reported as such.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings, ConfigError, RunConfig
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.diagnosis.measurements import LEAST_ROWS, MOST_COMPONENTS, PREFIX, Window, tables
from headrace.pipeline.diagnosis.rules import planned_gradient_steps
from headrace.pipeline.main.run_shape import with_num_envs
from headrace.queues.errors import StreamError
from headrace.queues.messages import ActionBatch, Array, StepBatch, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import StreamReader
from headrace.stages.agent.processor import AgentProcessor
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, maybe_await
from headrace.stages.environments.stepping_time import random_actions
from headrace.stages.errors import StageError
from headrace.stages.replay import TRAINER_EDGE

ROWS, SECONDS, INSTANCES = 4096, 4.0, 4
"""Rows of random play, its seconds at most, and its instances."""
LEARNING_SECONDS = 30.0
"""Seconds for the experiments with policies and trainers, which the behaviours share."""
LEAST_TICKS, TICKS = 5, 32
"""Ticks for which actions are held; an equal outcome of fewer than the least proves nothing."""
LEVELS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
"""Constant values of continuous actions, in the policy's range."""
NEAR = (-0.9996, 0.004)
"""Values beside the lower bound and beside 0, which matter only in a range that is far too wide."""
PERMUTED_ROWS, REPLAYED_ROWS = 1024, 8000
"""Rows whose observations are permuted, and recorded rows from which a fresh learner learns."""
FRESH: dict[str, dict[str, Any]] = {
    "ppo": {"buffer_size": 1024, "batch_size": 128, "num_epoch": 8, "beta": 0.005, "learning_rate": 1e-3},
    "sac": {"steps_per_update": 4, "batch_size": 128, "buffer_init_steps": 500, "learning_rate": 1e-3},
}
"""Hyperparameters of fresh learners by trainer, which suit a few thousand rows; the others are the run's own."""
Facts = list[tuple[str, str, float | None]]
"""Behaviour, statistic and value; or behaviour, sentence and None."""
T = TypeVar("T")


async def facts_about(config: RunConfig, folder: str) -> Facts:
    """Play at random, hold actions from the same seed, and probe a run's policy, recording and settings.

    Args:
        config: the run's configuration. A game that is a program of its own is only played at random.
        folder: the run's folder; empty before a run, whose learner is not probed.

    Raises:
        StageError: as `make_group`.
    """
    apart = config.environment_kind.apart
    played = await _in_group(config, 1 if apart else INSTANCES, _random_play)
    found = [fact for spec, batch in played for fact in _measured(config, spec, batch)]
    found += [] if apart else await _in_group(config, 1, _held_actions)
    end = time.monotonic() + LEARNING_SECONDS
    for spec, batch in played if folder else ():
        settings, vectors = config.known_settings(spec.name), [one for one in spec.observations if len(one.shape) == 1]
        if settings is None or not vectors or len(vectors) < len(spec.observations):
            continue
        if len(vectors) == 1 and settings.network_settings.memory is None:
            for sentences in (_policy(Path(folder), spec, batch), _replayed(Path(folder), settings, spec)):
                # No policy yet, no choices, or a recording of something else.
                with suppress(RunError, StageError, StreamError, ValueError, AttributeError):
                    found += [(spec.name, said, None) for said in sentences]
        if (share := await _one_step(config, settings, spec, min(12.0, end - time.monotonic()))) is not None:
            verdict = "learn" if share > 0.5 else "do not learn"
            said = f"the settings {verdict} a one-step task with these spaces ({share:.2f} of 1)"
            found.append((spec.name, said, None))
    return found


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


# The environment.


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


def _measured(config: RunConfig, spec: BehaviorSpec, batch: TrajectoryBatch) -> Facts:
    """Return the measurements of random play, whose continuous actions are in the environment's form."""
    settings, returns = config.known_settings(spec.name), batch.episodes.get("episode_returns", np.zeros(0))
    facts = {"Probe/Random Return": float(returns.mean())} if len(returns) else {}
    if batch.num_rows >= LEAST_ROWS:
        facts |= {PREFIX + name: value for name, value in Window([tables(batch, spec, squashed=True)]).measure()}
    if settings is not None and (planned := planned_gradient_steps(settings)) is not None:
        facts["gradient steps planned"] = planned
    wanted = ["Random Return", "Median Episode Length", "Terminated Episodes", "Rewarded Steps", "Reward Deviation"]
    wanted += ["Observation Scale", "Constant Observations", "Duplicate Observations", "gradient steps planned"]
    short = {name.rpartition("/")[2]: value for name, value in facts.items()}
    said = ", ".join(f"{name} {short[name]:.4g}" for name in wanted if name in short)
    return [(spec.name, f"random play: {said}", None), *((spec.name, *fact) for fact in facts.items())]


def _decided(behavior_id: str, steps: AgentSteps, actions: ActionBatch) -> StepBatch:
    """Return one tick's rows with the actions as decisions."""
    masks = {} if steps.action_masks is None else {"action_masks": steps.action_masks}
    zeros = np.zeros(len(steps.agent_ids) - steps.ended, np.int32)
    same = {one.name for one in fields(steps)} & {one.name for one in fields(StepBatch)}
    return StepBatch(
        behavior_id,
        decisions={"continuous_actions": actions.continuous, "discrete_actions": actions.discrete, **masks},
        policy_versions=zeros.astype(np.int64),
        generations=zeros,
        learning=zeros == 0,
        opponents=zeros - 1,
        **{name: getattr(steps, name) for name in same},
    )


async def _held_actions(group: EnvironmentGroup) -> Facts:
    """Play several actions from the same seed, and compare what the first agent sees, if that can be repeated."""
    behavior_id = next(iter((await maybe_await(group.reset, 1)).steps))
    name, continuous = group.behavior_specs[behavior_id].name, group.behavior_specs[behavior_id].actions.continuous_size
    held = LEVELS if continuous else tuple(range(8))
    again, *paths = [await _path(group, behavior_id, value) for value in (held[0], *held)]
    same = partial(np.array_equal, equal_nan=True)
    if not same(paths[0], again) or max(map(len, paths)) < LEAST_TICKS:
        return []
    differ = float(np.mean([not same(paths[0], path) for path in paths[1:]]))
    found: Facts = [(name, "Probe/Actions that Matter", differ)]
    if continuous:
        near = [await _path(group, behavior_id, value) for value in NEAR]
        equal = float(np.mean([same(before, after) for before, after in pairwise(paths)]))
        # Without values in between, as where only an action's sign counts, the range is as good as any other.
        between = any(not any(same(path, other) for other in paths) for path in near)
        found.append((name, "Probe/Saturated Actions", equal if between else 0.0))
    return found


async def _path(group: EnvironmentGroup, behavior_id: str, value: float) -> NDArray[np.float64]:
    """Return what the first agent sees and is paid from one seed until its episode ends.

    The value is that of all continuous actions; without these, it is the seed of choices that differ from tick to tick.
    """
    result: StepResult = await maybe_await(group.reset, 1)
    chosen = 0 if group.behavior_specs[behavior_id].actions.continuous_size else int(value)
    path, random = list[NDArray[np.float64]](), np.random.default_rng(chosen)
    agent = int(result.steps[behavior_id].agent_ids[result.steps[behavior_id].ended])
    for _ in range(TICKS):
        actions = random_actions(group, result, random)
        held = {name: replace(one, continuous=np.full_like(one.continuous, value)) for name, one in actions.items()}
        result = await maybe_await(group.step, held)
        steps = result.steps.get(behavior_id)
        if steps is None or agent not in steps.agent_ids:
            continue
        at = int(np.flatnonzero(steps.agent_ids == agent)[0])
        path.append(np.concatenate([*(one[at].ravel() for one in steps.observations), steps.rewards[at : at + 1]]))
        if at < steps.ended:
            break
    return np.array(path, np.float64)


# The policy, the recording and the settings: is it the data or the learner?


def _policy(folder: Path, spec: BehaviorSpec, batch: TrajectoryBatch) -> Iterator[str]:
    """Yield how much the run's decisions change if a component of the observation is permuted, or all are constant."""
    from headrace.pipeline.prediction.policy import load_policy

    policy, random = load_policy(folder, spec.name), np.random.default_rng(0)
    seen = batch.rows["obs_0"][:PERMUTED_ROWS]

    def effect(observations: Array) -> float:
        """Return how much probabilities of choices and means of continuous actions change."""
        now, usual = policy.distribution(observations), policy.distribution(seen)
        pairs = zip([*now.probabilities, now.means], [*usual.probabilities, usual.means], strict=True)
        return float(np.concatenate([np.abs(one - other) for one, other in pairs], 1).max(1).mean())

    effects = list[float]()
    for i in range(min(seen.shape[1], MOST_COMPONENTS)):
        permuted = seen.copy()
        permuted[:, i] = random.permutation(permuted[:, i])
        effects.append(effect(permuted))
    ignored = [str(i) for i, one in enumerate(effects) if one < max(1e-3, 0.01 * max(effects))]
    constant = np.broadcast_to(seen.mean(0), seen.shape).astype(seen.dtype)
    which = f"all but {', '.join(ignored)}" if ignored else "all"
    yield f"each component of the observation permuted: the policy reacts to {which}"
    yield f"constant observations change its decisions by {effect(constant):.2g}"


def _replayed(folder: Path, settings: BehaviorSettings, spec: BehaviorSpec) -> Iterator[str]:
    """Yield which share of later rows' returns the run's critic explains, and critics of fresh learners.

    One learns from the recorded rows, the other from the same with permuted rewards. Nothing if the run recorded no
    trainer's input (`record: {edges: [trainer]}`), or if its trainer's critic values no states.
    """
    from headrace.pipeline.policies.export import export_policy
    from headrace.pipeline.prediction.policy import load_policy
    from headrace.stages.trainer.factory import make_trainer
    from headrace.stages.trainer.on_policy.trainer import accumulated
    from headrace.stages.trainer.protocol import TrainerContext

    batches, frames = list[TrajectoryBatch](), (StreamReader(path) for path in sorted(folder.glob("streams/*.stream")))
    for frame in chain.from_iterable(frames):
        batch = frame.message
        if frame.edge == TRAINER_EDGE and isinstance(batch, TrajectoryBatch) and batch.behavior == spec.name:
            batches.append(batch.copy())
        if sum(one.num_rows for one in batches) >= REPLAYED_ROWS:
            break
    if settings.trainer_type not in FRESH or len(batches) < 5:
        return
    taught, later = batches[: len(batches) * 4 // 5], batches[len(batches) * 4 // 5 :]
    gamma = settings.signals["extrinsic"].gamma if "extrinsic" in settings.signals else 0.99
    seen = np.concatenate([batch.rows["obs_0"] for batch in later])
    rewards = np.concatenate([batch.rewards for batch in later])[:, None].astype(np.float64)
    returns = accumulated(rewards, np.array([gamma]), np.concatenate([batch.lengths for batch in later]))[:, 0]

    def explained(policy: Any) -> float:
        values = policy.value(seen)
        return float(np.corrcoef(values, returns)[0, 1] ** 2) if min(returns.std(), values.std()) > 0 else 0.0

    block = settings.model_dump(mode="json", by_alias=True) | {"reward_signals": {"extrinsic": {"gamma": gamma}}}
    block["hyperparameters"] |= FRESH[settings.trainer_type]
    block["network_settings"] |= {"normalize": True, "hidden_units": 64, "num_layers": 2}
    fresh, random, shares = BehaviorSettings.model_validate(block), np.random.default_rng(0), list[float]()
    for lesson in (taught, [batch.replace(rewards=random.permutation(batch.rewards)) for batch in taught]):
        trainer = make_trainer(TrainerContext(spec.name, fresh, spec))
        for batch in lesson:
            trainer.add(batch)
            while trainer.ready():
                trainer.learn()
        with tempfile.TemporaryDirectory() as target:
            export_policy(Path(target), trainer.exported_policy(), spec, fresh, learner=trainer.warm_state())
            shares.append(explained(load_policy(next(Path(target).glob("*/checkpoint.pt")))))
    own = explained(load_policy(folder, spec.name))
    verdict = "the learner is to blame" if own < shares[0] / 2 else "the run's learner does as well"
    verdict = verdict if shares[0] > shares[1] + 0.1 else "the data hardly tell what pays"
    yield (
        f"the recording replayed into a fresh learner: its critic explains {shares[0]:.0%} of later returns, "
        f"{shares[1]:.0%} with permuted rewards, and the run's own {own:.0%}: {verdict}"
    )


class OneStepTask(gymnasium.Env[Any, Any]):
    """The smallest task with a run's own spaces: pays for choice 0 in every branch and for positive values.

    Settings that do not learn this can't learn anything (Andy Jones, Debugging RL: probe environments).
    """

    def __init__(self, size: int, continuous: int, branches: list[int]) -> None:
        self.observation_space, self._continuous = gymnasium.spaces.Box(-1, 1, (size,), np.float32), continuous
        box = gymnasium.spaces.Box(-1, 1, (continuous,), np.float32)
        self.action_space = box if continuous else gymnasium.spaces.MultiDiscrete(branches)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a random observation."""
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the share of the action's parts that pay."""
        pays = np.asarray(action) > 0 if self._continuous else np.asarray(action) == 0
        return self.reset()[0], float(np.mean(pays)), True, False, {}


async def _one_step(config: RunConfig, settings: BehaviorSettings, spec: BehaviorSpec, seconds: float) -> float | None:
    """Return the share of the one-step task's reward above chance that the run's settings reach.

    None if they can't be tried alone, or have not reached half of it when the time is over.
    """
    from headrace.pipeline.run import run_async
    from headrace.stages.trainer.protocol import rows_per_update

    actions, size, branches = (
        spec.actions,
        sum(one.size for one in spec.observations),
        [*spec.actions.discrete_branches],
    )
    block = config.to_plain()["behaviors"].get(spec.name) or settings.model_dump(mode="json", by_alias=True)
    steps = int(np.clip(16 * rows_per_update(settings, 8, settings.trainer_type == "sac"), 4096, 60_000))
    block |= {"max_steps": steps, "summary_freq": 10**9, "even_checkpoints": False, "brain": ()}
    block |= dict.fromkeys(("self_play", "league", "stop_when", "behavioral_cloning", "init_path"))
    block["reward_signals"] = {"extrinsic": block["reward_signals"].get("extrinsic") or {}}
    options = {"size": size, "continuous": actions.continuous_size, "branches": [*branches]}
    task = {"kind": "gymnasium", "factory": f"{__name__}:OneStepTask", "num_envs": 8, "options": options}
    hosts = {which: {"kind": "inline"} for which in ("actors", "learners")}
    small = {
        "environment": {**task, "behavior": spec.name},
        "behaviors": {spec.name: block},
        "pipeline": {"hosts": hosts, "deterministic": True, "max_wall_time_s": max(1.0, seconds)},
        "env_settings": {"seed": 1},
    }
    with tempfile.TemporaryDirectory() as folder, suppress(ConfigError, RunError, RunFailed):
        small["checkpoint_settings"] = {"run_id": "one-step", "results_dir": folder}
        learned = (await run_async(RunConfig.from_plain(small), console=False)).behaviors.get(spec.name)
        chance = 0.5 if actions.continuous_size else float(np.mean([1 / size for size in branches]))
        if learned is not None and learned.recent_return is not None:
            share = (learned.recent_return - chance) / (1 - chance)
            return share if share > 0.5 or learned.step >= steps else None
    return None
