"""Headrace beside the official ML-Agents: one YAML, one stand-in Unity build, the same command line.

    python benchmarks/official.py speed --official VENV/bin/mlagents-learn --pairs 5
    python benchmarks/official.py learning --official VENV/bin/mlagents-learn --seeds 0 1 2 3 4

The build is that of the tests with the scene `balance`: agents that each keep a pole up for 200 steps. The sides run
in turn, so that they meet the same machine, and the stand-in itself counts agent steps and returns, in the same way for
both. `learning` prints the mean return of the episodes that ended in the last 2,000 agent steps before each mark
(with more than 12 agents in as many steps of the scene); `--lags` adds runs with these values of
`pipeline.max_policy_lag` to those with the default.

`speed` leaves out start-up and the first fifth of the steps. The CPU time is that of all processes and threads but the
stand-in's. What other programs took meanwhile is printed as the number of cores, as they slow both sides.

The official package has its own Python, so it needs an environment of its own:

    python3.10 -m venv VENV
    VENV/bin/pip install mlagents==1.1.0 torch==2.2.2 'setuptools<70'      (Python 3.10.13: --ignore-requires-python)

Without `--official`, Headrace runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import psutil
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(path for path in sys.path if Path(path) != ROOT / "benchmarks")]

from unity_runs import BUILD, free_port  # noqa: E402

BEHAVIOR = "Balance"
RUN: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 256, "buffer_size": 2048, "num_epoch": 5, "learning_rate": 0.002},
    "network_settings": {"num_layers": 2, "hidden_units": 64},
    "reward_signals": {"extrinsic": {"gamma": 0.98, "strength": 0.1}},
}
"""The rest is what both have as default."""
MARKS = (10_000, 20_000, 30_000)
WINDOW = 2_000
"""Agent steps before a mark whose episodes count, for 12 agents; as many steps of the scene for more."""
WARM_UP = 0.2
"""Part of the steps that `speed` leaves out."""
SAMPLE_EVERY_S = 0.1
CLIENT = "--mlagents-port"
"""The argument by which a Unity build is known."""


@dataclass(frozen=True)
class Side:
    """One of those that are compared."""

    name: str
    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What one run did, by the stand-in's count and the clock."""

    returns: np.ndarray
    """Of each finished episode, f64[episodes]."""
    steps: np.ndarray
    """Agent steps made by the end of each, i64[episodes]."""
    times: np.ndarray
    """Seconds since the epoch at the end of each, f64[episodes]."""
    cpu: np.ndarray
    """Samples: seconds since the epoch; CPU seconds of the run, of the stand-in, of all programs; f64[samples, 4]."""
    seconds: float
    """Of the whole command."""

    def mean_return(self, mark: int, window: int) -> float:
        """Of the episodes that ended in the window before so many agent steps."""
        return float(self.returns[(self.steps > mark - window) & (self.steps <= mark)].mean())

    def speed(self) -> tuple[float, float, float]:
        """After the warm-up: agent steps per second, µs of CPU per agent step, cores that other programs used."""
        begin = int(np.searchsorted(self.steps, WARM_UP * self.steps[-1]))
        made = self.steps[-1] - self.steps[begin]
        between = self.times[[begin, -1]]
        own, client, machine = (
            float(np.diff(np.interp(between, self.cpu[:, 0], self.cpu[:, i]))[0]) for i in (1, 2, 3)
        )
        took = float(np.diff(between)[0])
        return made / took, 1e6 * own / made, max(0.0, machine - own - client) / took


def play(side: Side, agents: int, max_steps: int, seed: int) -> Outcome:
    """Run one side's command from its start to its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {**RUN, "max_steps": max_steps, "summary_freq": 5000}
        (folder / "balance.yaml").write_text(yaml.safe_dump({"behaviors": {BEHAVIOR: settings}}))
        command = [
            *side.command, str(folder / "balance.yaml"), "--run-id=balance", f"--results-dir={folder / 'results'}",
            f"--env={BUILD}", f"--base-port={free_port()}", "--no-graphics", f"--seed={seed}", "--torch-device=cpu",
            *side.arguments, "--env-args", "--scene", "balance", "--agents", str(agents), "--report", str(folder),
        ]  # fmt: skip
        began = time.monotonic()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(), cwd=folder)
            cpu = _sample_cpu(process)
        took = time.monotonic() - began
        if process.returncode:
            raise SystemExit(f"{(folder / 'log').read_text()}\n{side.name} ended with status {process.returncode}")
        (report,) = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    steps, times = zip(*report["ends"][f"{BEHAVIOR}?team=0"], strict=True)
    returns = report["episodes"][f"{BEHAVIOR}?team=0"]
    return Outcome(np.array(returns), np.array(steps), np.array(times), cpu, took)


def _environment() -> dict[str, str]:
    """Ours, without what would lead another Python to our packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _sample_cpu(process: subprocess.Popen[bytes]) -> np.ndarray:
    """Until the process ends: time, CPU seconds of it and its children, of the stand-in, of the whole machine."""
    root = psutil.Process(process.pid)
    used: dict[psutil.Process, tuple[bool, float]] = {}
    samples = []
    while process.poll() is None:
        try:
            for each in (root, *root.children(recursive=True)):
                times = each.cpu_times()
                used[each] = (CLIENT in each.cmdline(), times.user + times.system)
        except psutil.NoSuchProcess:
            continue
        machine = psutil.cpu_times()
        own, client = (sum(seconds for is_client, seconds in used.values() if is_client is it) for it in (False, True))
        samples.append((time.time(), own, client, sum(machine) - machine.idle - machine.iowait))
        time.sleep(SAMPLE_EVERY_S)
    return np.array(samples)


