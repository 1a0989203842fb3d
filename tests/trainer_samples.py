"""Trainers of any kind in small, random experience for them, and demonstrations as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import BehaviorSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.queues.stream_file import StreamHeader, StreamWriter
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import Trainer, TrainerContext

VECTOR = ObservationSpec("vector", (3,))
IMAGE = ObservationSpec("image", (3, 20, 20), "uint8")
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 16, "buffer_size": 32, "num_epoch": 1, "learning_rate": 1e-2},
    "poca": {"batch_size": 16, "buffer_size": 32, "num_epoch": 1, "learning_rate": 1e-2},
    "impala": {
        "unroll_length": 4,
        "batch_size": 8,
        "batch_size_from_replay": 0,
        "replay_sampling": "reservoir",
        "policy_cloning_cost": 0.01,
        "value_cloning_cost": 0.005,
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-8,
        "reward_normalization": False,
    },
    "sac": {"batch_size": 16, "buffer_size": 256, "learning_rate": 1e-2, "steps_per_update": 8},
    "bc": {"batch_size": 16, "buffer_size": 32, "learning_rate": 1e-2, "teacher": "Other"},
}


NETWORK = {"hidden_units": 8, "num_layers": 1, "normalize": False, "activation": "swish"}
"""The same for all trainers, some of which have defaults of their own."""


class Reported:
    """What a trainer of the behaviour `Test` reports, by name, and as what kind of statistic."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.hows: dict[str, str] = {}

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        assert category == "Test"
        self.hows[name] = how
        self.values.setdefault(name, []).append(value)

    def extend(self, category: str, name: str, values: Any, how: str = "histogram") -> None:
        for value in values:
            self.add(category, name, value, how)

    def last(self, name: str) -> float:
        """The newest value of a statistic."""
        return self.values[name][-1]


