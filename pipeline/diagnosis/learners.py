"""Experiments with a run's policy, its trainer's settings and its recording: is it the data or the learner?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings, ConfigError, RunConfig
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.diagnosis.measurements import MOST_COMPONENTS
from headrace.queues.errors import StreamError
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import StreamReader
from headrace.stages.errors import StageError
from headrace.stages.replay import TRAINER_EDGE

STEPS, UPDATES = 4096, 16
"""Steps of the one-step task; more if `UPDATES` updates take more, up to `MOST_STEPS`."""
MOST_STEPS = 60_000
ONE_STEP_SECONDS, REPLAY_SECONDS = 12.0, 3.0
PERMUTED_ROWS, REPLAYED_ROWS = 1024, 20_000
"""Number of rows whose observations are permuted, and of recorded rows from which a fresh learner learns."""
FRESH: dict[str, dict[str, Any]] = {
    "ppo": {"buffer_size": 1024, "batch_size": 128, "num_epoch": 8, "beta": 0.005, "learning_rate": 1e-3},
    "sac": {"steps_per_update": 4, "batch_size": 128, "buffer_init_steps": 500, "learning_rate": 1e-3},
}
"""Hyperparameters of fresh learners by trainer, which suit a few thousand rows; the others are the run's own."""


async def learner_facts(
    config: RunConfig, folder: Path, spec: BehaviorSpec, batch: TrajectoryBatch, seconds: float
) -> AsyncIterator[tuple[str, float]]:
    """Yield what a behaviour's policy, settings and recording show, for vector observations.

    Args:
        config: the run's configuration.
        folder: the run's folder.
        spec: the behaviour.
        batch: rows of random play.
        seconds: how long the experiments may take.
    """
    end = time.monotonic() + seconds
    if not spec.observations or any(len(observation.shape) != 1 for observation in spec.observations):
        return
    if len(spec.observations) == 1:
        settings = config.behavior_settings(spec.name)
        with suppress(RunError, StageError, StreamError, ValueError, AttributeError):  # no policy yet, or no choices
            for fact in policy_facts(folder, spec, batch):
                yield fact
        with suppress(RunError, StageError, StreamError, ValueError):  # the recording is of something else
            for fact in replay_facts(folder, settings, spec, min(REPLAY_SECONDS, seconds / 4)):
                yield fact
    if (learned := await one_step_run(config, spec, min(ONE_STEP_SECONDS, end - time.monotonic()))) is not None:
        yield "Probe/One-Step Task", learned


# The policy.


def policy_facts(folder: Path, spec: BehaviorSpec, batch: TrajectoryBatch) -> Iterator[tuple[str, float]]:
    """Yield how much the run's decisions change if a component of the observation is permuted, or all are constant.

    A policy with memory sees the rows in order, from the start of each trajectory.
    """
    from headrace.pipeline.prediction.policy import load_policy

    policy, random = load_policy(folder, spec.name), np.random.default_rng(0)
    whole = np.cumsum(batch.lengths) <= PERMUTED_ROWS
    whole[0] = True
    lengths = np.minimum(batch.lengths[whole], PERMUTED_ROWS)
    seen = batch.rows["obs_0"][: lengths.sum()]
    usual = _decisions(policy, seen, lengths)
    constant = np.broadcast_to(seen.mean(0), seen.shape).astype(seen.dtype)
    yield "Probe/Effect of Constant Observations", _difference(_decisions(policy, constant, lengths), usual)
    for i in range(min(seen.shape[1], MOST_COMPONENTS)):
        permuted = seen.copy()
        permuted[:, i] = random.permutation(permuted[:, i])
        yield f"Probe/Effect of Component {i}", _difference(_decisions(policy, permuted, lengths), usual)


def _difference(decisions: NDArray[np.float64], usual: NDArray[np.float64]) -> float:
    return float(np.abs(decisions - usual).max(1).mean())