def sides(official: Path | None, lags: list[str], changes: list[str]) -> list[Side]:
    """Headrace by default and with each of the lags, and official ML-Agents."""
    command = (sys.executable, str(ROOT / "bin/run-pipeline"))
    common = tuple(part for change in changes for part in ("--set", change))
    found = [Side("Headrace", command, common)]
    found += [Side(f"lag {lag}", command, (*common, "--set", f"pipeline.max_policy_lag={lag}")) for lag in lags]
    return found if official is None else [Side("ML-Agents", (str(official),)), *found]


def learning(players: list[Side], agents: int, seeds: list[int], marks: list[int]) -> None:
    """Mean returns at the marks by side and seed; at the end how far each side is from the first."""
    window = max(WINDOW, WINDOW * agents // 12)
    reached: dict[str, list[list[float]]] = {side.name: [] for side in players}
    print(f"{'seed':>4}  {'side':<10}" + "".join(f"{mark:>9,}" for mark in marks) + f" {'seconds':>9}")
    for place, seed in enumerate(seeds):
        for side in players if place % 2 == 0 else players[::-1]:
            outcome = play(side, agents, marks[-1] + window, seed)
            reached[side.name].append([outcome.mean_return(mark, window) for mark in marks])
            scores = "".join(f"{score:>9.1f}" for score in reached[side.name][-1])
            print(f"{seed:>4}  {side.name:<10}{scores} {outcome.seconds:>9.1f}", flush=True)
    for name, rows in reached.items():
        print(f"{name}: " + ", ".join(_spread(column) for column in zip(*rows, strict=True)))
    first, *others = reached
    for name in others if len(seeds) > 1 else ():
        pairs = zip(zip(*reached[name], strict=True), zip(*reached[first], strict=True), strict=True)
        print(f"{name} − {first}: " + ", ".join(_difference(ours, theirs) for ours, theirs in pairs))


def _spread(scores: tuple[float, ...]) -> str:
    return f"{mean(scores):.0f}" + (f" ± {stdev(scores):.0f}" if len(scores) > 1 else "")


def _difference(ours: tuple[float, ...], theirs: tuple[float, ...]) -> str:
    """Of the means, and the standard deviation of the difference between a run of each."""
    return f"{mean(ours) - mean(theirs):+.0f} ± {np.hypot(stdev(ours), stdev(theirs)):.0f}"


def speed(players: list[Side], agents: int, steps: int, pairs: int) -> None:
    """Rates and costs by side and pair, and the medians of the ratios to the first side."""
    rates: dict[str, list[tuple[float, float]]] = {side.name: [] for side in players}
    print(f"{'pair':>4}  {'side':<10} {'steps/s':>9} {'CPU µs/step':>12} {'other cores':>12} {'command, s':>11}")
    for pair in range(pairs):
        for side in players if pair % 2 == 0 else players[::-1]:
            outcome = play(side, agents, steps, pair)
            rate, cost, others = outcome.speed()
            rates[side.name].append((rate, cost))
            numbers = f"{rate:>9,.0f} {cost:>12.1f} {others:>12.2f} {outcome.seconds:>11.1f}"
            print(f"{pair:>4}  {side.name:<10} {numbers}", flush=True)
    first, *others_ = rates
    for name in others_:
        both = list(zip(rates[name], rates[first], strict=True))
        faster, cheaper = (median(ratio) for ratio in zip(*((a / b, d / c) for (a, c), (b, d) in both), strict=True))
        print(f"{name} against {first}: {faster:.1f} times the steps/s, {cheaper:.1f} times as many per CPU second")


def main() -> None:
    """Print the machine, and one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learning", "speed"))
    parser.add_argument("--official", type=Path, help="mlagents-learn of the official package")
    parser.add_argument("--agents", type=int, help="default: 12 to learn, 64 for speed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--marks", type=int, nargs="+", default=MARKS, help="agent steps at which learning is judged")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000, help="of a run for speed")
    parser.add_argument("--lags", nargs="*", default=[], help="of further runs of Headrace")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="of all runs of Headrace")
    asked = parser.parse_args()
    players = sides(asked.official, asked.lags, asked.set)
    print(f"{_cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if asked.what == "learning":
        learning(players, asked.agents or 12, asked.seeds, sorted(asked.marks))
    else:
        speed(players, asked.agents or 64, asked.steps, asked.pairs)


def _cpu_model() -> str:
    """What Linux calls the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


if __name__ == "__main__":
    main()