def experience(
    spec: BehaviorSpec, lengths: list[int], seed: int = 0, memory_size: int = 0, squashed: bool = False
) -> TrajectoryBatch:
    """Random trajectories, one agent each, as a policy of these actions would have made them."""
    random = np.random.default_rng(seed)
    n, k, actions = sum(lengths), len(lengths), spec.actions
    rows = {f"obs_{i}": _observation(random, o, n) for i, o in enumerate(spec.observations)}
    rows["rewards"] = random.normal(size=n).astype(np.float32)
    rows["log_probs"] = -random.random((n, actions.log_prob_size)).astype(np.float32)
    trajectories: dict[str, Any] = {
        "lengths": np.array(lengths, np.int32),
        "agent_ids": np.arange(100, 100 + k),
        "episode_ids": np.full(k, seed),
        "terminated": np.arange(k) % 3 == 0,
        "truncated": np.arange(k) % 3 == 1,
        "first_version": np.zeros(k, np.int64),
        "last_version": np.zeros(k, np.int64),
        "generation": np.zeros(k, np.int32),
        "learning": np.ones(k, np.bool_),
        "opponent": np.full(k, -1, np.int32),
        "credits": np.array(lengths, np.int32),
        **{f"next_obs_{i}": _observation(random, o, k) for i, o in enumerate(spec.observations)},
    }
    if actions.continuous_size:
        drawn = random.normal(size=(n, actions.continuous_size)).astype(np.float32)
        rows["continuous_actions"] = np.tanh(drawn) if squashed else drawn
        trajectories["previous_continuous_actions"] = np.zeros((k, actions.continuous_size), np.float32)
    if actions.discrete_branches:
        branches = len(actions.discrete_branches)
        rows["discrete_actions"] = random.integers(0, actions.discrete_branches, (n, branches)).astype(np.int32)
        trajectories["previous_discrete_actions"] = np.zeros((k, branches), np.int32)
    if actions.masked:
        rows["action_masks"] = np.ones((n, actions.mask_size), np.bool_)
    if spec.grouped:  # two and two, from one tick on; each pair's trajectories are closed when the longer one is
        rows["group_rewards"] = random.normal(size=n).astype(np.float32)
        rows["ticks"] = np.concatenate([1000 * seed + np.arange(length) for length in lengths])
        trajectories["group_ids"] = 1 + np.arange(k) // 2
        trajectories["group_left"] = ~trajectories["terminated"]
        pairs = [lengths[i // 2 * 2 : i // 2 * 2 + 2] for i in range(k)]
        trajectories["next_ticks"] = 1000 * seed + np.array([max(pair) for pair in pairs])
    if memory_size:
        rows["memories"] = random.normal(size=(n, memory_size)).astype(np.float32)
    heads = 2 * actions.continuous_size + actions.mask_size  # for trainers that ask for them
    rows["action_heads"] = random.normal(size=(n, heads)).astype(np.float32)
    return TrajectoryBatch(spec.behavior_id, 0, rows, trajectories)


def played(trainer: Any, spec: BehaviorSpec, steps: int) -> TrajectoryBatch:
    """A trajectory of an on-policy trainer's own policy, of one vector each step, as an actor makes it."""
    policy = make_policy(design_of(spec, trainer.context.settings))
    policy.load(trainer.policy())
    random, recall, columns = np.random.default_rng(0), None, []
    seen = random.normal(size=(steps, 1, *spec.observations[0].shape)).astype(np.float32)
    for observation in seen:
        decision = policy.act((observation,), None, random, recall=recall)
        columns.append(decision.columns)
        recall = decision.recall
    made = experience(spec, [steps])
    rows = {**made.rows, **{name: np.concatenate([c[name] for c in columns]) for name in columns[0]}}
    return TrajectoryBatch(spec.behavior_id, 0, {**rows, "obs_0": seen[:, 0]}, made.trajectories)


def demonstrations(path: Path, spec: BehaviorSpec, seed: int = 7, **columns: float) -> Path:
    """A recording of a few random trajectories, to imitate; keyword arguments are the only value of a column."""
    config = {"behaviors": {spec.name: {"trainer_type": "sac"}}}
    header = StreamHeader.of("expert", 1.7e9, ("trainer",), (spec,), config, squashed=[spec.name])
    with StreamWriter(path, header) as writer:
        batch = experience(spec, [12, 9, 11], seed, squashed=True)
        batch = batch.replace(**{name: np.full_like(batch.rows[name], value) for name, value in columns.items()})
        writer.write("trainer", batch, 0.0)
    return path


def trainer_of(
    kind: str, spec: BehaviorSpec, seed: int = 0, statistics: Any = None, folder: Path | None = None, **settings: Any
) -> Trainer:
    """A small trainer; keyword arguments are keys of its block in the YAML."""
    return make_trainer(context_of(kind, spec, seed, statistics, folder, **settings))


def context_of(
    kind: str, spec: BehaviorSpec, seed: int = 0, statistics: Any = None, folder: Path | None = None, **settings: Any
) -> TrainerContext:
    """What `trainer_of` makes a trainer from."""
    hyperparameters = {**HYPERPARAMETERS[kind], **settings.pop("hyperparameters", {})}
    network = {**NETWORK, **settings.pop("network_settings", {})}
    block = {"trainer_type": kind, "hyperparameters": hyperparameters, "network_settings": network, **settings}
    extra = {} if statistics is None else {"statistics": statistics}
    return TrainerContext(spec.name, BehaviorSettings.model_validate(block), spec, seed=seed, folder=folder, **extra)


def flat_weights(trainer: Trainer) -> np.ndarray:
    """The acting policy's weights, copied."""
    return trainer.policy().weights.copy()


def all_weights(trainer: Trainer) -> np.ndarray:
    """The weights of all its networks, the critic's too."""
    return np.concatenate([tensor.ravel() for tensor in trainer.state_dict()["weights"].values()])


def _observation(random: np.random.Generator, spec: ObservationSpec, n: int) -> Any:
    if spec.dtype == "uint8":
        return random.integers(0, 256, (n, *spec.shape)).astype(np.uint8)
    return random.normal(size=(n, *spec.shape)).astype(spec.dtype)


CONTINUOUS = ActionSpec(continuous_size=2)
DISCRETE = ActionSpec(discrete_branches=(3, 2))
HYBRID = ActionSpec(continuous_size=1, discrete_branches=(2,))
