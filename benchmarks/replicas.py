"""Measures the update time of one trainer, and of replicas that learn together, by network size.

    OMP_NUM_THREADS=1 python benchmarks/replicas.py

Each replica is a process with one torch thread, as in a run; the rows for an update are ready before it begins. PPO
runs epochs over minibatches of random rows, `--trainer sac` updates from its replay memory, and `--trainer impala`
takes gradient steps.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from update import rows_of

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.joined_replicas import JoinedReplicas, connect, listen
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, TrainerContext

CASES: dict[str, tuple[int, int, int]] = {
    "2×64, 256": (64, 256, 2048),
    "2×128, 512": (128, 512, 4096),
    "2×256, 1024": (256, 1024, 8192),
    "2×512, 1024": (512, 1024, 8192),
    "2×512, 4096": (512, 4096, 16384),
}
"""By case: hidden units, rows per minibatch, and rows per update."""


def settings_of(trainer: str, case: str) -> BehaviorSettings:
    """Return a behaviour's settings for a trainer and a case."""
    units, batch, rows = CASES[case]
    hyperparameters: dict[str, dict[str, Any]] = {
        "ppo": {"batch_size": batch, "buffer_size": rows, "num_epoch": 3},
        "poca": {"batch_size": batch, "buffer_size": rows, "num_epoch": 3},
        "sac": {"batch_size": batch, "buffer_size": 10 * rows, "buffer_init_steps": 0, "steps_per_update": rows / 4},
        "impala": {"unroll_length": 32, "batch_size": batch // 32},
    }
    return BehaviorSettings.model_validate(
        {
            "trainer_type": trainer,
            "hyperparameters": hyperparameters[trainer],
            "network_settings": {"hidden_units": units, "num_layers": 2},
            "max_steps": 10**9,
        }
    )


def learn(replicas: Replicas, trainer: str, case: str, updates: int) -> list[float]:
    """Return the seconds of each update."""
    spec = BehaviorSpec(case, (ObservationSpec("o", (32,)),), ActionSpec(8), grouped=trainer == "poca")
    context = TrainerContext(case, settings_of(trainer, case), spec)
    made = make_trainer(replace(context, replicas=replicas))
    rows = CASES[case][1] if trainer == "impala" else CASES[case][2]
    batch = rows_of(spec, rows, 0, np.random.default_rng(0))
    if trainer == "sac":
        batch = batch.replace(continuous_actions=np.tanh(batch.rows["continuous_actions"]))
    took = []
    for _ in range(updates + 1):
        made.add(batch)
        replicas.add_up(torch.zeros(1))  # all replicas begin together
        began = time.perf_counter()
        made.learn()
        took.append(time.perf_counter() - began)
    return took[1:]


def replica(args: argparse.Namespace) -> None:
    """Run as one of the replicas that another process has started."""
    joined = JoinedReplicas(args.rank, args.size, connect("127.0.0.1", args.port, args.size))
    learn(joined, args.trainer, *args.cases, args.updates)


def together(trainer: str, case: str, size: int, updates: int) -> list[float]:
    """Return the seconds of each update with `size` replicas."""
    store = listen(size)
    options = [f"--port={store.port}", f"--size={size}", f"--updates={updates}", f"--trainer={trainer}", case]
    others = [subprocess.Popen([sys.executable, __file__, f"--rank={rank}", *options]) for rank in range(1, size)]
    took = learn(JoinedReplicas(0, size, store, timeout_s=600), trainer, case, updates)
    for other in others:
        other.wait()
    return took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=", ".join(CASES))
    parser.add_argument("--trainer", choices=["ppo", "poca", "sac", "impala"], default="ppo")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--size", type=int, default=2, help="number of replicas")
    parser.add_argument("--rounds", type=int, default=3, help="one trainer and replicas in turn, so often")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.rank:
        replica(args)
        return
    print(f"{'ms per update':>16} {'alone':>9} {'replicas':>9} {'speed':>7}")
    for case in args.cases:
        alone, joined = [], []
        for _ in range(args.rounds):
            alone += learn(SINGLE_TRAINER, args.trainer, case, args.updates)
            joined += together(args.trainer, case, args.size, args.updates)
        one, several = 1e3 * median(alone), 1e3 * median(joined)
        print(f"{case:>16} {one:>9.1f} {several:>9.1f} {one / several:>6.2f}×", flush=True)


if __name__ == "__main__":
    main()
