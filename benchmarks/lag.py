"""What is learned at every lag, by `impala` and by PPO with and without decoupling: a picture of docs/learning.md.

    python benchmarks/lag.py --seeds 0 1 2 --out docs/lag.svg

Each row of config/examples/cartpole-impala.yaml and cartpole.yaml comes so many updates late (`late_rows`), for 200,000
steps. An update of the one has 80 fresh steps, of the other 2,048. Prints the training return of the second half, and
draws its mean over the seeds against the lag.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import torch
from curves import Panel, draw
from late_rows import learn

STEPS = "behaviors.CartPole.max_steps=200000"
WAYS = {
    "impala": ("cartpole-impala", [STEPS]),
    "ppo": ("cartpole", [STEPS]),
    "ppo, decoupled: false": ("cartpole", [STEPS, "behaviors.CartPole.hyperparameters.decoupled=false"]),
}


def main() -> None:
    """Print a line for each way and lag, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 4, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("lag.svg"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[float, list[float]]] = {way: {} for way in WAYS}
    for way, (task, changes) in WAYS.items():
        for lag in asked.lags:
            returns = [learn(task, lag, seed, changes)[1] for seed in asked.seeds]
            found[way][lag] = returns
            each = ", ".join(f"{value:.0f}" for value in returns)
            print(f"{way:22} lag {lag:>2}: {each}: {mean(returns):.0f}", flush=True)
    panel = Panel("CartPole-v1: training return, second half of 200,000 steps", found, "lag [updates]", 500.0)
    asked.out.write_text(draw([panel]))


if __name__ == "__main__":
    main()
