"""Measures gradient steps of PPO and SAC on a GPU, from Python and as CUDA graphs, and compares their results.

    python benchmarks/cuda_graphs.py

Buffers of random rows as in `update.py`. Both learn in turn; milliseconds by the clock, from the update's beginning to
the end of the GPU's work, with the policy fetched. A third learner makes the graphs' steps without ever capturing them:
after all updates its weights and the graphs' should be equal, or as near as the GPU's own sums in changing order allow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from update import CASES, ROWS, rows_of

from headrace.config import BehaviorSettings
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer import Trainer, TrainerContext, gradients
from headrace.stages.trainer.factory import make_trainer

WIDE = {"buffer_size": 8192, "batch_size": 2048, "num_epoch": 4, "max_grad_norm": 0.5}
SAC = {"buffer_size": 4096, "batch_size": 256, "steps_per_update": 8}
CAPTURED: dict[str, Any] = {
    **{name: case for name, case in CASES.items() if case[0] == "ppo" and "memory" not in case[4]},
    "2x1024": ("ppo", (17,), ActionSpec(6), WIDE, {"hidden_units": 1024, "activation": "tanh", "normalize": True}),
    "SAC Pendulum": ("sac", (3,), ActionSpec(1), SAC, {"hidden_units": 256, "activation": "relu"}),
    "SAC HalfCheetah": ("sac", (17,), ActionSpec(6), SAC, {"hidden_units": 256, "activation": "relu"}),
}
"""Cases as those of `update.py`."""


class NeverCaptured:
    """Graphs that make each step as it is."""

    def beside(self, function: Callable[[], Any]) -> Any:
        """Call it."""
        return function()

    def capture(self, function: Callable[[], Any]) -> Any:
        """Refuse."""
        raise RuntimeError("this learner is to stay without graphs")


def make(case: str, device: str, graphs: bool) -> Trainer:
    """A learner of a case."""
    kind, shape, actions, hyperparameters, network = CAPTURED[case]
    spec = BehaviorSpec(case, (ObservationSpec("o", shape, "uint8" if len(shape) == 3 else "float32"),), actions)
    block = {"trainer_type": kind, "hyperparameters": hyperparameters, "network_settings": network}
    settings = BehaviorSettings.model_validate(block)
    return make_trainer(TrainerContext(case, settings, spec, device=device, cuda_graphs=graphs))


def without_capturing(case: str, device: str) -> Trainer:
    """A learner that makes the steps that graphs are made of."""
    usual = gradients.graphs_on
    gradients.graphs_on = lambda device: NeverCaptured()
    try:
        return make(case, device, True)
    finally:
        gradients.graphs_on = usual


def learned_in(trainer: Trainer, batch: TrajectoryBatch, device: str) -> float:
    """Milliseconds of one update, and of fetching its policy."""
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


def difference(one: Trainer, other: Trainer) -> float:
    """The largest difference between the weights of two learners."""
    weights, others = (tensors_of(trainer.warm_state()) for trainer in (one, other))
    return max(float(abs(ours - theirs).max()) for ours, theirs in zip(weights, others, strict=True))


def tensors_of(state: Any) -> list[Array]:
    """All arrays of a state."""
    if isinstance(state, dict):
        return [array for part in state.values() for array in tensors_of(part)]
    return [state] if isinstance(state, np.ndarray) else []


def main() -> int:
    """Print the table."""
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
    print(f"{'ms per minibatch':>18} {'eager':>9} {'graphs':>9} {'times':>6} {'first update':>13} {'difference':>11}")
    for case in args.cases:
        kind, _, _, hyper, _ = CAPTURED[case]
        if kind == "ppo":
            rows = hyper["buffer_size"]
            steps = hyper["num_epoch"] * (rows // hyper["batch_size"])
        else:
            rows, steps = ROWS, ROWS // hyper["steps_per_update"]
        eager, graphs = (make(case, args.device, on) for on in (False, True))
        same = without_capturing(case, args.device)
        batch = rows_of(eager.context.spec, rows, 0, np.random.default_rng(0))
        if kind == "sac":
            np.tanh(batch.rows["continuous_actions"], out=batch.rows["continuous_actions"])
        took = [
            [learned_in(trainer, batch, args.device) for trainer in (eager, graphs, same)] for _ in range(args.updates)
        ]
        first = took[0][1]
        by_eager, by_graphs, _ = (median(column) / steps for column in zip(*took[len(took) // 4 :], strict=True))
        print(
            f"{case:>18} {by_eager:>9.3f} {by_graphs:>9.3f} {by_eager / by_graphs:>6.2f} {first:>10.0f} ms "
            f"{difference(graphs, same):>11.1e}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
