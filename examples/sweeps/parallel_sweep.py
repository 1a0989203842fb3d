"""Train a grid in parallel: as many runs at a time as there are cores, each in a separate process with inline hosts.

    python examples/sweeps/parallel_sweep.py --rates 3e-4 1e-3 3e-3 --seeds 0 1 2 --steps 50000

`run-pipeline --plot results/sweep/*` then draws the curves: one for each rate, over its seeds.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import fmean

from headrace import run


def train(rate: float, seed: int, steps: int, results: str) -> float:
    """Train once; return the mean return at the end."""
    result = run(
        {
            "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 32},
            "env_settings": {"seed": seed},
            "behaviors": {
                "CartPole": {
                    "trainer_type": "ppo",
                    "max_steps": steps,
                    "summary_freq": steps // 10,
                    "time_horizon": 32,
                    "hyperparameters": {"learning_rate": rate, "buffer_size": 2048, "batch_size": 256, "beta": 0.0},
                    "network_settings": {"hidden_units": 64},
                }
            },
            "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
            "checkpoint_settings": {"results_dir": results, "run_id": f"rate-{rate:g}-seed-{seed}", "force": True},
        }
    )
    return result.behaviors["CartPole"].recent_return or 0.0


def main() -> None:
    """Train the grid, and print a line for each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--results", default="results/sweep")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # one core per run: a run that used several would slow down the others
    points = list(product(args.rates, args.seeds))
    # Spawned, because forking a process with threads may hang.
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(train, rate, seed, args.steps, args.results) for rate, seed in points]
        scores = dict(zip(points, (each.result() for each in waiting), strict=True))
    for rate in args.rates:
        of_rate = [scores[rate, seed] for seed in args.seeds]
        print(f"learning_rate {rate:g}: {fmean(of_rate):.1f} ({', '.join(f'{score:.1f}' for score in of_rate)})")


if __name__ == "__main__":
    main()
