"""Measures one update of each trainer and size, with each acceleration and without any.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/update.py

The rows are random, with the shapes of CartPole, Pendulum, LunarLander, HalfCheetah and Pong, a policy with memory,
groups of four, and CartPole unrolls, with the examples' hyperparameters. The variants learn alternately, in a process
that keeps freed memory as learners do. Times are CPU time, which a busy machine disturbs less.

- none: `torch_settings.acceleration: none`
- NumPy: manual gradients without compiled code, as on a machine without a C compiler
- auto: manual gradients as installed
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from headrace.config import BehaviorSettings
from headrace.pipeline.hosts.run_host import keep_freed_memory
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import Trainer, TrainerContext

CONTROL = {"buffer_size": 2048, "batch_size": 256, "num_epoch": 4, "max_grad_norm": 0.5}
WIDE = {"buffer_size": 2048, "batch_size": 512, "num_epoch": 10, "max_grad_norm": 0.5}
REGULARIZED = CONTROL | {"regularization": {}}
OFF_POLICY = {"batch_size": 256, "buffer_init_steps": 256, "buffer_size": 8192, "steps_per_update": 8}
DISCRETE, CONTINUOUS = ActionSpec(discrete_branches=(4,)), ActionSpec(continuous_size=6)


def units(count: int, activation: str = "tanh", **more: Any) -> dict[str, Any]:
    """Return the settings of a network with two hidden layers."""
    return {"hidden_units": count, "activation": activation, **more}


CASES: dict[str, tuple[str, tuple[int, ...], ActionSpec, dict[str, Any], dict[str, Any]]] = {
    "PPO CartPole 64": ("ppo", (4,), ActionSpec(discrete_branches=(2,)), CONTROL, units(64)),
    "PPO Pendulum 64": ("ppo", (3,), ActionSpec(continuous_size=1), CONTROL, units(64)),
    "PPO HalfCheetah 256": ("ppo", (17,), CONTINUOUS, WIDE, units(256, normalize=True)),
    "PPO regularized 64": ("ppo", (8,), DISCRETE, REGULARIZED, units(64)),
    "PPO memory 64": (
        "ppo",
        (8,),
        DISCRETE,
        CONTROL,
        units(64, memory={"memory_size": 64, "sequence_length": 32}),
    ),
    "PPO Pong, images": (
        "ppo",
        (4, 84, 84),
        ActionSpec(discrete_branches=(6,)),
        {"buffer_size": 1024, "batch_size": 256, "num_epoch": 4, "max_grad_norm": 0.5},
        {"hidden_units": 512, "num_layers": 1, "vis_encode_type": "nature_cnn"},
    ),
    "POCA groups 64": ("poca", (8,), DISCRETE, CONTROL, units(64)),
    "IMPALA unrolls 64": (
        "impala",
        (4,),
        ActionSpec(discrete_branches=(2,)),
        {"unroll_length": 128, "batch_size": 16},
        units(64),
    ),
    "IMPALA unrolls 256": ("impala", (17,), CONTINUOUS, {"unroll_length": 128, "batch_size": 16}, units(256)),
    "SAC Pendulum 64": ("sac", (3,), ActionSpec(continuous_size=1), OFF_POLICY, units(64, "relu")),
    "SAC HalfCheetah 256": ("sac", (17,), CONTINUOUS, OFF_POLICY, units(256, "relu")),
    "SAC discrete 64": ("sac", (8,), DISCRETE, OFF_POLICY, units(64, "relu")),
}
"""By case: trainer, observation shape, actions, hyperparameters and network."""
LENGTH, ROWS = 128, 2048
AGENTS = 4


def rows_of(
    spec: BehaviorSpec, n: int, memory: int, random: np.random.Generator, length: int = LENGTH
) -> TrajectoryBatch:
    """Return trajectories of `length` random rows, in groups of `AGENTS` if the behaviour has groups."""
    k, actions = n // length, spec.actions
    (seen,) = spec.observations
    rows: dict[str, Array] = {
        "obs_0": (255 * random.random((n, *seen.shape), np.float32)).astype(seen.dtype),
        "rewards": random.random(n, np.float32),
        "log_probs": np.full((n, actions.log_prob_size), -1.4, np.float32),
    }
    ends: dict[str, Array] = {
        "lengths": np.full(k, length, np.int32),
        "agent_ids": np.arange(k),
        "episode_ids": np.zeros(k, np.int64),
        "terminated": np.zeros(k, np.bool_),
        "truncated": np.ones(k, np.bool_),
        "next_obs_0": rows["obs_0"][:k],
        "credits": np.full(k, length, np.int32),
    }
    if actions.continuous_size:
        rows["continuous_actions"] = random.standard_normal((n, actions.continuous_size), np.float32)
    if actions.discrete_branches:
        rows["discrete_actions"] = random.integers(0, actions.discrete_branches[0], (n, 1)).astype(np.int32)
        ends["previous_discrete_actions"] = np.zeros((k, 1), np.int32)
    if spec.grouped:
        rows["group_rewards"], rows["ticks"] = np.zeros(n, np.float32), np.arange(n) % length
        ends["group_ids"], ends["group_left"] = 1 + np.arange(k) // AGENTS, np.ones(k, np.bool_)
        ends["next_ticks"] = np.full(k, length)
    if memory:
        rows["memories"] = random.random((n, memory), np.float32)
    return TrajectoryBatch(spec.behavior_id, 0, rows, ends)


def learned_in(trainer: Trainer, batch: TrajectoryBatch) -> float:
    """Return the CPU milliseconds of one update."""
    trainer.add(batch)
    began = time.process_time()
    trainer.learn()
    return 1e3 * (time.process_time() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=", ".join(CASES))
    parser.add_argument("--updates", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    installed = compiled.kernels
    print(f"{'ms of CPU per update':>22} {'none':>9} {'NumPy':>9} {'auto':>9} {'none/auto':>10} {'NumPy/auto':>11}")
    for case in args.cases:
        kind, shape, actions, hyperparameters, network = CASES[case]
        observed = ObservationSpec("o", shape, "uint8" if len(shape) == 3 else "float32")
        spec = BehaviorSpec(case, (observed,), actions, grouped=kind == "poca")
        memory = network.get("memory", {}).get("memory_size", 0)
        rows = ROWS if kind in ("sac", "impala") else hyperparameters["buffer_size"]
        batch = rows_of(spec, rows, memory, np.random.default_rng(0))
        if kind == "sac" and actions.continuous_size:
            np.tanh(batch.rows["continuous_actions"], out=batch.rows["continuous_actions"])
        block = {"trainer_type": kind, "hyperparameters": hyperparameters, "network_settings": network}
        settings = BehaviorSettings.model_validate(block)
        trainers = []
        for accelerated, kernels in ((False, installed), (True, None), (True, installed)):
            compiled.kernels = kernels
            trainers.append(make_trainer(TrainerContext(case, settings, spec, accelerated=accelerated)))
        took = []
        for _ in range(args.updates):
            row = []
            for trainer, kernels in zip(trainers, (installed, None, installed), strict=True):
                compiled.kernels = kernels
                row.append(learned_in(trainer, batch))
            took.append(row)
        none, in_numpy, auto = (median(column) for column in zip(*took[1:], strict=True))
        print(
            f"{case:>22} {none:>9.1f} {in_numpy:>9.1f} {auto:>9.1f} {none / auto:>10.2f} {in_numpy / auto:>11.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
