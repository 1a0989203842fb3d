"""Measures PPO, POCA and IMPALA updates: without decoupled PPO's extra pass, with it, and with autograd's gradients.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/update.py

The buffers have random rows with the shapes of CartPole, Pendulum, LunarLander, HalfCheetah and Pong, a policy with
memory, groups of four, and CartPole unrolls, with the examples' hyperparameters. The three variants learn alternately,
in a process that keeps freed memory as learners do. Times are CPU time, which a busy machine disturbs less.
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
from headrace.stages.trainer import Trainer, TrainerContext
from headrace.stages.trainer.factory import make_trainer

CONTROL = {"buffer_size": 2048, "batch_size": 256, "num_epoch": 4, "max_grad_norm": 0.5}
NARROW = {"hidden_units": 64, "activation": "tanh"}
CASES: dict[str, tuple[str, tuple[int, ...], ActionSpec, dict[str, Any], dict[str, Any]]] = {
    "CartPole": ("ppo", (4,), ActionSpec(discrete_branches=(2,)), CONTROL, NARROW),
    "Pendulum": ("ppo", (3,), ActionSpec(continuous_size=1), CONTROL, NARROW),
    "LunarLander": (
        "ppo",
        (8,),
        ActionSpec(discrete_branches=(4,)),
        {"buffer_size": 8192, "batch_size": 512, "num_epoch": 4, "max_grad_norm": 0.5},
        NARROW,
    ),
    "HalfCheetah": (
        "ppo",
        (17,),
        ActionSpec(continuous_size=6),
        {"buffer_size": 2048, "batch_size": 512, "num_epoch": 10, "max_grad_norm": 0.5},
        {"hidden_units": 256, "activation": "tanh", "normalize": True},
    ),
    "memory": (
        "ppo",
        (8,),
        ActionSpec(discrete_branches=(4,)),
        {"buffer_size": 2048, "batch_size": 256, "num_epoch": 3},
        {"hidden_units": 64, "memory": {"memory_size": 64, "sequence_length": 32}},
    ),
    "groups": (
        "poca",
        (8,),
        ActionSpec(discrete_branches=(4,)),
        {"buffer_size": 2048, "batch_size": 256, "num_epoch": 3},
        {"hidden_units": 64},
    ),
    "unrolls": (
        "impala",
        (4,),
        ActionSpec(discrete_branches=(2,)),
        {"unroll_length": 128, "batch_size": 16},
        NARROW,
    ),
    "Pong": (
        "ppo",
        (4, 84, 84),
        ActionSpec(discrete_branches=(6,)),
        {"buffer_size": 1024, "batch_size": 256, "num_epoch": 4, "max_grad_norm": 0.5},
        {"hidden_units": 512, "num_layers": 1, "vis_encode_type": "nature_cnn"},
    ),
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
    parser.add_argument("--numpy", action="store_true", help="NumPy even if kernels are compiled (docs/performance.md)")
    args = parser.parse_args()
    compiled.kernels = None if args.numpy else compiled.kernels
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"{'ms of CPU per update':>22} {'coupled':>9} {'decoupled':>9} {'more':>7} {'autograd':>9} {'times':>6}")
    for case in args.cases:
        kind, shape, actions, hyperparameters, network = CASES[case]
        observed = ObservationSpec("o", shape, "uint8" if len(shape) == 3 else "float32")
        spec = BehaviorSpec(case, (observed,), actions, grouped=kind == "poca")
        memory = network.get("memory", {}).get("memory_size", 0)
        batch = rows_of(spec, hyperparameters.get("buffer_size", ROWS), memory, np.random.default_rng(0))
        trainers = []
        for decoupled, autograd in ((False, False), (True, False), (True, True)):
            block = {
                "trainer_type": kind,
                "hyperparameters": hyperparameters | ({} if kind == "impala" else {"decoupled": decoupled}),
                "network_settings": network,
            }
            settings = BehaviorSettings.model_validate(block)
            trainers.append(make_trainer(TrainerContext(case, settings, spec, autograd=autograd)))
        took = [[learned_in(trainer, batch) for trainer in trainers] for _ in range(args.updates)]
        coupled, decoupled_ms, by_autograd = (median(column) for column in zip(*took, strict=True))
        more, times = decoupled_ms / coupled - 1, by_autograd / decoupled_ms
        print(
            f"{case:>22} {coupled:>9.1f} {decoupled_ms:>9.1f} {more:>7.1%} {by_autograd:>9.1f} {times:>6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
