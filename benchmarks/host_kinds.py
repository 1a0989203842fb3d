"""Steps per second of one example on hosts of different kinds, in turn, so that all meet the same machine.

    python benchmarks/host_kinds.py --kinds process ray --rounds 5 config/examples/{cartpole,volley}.yaml

Rates are steady-state: from one fifth of the run's steps to its last summary. Ray listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent


def steps_per_s(example: Path, kind: str, seed: int, steps: int) -> float:
    """Run an example for so many steps; steps per second, without its start."""
    (behavior,) = yaml.safe_load(example.read_text())["behaviors"]
    with tempfile.TemporaryDirectory() as results:
        settings = [f"pipeline.hosts.{part}.kind={kind}" for part in ("actors", "learners")]
        settings += [f"behaviors.{behavior}.max_steps={steps}", f"behaviors.{behavior}.summary_freq={steps // 20}"]
        command = [sys.executable, str(ROOT / "bin/run-pipeline"), str(example), "--seed", str(seed)]
        command += ["--run-id", "bench", "--results-dir", results]
        for setting in settings:
            command += ["--set", setting]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        events = EventAccumulator(str(Path(results) / "bench" / behavior))
        events.Reload()
        seen = [
            (each.step, each.wall_time) for each in events.Scalars("Policy/Learning Rate") if each.step >= steps / 5
        ]
    (first, began), (last, ended) = seen[0], seen[-1]
    return (last - first) / (ended - began)


def main() -> None:
    """Print each round, and the medians of rates and of ratios to the first kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", type=Path, default=[ROOT / "config/examples/cartpole.yaml"])
    parser.add_argument("--kinds", nargs="+", default=["process", "inline"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=240_000)
    asked = parser.parse_args()
    for example in asked.examples:
        rates: dict[str, list[float]] = {kind: [] for kind in asked.kinds}
        for seed in range(asked.rounds):
            turn = asked.kinds if seed % 2 else asked.kinds[::-1]  # a drift of the machine favours nobody
            for kind in turn:
                rates[kind].append(steps_per_s(example, kind, seed, asked.steps))
            print(example.stem, seed, *(f"{kind} {rates[kind][-1]:,.0f}" for kind in asked.kinds), flush=True)
        first = rates[asked.kinds[0]]
        for kind in asked.kinds:
            ratios = [rate / other for rate, other in zip(rates[kind], first, strict=True)]
            print(
                f"{example.stem}: {kind} {median(rates[kind]):,.0f} steps/s, {median(ratios):.2f} of {asked.kinds[0]}"
            )


if __name__ == "__main__":
    main()
