"""Measures gradient steps of PPO and SAC on a GPU, from Python and as CUDA graphs.

    python benchmarks/cuda_graphs.py

The buffers have random rows, as in `update.py`. The two variants update alternately. Times are wall-clock milliseconds
from the start of the update to the end of the GPU's work, including fetching the policy.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from update import CASES, ROWS, rows_of

from headrace.config import BehaviorSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import Trainer, TrainerContext

WIDE = {"buffer_size": 8192, "batch_size": 2048, "num_epoch": 4, "max_grad_norm": 0.5}
SAC = {"buffer_size": 4096, "batch_size": 256, "steps_per_update": 8}
CAPTURED: dict[str, Any] = {
    **{name: case for name, case in CASES.items() if case[0] == "ppo" and "memory" not in case[4]},
    "2x1024": ("ppo", (17,), ActionSpec(6), WIDE, {"hidden_units": 1024, "activation": "tanh", "normalize": True}),
    "SAC Pendulum": ("sac", (3,), ActionSpec(1), SAC, {"hidden_units": 256, "activation": "relu"}),
    "SAC HalfCheetah": ("sac", (17,), ActionSpec(6), SAC, {"hidden_units": 256, "activation": "relu"}),
}
"""Cases in the same form as in `update.py`."""


def make(case: str, device: str, graphs: bool) -> Trainer:
    """Return a trainer for a case."""
    kind, shape, actions, hyperparameters, network = CAPTURED[case]
    spec = BehaviorSpec(case, (ObservationSpec("o", shape, "uint8" if len(shape) == 3 else "float32"),), actions)
    block = {"trainer_type": kind, "hyperparameters": hyperparameters, "network_settings": network}
    settings = BehaviorSettings.model_validate(block)
    return make_trainer(TrainerContext(case, settings, spec, device=device, accelerated=graphs))


def learned_in(trainer: Trainer, batch: TrajectoryBatch, device: str) -> float:
    """Return the milliseconds of one update and of fetching its policy."""
    trainer.add(batch)
    wait(device)
    began = time.perf_counter()
    trainer.learn()
    trainer.policy()
    wait(device)
    return 1e3 * (time.perf_counter() - began)


def wait(device: str) -> None:
    """Wait until the GPU has finished all work."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CAPTURED), metavar="case", help=", ".join(CAPTURED))
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--device", default="cuda", help="cpu: no graphs, to try the script itself")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        print("torch finds no CUDA device: there is nothing to measure")
        return 1
    name = "the CPU, without graphs" if args.device == "cpu" else torch.cuda.get_device_name(args.device)
    print(f"torch {torch.__version__} on {name}")
    print(f"{'ms per minibatch':>18} {'eager':>9} {'graphs':>9} {'times':>6} {'first update':>13}")
    for case in args.cases:
        kind, _, _, hyper, _ = CAPTURED[case]
        if kind == "ppo":
            rows = hyper["buffer_size"]
            steps = hyper["num_epoch"] * (rows // hyper["batch_size"])
        else:
            rows, steps = ROWS, ROWS // hyper["steps_per_update"]
        eager, graphs = (make(case, args.device, on) for on in (False, True))
        batch = rows_of(eager.context.spec, rows, 0, np.random.default_rng(0))
        if kind == "sac":
            np.tanh(batch.rows["continuous_actions"], out=batch.rows["continuous_actions"])
        took = [[learned_in(trainer, batch, args.device) for trainer in (eager, graphs)] for _ in range(args.updates)]
        first = took[0][1]
        by_eager, by_graphs = (median(column) / steps for column in zip(*took[len(took) // 4 :], strict=True))
        print(
            f"{case:>18} {by_eager:>9.3f} {by_graphs:>9.3f} {by_eager / by_graphs:>6.2f} {first:>10.0f} ms",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