def _decisions(policy: Any, seen: Array, lengths: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return probabilities of choices and means of continuous actions [n, …]."""
    if not policy.state_size:
        return _heads(policy.distribution(seen))
    order = np.argsort(-lengths, kind="stable")  # the trajectories that still go on come first
    starts, state, found = (np.cumsum(lengths) - lengths)[order], None, dict[int, NDArray[np.float64]]()
    for t in range(int(lengths.max())):
        rows = starts[: int((lengths > t).sum())] + t
        before = None if state is None else state[: len(rows)]
        found |= dict(zip(rows.tolist(), _heads(policy.distribution(seen[rows], before)), strict=True))
        state = policy.predict(seen[rows], state=before).state
    return np.stack([found[row] for row in range(len(seen))])


def _heads(distribution: Any) -> NDArray[np.float64]:
    return np.concatenate([*distribution.probabilities, distribution.means], 1, dtype=np.float64)


# The recording.


def replay_facts(
    folder: Path, settings: BehaviorSettings, spec: BehaviorSpec, seconds: float
) -> Iterator[tuple[str, float]]:
    """Yield which share of later rows' returns the run's critic explains, and critics of fresh learners.

    One fresh learner learns from the recorded rows, the other one from the same rows with permuted rewards. Nothing if
    the run recorded no trainer's input (`record: {edges: [trainer]}`), or if its trainer's critic values no states.
    """
    from headrace.pipeline.policies.export import export_policy
    from headrace.pipeline.prediction.policy import load_policy
    from headrace.stages.trainer.factory import make_trainer
    from headrace.stages.trainer.on_policy.trainer import accumulated
    from headrace.stages.trainer.protocol import TrainerContext

    if settings.trainer_type not in FRESH or settings.network_settings.memory is not None:
        return
    if len(batches := _recorded(folder, spec)) < 5:
        return
    taught, later = batches[: len(batches) * 4 // 5], batches[len(batches) * 4 // 5 :]
    extrinsic = settings.reward_signals.extrinsic
    gamma = extrinsic.gamma if extrinsic is not None else 0.99
    seen = np.concatenate([batch.rows["obs_0"] for batch in later])
    rewards = np.concatenate([batch.rewards for batch in later])[:, None].astype(np.float64)
    returns = accumulated(rewards, np.array([gamma]), np.concatenate([batch.lengths for batch in later]))[:, 0]

    def explained(values: Array) -> float:
        if returns.std() <= 0 or values.std() <= 0:
            return 0.0
        return float(np.corrcoef(values, returns)[0, 1] ** 2)

    with suppress(RunError):
        yield "Probe/Returns by the Critic", explained(load_policy(folder, spec.name).value(seen))
    block = settings.model_dump(mode="json", by_alias=True) | {"reward_signals": {"extrinsic": {"gamma": gamma}}}
    block["hyperparameters"] |= FRESH[settings.trainer_type]
    block["network_settings"] |= {"normalize": True, "hidden_units": 64, "num_layers": 2}
    fresh, random = BehaviorSettings.model_validate(block), np.random.default_rng(0)
    end = time.thread_time() + seconds  # the same rows on a busy machine
    for name in ("", " of Permuted Rewards"):
        trainer, count = make_trainer(TrainerContext(spec.name, fresh, spec)), 0
        for batch in taught:
            if not name and time.thread_time() > end:
                break
            trainer.add(batch.replace(rewards=random.permutation(batch.rewards)) if name else batch)
            count += 1
            while trainer.ready():
                trainer.learn()
        taught = taught[:count]  # the second learner sees the same rows
        with tempfile.TemporaryDirectory() as target:
            export_policy(Path(target), trainer.exported_policy(), spec, fresh, learner=trainer.warm_state())
            policy = load_policy(next(Path(target).glob("*/checkpoint.pt")))
            yield f"Probe/Returns by a Fresh Critic{name}", explained(policy.value(seen))


def _recorded(folder: Path, spec: BehaviorSpec) -> Sequence[TrajectoryBatch]:
    """Return the first batches that the run's trainer received."""
    batches, rows = list[TrajectoryBatch](), 0
    for path in sorted((folder / "streams").glob("*.stream")):
        for frame in StreamReader(path):
            batch = frame.message
            if frame.edge != TRAINER_EDGE or not isinstance(batch, TrajectoryBatch) or batch.behavior != spec.name:
                continue
            batches.append(batch.copy())
            rows += batch.num_rows
            if rows >= REPLAYED_ROWS:
                return batches
    return batches


# The settings.


class OneStepTask(gymnasium.Env[Any, Any]):
    """The smallest task with a run's own spaces: pays for choice 0 in every branch and for positive values.

    An episode is one step, and what pays does not depend on the observation. Settings that do not learn this can't
    learn anything (Andy Jones, Debugging RL: probe environments with one action and one timestep).
    """

    def __init__(self, size: int, continuous: int, branches: list[int]) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.MultiDiscrete(branches)
        if continuous:
            self.action_space = gymnasium.spaces.Box(-1, 1, (continuous,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a random observation."""
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the share of the action's parts that pay."""
        box = isinstance(self.action_space, gymnasium.spaces.Box)
        pays = np.asarray(action) > 0 if box else np.asarray(action) == 0
        return self.reset()[0], float(np.mean(pays)), True, False, {}


async def one_step_run(config: RunConfig, spec: BehaviorSpec, seconds: float) -> float | None:
    """Return the share of the reward above chance that the run's settings reach.

    None if they can't be tried alone, or have not reached half of it when the time is over.
    """
    from headrace.pipeline.run import run_async
    from headrace.stages.trainer.protocol import rows_per_update

    settings, actions = config.behavior_settings(spec.name), spec.actions
    block = config.to_plain()["behaviors"].get(spec.name) or settings.model_dump(mode="json", by_alias=True)
    steps = max(STEPS, UPDATES * rows_per_update(settings, 8, settings.trainer_type == "sac"))
    block |= {"max_steps": min(steps, MOST_STEPS), "summary_freq": 10**9, "self_play": None, "league": None}
    block |= {"brain": (), "behavioral_cloning": None, "init_path": None, "stop_when": None, "even_checkpoints": False}
    block["reward_signals"] = {"extrinsic": block["reward_signals"].get("extrinsic") or {}}
    size, branches = sum(one.size for one in spec.observations), [*actions.discrete_branches]
    options = {"size": size, "continuous": actions.continuous_size, "branches": branches}
    task = {"kind": "gymnasium", "factory": f"{__name__}:OneStepTask", "num_envs": 8, "options": options}
    with tempfile.TemporaryDirectory() as folder:
        run = {"run_id": "one-step", "results_dir": folder}
        hosts = {which: {"kind": "inline"} for which in ("actors", "learners")}
        pipeline = {"hosts": hosts, "deterministic": True, "max_wall_time_s": max(1.0, seconds)}
        small = {"environment": {**task, "behavior": spec.name}, "behaviors": {spec.name: block}}
        whole = small | {"checkpoint_settings": run, "pipeline": pipeline, "env_settings": {"seed": 1}}
        try:
            result = await run_async(RunConfig.from_plain(whole), console=False)
        except (ConfigError, RunError, RunFailed):
            return None
    chance = 0.5 if actions.continuous_size else float(np.mean([1 / size for size in actions.discrete_branches]))
    learned = result.behaviors.get(spec.name)
    if learned is None or learned.recent_return is None:
        return None
    share = (learned.recent_return - chance) / (1 - chance)
    return share if share > 0.5 or learned.step >= block["max_steps"] else None
