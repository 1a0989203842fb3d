"""PPO on CartPole-v1 beside Stable-Baselines3: the whole command of each, with the same hyperparameters, in turn.

    python benchmarks/ppo_cartpole.py --pairs 5 --peer /path/to/python-with-stable-baselines3

Both train config/examples/cartpole.yaml's 250,000 steps in 64 environments: the command with its default hosts (actor
and learner in processes of their own), the peer in one process with `make_vec_env`, its usual way, and one thread of
torch. Told are the seconds from the first start of a process to the last end, the CPU seconds of all processes, and the
mean return of the last 100 training episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PEER = """
import sys, json, statistics
import torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 64, seed=int(sys.argv[1])), n_steps=32, batch_size=256, n_epochs=4,
            learning_rate=1e-3, gamma=0.99, gae_lambda=0.95, clip_range=0.2, ent_coef=0.0, max_grad_norm=0.5,
            policy_kwargs={"net_arch": [64, 64]}, device="cpu", seed=int(sys.argv[1]))
model.learn(250_000)
print(json.dumps(statistics.fmean(episode["r"] for episode in model.ep_info_buffer)))
"""
OURS = """
import sys, json
from headrace import load_config, run
keys = [f"env_settings.seed={sys.argv[1]}", f"checkpoint_settings.results_dir={sys.argv[3]}"]
result = run(load_config(sys.argv[2], keys))
print(json.dumps(result.behaviors["CartPole"].recent_return))
"""


def timed(command: list[str]) -> tuple[float, float, float]:
    """Run a command: seconds, CPU seconds of it and its children, and the number that it prints last."""
    before, began = os.times(), time.perf_counter()
    ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    seconds, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, cpu, float(json.loads(ran.stdout.split()[-1]))


def main() -> None:
    """Run the pairs and print them with the medians of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable, help="a Python that has stable-baselines3")
    asked = parser.parse_args()
    ratios = []
    print("| pair | ours: s (CPU s), return | Stable-Baselines3 | ratio of s | of CPU s |")
    print("|---|---|---|---|---|")
    example = str(ROOT / "config/examples/cartpole.yaml")
    for pair in range(asked.pairs):
        with tempfile.TemporaryDirectory() as results:
            mine = timed([sys.executable, "-c", OURS, str(pair), example, results])
        theirs = timed([asked.peer, "-c", PEER, str(pair)])
        ratios.append((theirs[0] / mine[0], theirs[1] / mine[1]))
        told = " | ".join(f"{seconds:.1f} ({cpu:.1f}), {score:.0f}" for seconds, cpu, score in (mine, theirs))
        print(f"| {pair} | {told} | {ratios[-1][0]:.2f} | {ratios[-1][1]:.2f} |", flush=True)
    by_clock, by_cpu = (median(column) for column in zip(*ratios, strict=True))
    print(f"medians of the ratios: {by_clock:.2f} by the clock, {by_cpu:.2f} in CPU time")


if __name__ == "__main__":
    main()
