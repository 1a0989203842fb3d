"""SAC on Pendulum-v1 against Stable-Baselines3: 2×256 units, batches of 256, one update a step, one torch thread each.

    python benchmarks/sac_pendulum.py --pairs 3 --peer /path/to/python-with-stable-baselines3

Both collect 1000 steps, then learn for `--steps`; rates are of the latter, from the first update on. Ours is the real
pipeline with default hosts (actor and learner in processes of their own); the peer runs in a process of its own, under
the interpreter given, which may be one of another virtual environment. Runs alternate.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from config import RunConfig
from pipeline.reporting.progress import ProgressSnapshot
from pipeline.run import RunOptions, run

FIRST = 1000
PEER = """
import sys, time, torch
torch.set_num_threads(1)
import gymnasium
from stable_baselines3 import SAC
model = SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), learning_rate=3e-4, buffer_size=100_000, learning_starts=1000,
            batch_size=256, policy_kwargs={"net_arch": [256, 256]}, seed=0)
model.learn(1000)
began = time.perf_counter()
model.learn(int(sys.argv[1]), reset_num_timesteps=False)
print(int(sys.argv[1]) / (time.perf_counter() - began))
"""


def ours(steps: int, seed: int, results: Path) -> float:
    """Steps per second of the pipeline, between two moments at which main was told how far it is."""
    config = RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "id": "Pendulum-v1"},
            "env_settings": {"seed": seed},
            "behaviors": {
                "Pendulum": {
                    "trainer_type": "sac",
                    "max_steps": FIRST + steps,
                    "summary_freq": 10**6,
                    "hyperparameters": {
                        "batch_size": 256,
                        "buffer_size": 100_000,
                        "buffer_init_steps": FIRST,
                        "learning_rate": 3e-4,
                    },
                    "network_settings": {"hidden_units": 256, "num_layers": 2, "activation": "relu"},
                }
            },
            "checkpoint_settings": {"results_dir": str(results), "run_id": f"seed-{seed}"},
        }
    )
    seen: list[tuple[float, int]] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        seen.extend((time.perf_counter(), b.steps) for b in snapshot.behaviors if b.steps > FIRST + 50)

    run(config, RunOptions(on_progress=watch, console=False))
    (began, first), (ended, last) = seen[0], seen[-1]
    return (last - first) / (ended - began)


def peer(steps: int, python: str) -> float:
    """Steps per second of Stable-Baselines3."""
    ran = subprocess.run([python, "-c", PEER, str(steps)], check=True, capture_output=True, text=True)
    return float(ran.stdout.split()[-1])


def main() -> None:
    """Run the pairs and print the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--peer", default=sys.executable, help="a Python that has stable-baselines3")
    asked = parser.parse_args()
    rates: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(asked.pairs):
            rates.append((ours(asked.steps, pair, Path(folder)), peer(asked.steps, asked.peer)))
            print(f"pair {pair}: ours {rates[-1][0]:.0f} steps/s, stable-baselines3 {rates[-1][1]:.0f}", flush=True)
    mine, theirs = (median(column) for column in zip(*rates, strict=True))
    print(f"medians: {mine:.0f} and {theirs:.0f} steps/s, ratio {mine / theirs:.2f}")


if __name__ == "__main__":
    main()
