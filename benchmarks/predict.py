"""What a call of `load_policy(…).predict` costs: microseconds for one observation and a batch, from `.pt` and `.onnx`.

    python benchmarks/predict.py

Perceptrons of 2×64 for CartPole and HalfCheetah are trained for a moment; then each file is asked again and again, the
kinds in turn. Printed are the quickest and the median round of each, and what the acting policy alone takes.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from headrace import LoadedPolicy, load_policy, run

ENVIRONMENTS = {"CartPole": "CartPole-v1", "HalfCheetah": "HalfCheetah-v5"}
CALLS = 500
"""Calls of a round."""


def main() -> None:
    """Train, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}")
    asked: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, environment in ENVIRONMENTS.items():
            run_folder = trained(name, environment, Path(folder))
            space = gymnasium.make(environment).observation_space
            space.seed(0)
            for file in (run_folder / name, run_folder / f"{name}.onnx"):
                policy = load_policy(file)
                for n in (1, 64):
                    given = space.sample() if n == 1 else np.stack([space.sample() for _ in range(n)])
                    which = f"{name:12}{policy.file.suffix:6}{n:3}"
                    asked[f"{which} predict"] = lambda policy=policy, given=given: policy.predict(given)
                    asked[f"{which} acting alone"] = acting_alone(policy, given, n)
        for which, times in measured(asked, rounds).items():
            print(f"{which:36} {min(times):7.1f} µs, median {statistics.median(times):7.1f} µs")


def trained(name: str, environment: str, folder: Path) -> Path:
    """Train for a moment; return the run's folder."""
    network = {"hidden_units": 64, "num_layers": 2}
    config = {
        "environment": {"kind": "gymnasium", "id": environment, "behavior": name, "num_envs": 8},
        "behaviors": {name: {"trainer_type": "ppo", "max_steps": 1000, "network_settings": network}},
        "checkpoint_settings": {"results_dir": str(folder), "run_id": name},
    }
    return run(config).folder


def acting_alone(policy: LoadedPolicy, given: Any, n: int) -> Callable[[], object]:
    """Return a call of the policy inside, with columns."""
    inside, random = policy._policy, np.random.default_rng(0)
    columns = (np.asarray(given, np.float32).reshape(n, -1),)
    return lambda: inside.act(columns, None, random, True)


def measured(asked: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of a call, by round, of each kind; all kinds take their turn in each round."""
    found: dict[str, list[float]] = {which: [] for which in asked}
    for _ in range(rounds):
        for which, ask in asked.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                ask()
            found[which].append((time.perf_counter() - begin) / CALLS * 1e6)
    return found


if __name__ == "__main__":
    main()
