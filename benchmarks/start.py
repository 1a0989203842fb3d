"""How long a run takes from the command to its first update, and what that costs in CPU time.

CartPole with PPO, one buffer of 2048 steps, as the command line runs it: the clock stops when the line of the first
summary is printed, which follows the first update. CPU time is that of all processes of the command until then. With
`--against` another checkout is measured in turns with this one, as speed drifts on most machines.

    python benchmarks/start.py [--against ../other] [--pairs 7] [--shape process]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = 2048
"""Of the first buffer."""
TICKS = os.sysconf("SC_CLK_TCK")
CONFIG = f"""
environment: {{kind: gymnasium, id: CartPole-v1, num_envs: 64}}
behaviors:
  CartPole:
    trainer_type: ppo
    hyperparameters: {{buffer_size: {STEPS}, batch_size: 256, num_epoch: 4}}
    network_settings: {{num_layers: 2, hidden_units: 64}}
    time_horizon: 32
    max_steps: 1000000
    summary_freq: {STEPS}
"""


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--against", type=Path, help="the root of another checkout")
    options.add_argument("--pairs", type=int, default=7)
    options.add_argument("--shape", choices=("process", "inline", "both"), default="both")
    args = options.parse_args()
    roots = [ROOT, *([] if args.against is None else [args.against.resolve()])]
    for shape in ("process", "inline") if args.shape == "both" else (args.shape,):
        measured: dict[Path, list[tuple[float, float]]] = {root: [] for root in roots}
        for _ in range(args.pairs):
            for root in roots:
                measured[root].append(first_update(root, shape))
        for root in roots:
            wall, cpu = (statistics.median(each) for each in zip(*measured[root], strict=True))
            print(f"{shape:8} {wall:6.2f} s  {cpu:6.2f} CPU s  {root}", flush=True)
        if len(roots) > 1:
            shares = [statistics.median(a[i] / b[i] for a, b in _pairs(measured, roots)) for i in (0, 1)]
            print(f"{shape:8} {shares[0]:6.1%}    {shares[1]:6.1%}        of the other's")


def _pairs(
    measured: dict[Path, list[tuple[float, float]]], roots: Sequence[Path]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return [*zip(measured[roots[0]], measured[roots[1]], strict=True)]


def first_update(root: Path, shape: str) -> tuple[float, float]:
    """Start a run and end it at its first summary; seconds, and CPU seconds of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "start.yaml"
        config.write_text(
            f"{CONFIG}pipeline: {{hosts: {{actors: {{kind: {shape}}}, learners: {{kind: {shape}}}}}}}\n",
            encoding="utf-8",
        )
        begun = time.monotonic()
        with subprocess.Popen(
            [
                sys.executable,
                root / "bin/run-pipeline",
                config,
                "--seed",
                "1",
                "--run-id",
                "a",
                "--results-dir",
                folder,
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as run:
            assert run.stdout is not None, "asked for with PIPE"
            said = []
            for line in run.stdout:
                said.append(line)
                if f"Step: {STEPS}." in line:
                    break
            else:
                raise SystemExit("".join(said))
            wall, cpu = time.monotonic() - begun, _cpu_of(run.pid)
            run.terminate()
            run.stdout.read()
        return wall, cpu


def _cpu_of(leader: int) -> float:
    """CPU seconds of a process and its children, those that have ended included."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(folder.name) == leader:
            total += sum(map(int, fields[11:15]))
        elif int(fields[1]) == leader:
            total += sum(map(int, fields[11:13]))
    return total / TICKS


if __name__ == "__main__":
    main()
