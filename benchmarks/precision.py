"""What one update costs with hidden products in float32 and in bfloat16: SAC and PPO with 2×256 units, pictures.

    OMP_NUM_THREADS=1 python benchmarks/precision.py

SAC learns from rows of the shapes of Pendulum and HalfCheetah with batches of 256, PPO from those of HalfCheetah and
Pong as in `update.py`. Both precisions learn in turn; CPU time, so that a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from update import CASES, learned_in, rows_of

from headrace.config import BehaviorSettings, NetworkSettings, SACHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.products import fast_bf16
from headrace.stages.trainer import TrainerContext
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.sac.minibatch import ReplayMinibatch
from headrace.stages.trainer.sac.update import SACUpdate

ROWS, AT_ONCE = 256, 50
SAC = {"SAC Pendulum": (3, 1, 256), "SAC HalfCheetah": (17, 6, 256), "SAC 2x512": (17, 6, 512), "SAC 2x64": (3, 1, 64)}
"""Observed numbers, actions, and hidden units of each."""
PPO = {"PPO HalfCheetah": "HalfCheetah", "PPO Pong": "Pong"}
"""Cases of `update.py`."""


def sac(observed: int, actions: int, units: int, bf16: bool) -> Callable[[], float]:
    """A function that makes updates and returns the milliseconds of each."""
    spec = BehaviorSpec("SAC", (ObservationSpec("o", (observed,)),), ActionSpec(actions))
    settings = NetworkSettings(hidden_units=units, num_layers=2, activation="relu")
    design = PolicyDesign(spec, settings, squashed=True, bf16=bf16)
    update = SACUpdate(design, SACHyperparameters(), 1, np.random.default_rng(0), "cpu", by_hand=True)
    seen, following = (torch.randn(ROWS, observed) for _ in range(2))
    taken = torch.randn(ROWS, actions).tanh()
    batch = ReplayMinibatch(Inputs(seen), Inputs(seen), Inputs(following), taken, (), None, None, None)
    rest = torch.randn(ROWS, 1), torch.full((ROWS, 1), 0.99), torch.randn(2 * ROWS, actions)

    def learned() -> float:
        began = time.process_time()
        for _ in range(AT_ONCE):
            update.step(batch, *rest, 3e-4)
        return 1e3 * (time.process_time() - began) / AT_ONCE

    return learned


def ppo(case: str, bf16: bool) -> Callable[[], float]:
    """The same of PPO's updates of a case of `update.py`."""
    kind, shape, actions, hyperparameters, network = CASES[case]
    spec = BehaviorSpec(case, (ObservationSpec("o", shape, "uint8" if len(shape) == 3 else "float32"),), actions)
    block = {"trainer_type": kind, "hyperparameters": hyperparameters, "network_settings": network}
    trainer = make_trainer(TrainerContext(case, BehaviorSettings.model_validate(block), spec, bf16=bf16))
    batch = rows_of(spec, hyperparameters["buffer_size"], 0, np.random.default_rng(0))
    return lambda: learned_in(trainer, batch)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[*SAC, *PPO], metavar="case")
    parser.add_argument("--pairs", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"bf16 is fast here by: {fast_bf16('cpu') or 'nothing'}")
    print(f"{'ms of CPU per update':>22} {'float32':>9} {'bf16':>9} {'ratio':>7}")
    for case in asked.cases:
        both = [sac(*SAC[case], bf16) if case in SAC else ppo(PPO[case], bf16) for bf16 in (False, True)]
        for learned in both:
            learned()  # torch chooses its kernels in the first one
        pairs = [[learned() for learned in both] for _ in range(asked.pairs)]
        plain, rounded = (median(column) for column in zip(*pairs, strict=True))
        print(f"{case:>22} {plain:>9.2f} {rounded:>9.2f} {plain / rounded:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
