"""The pipeline beside its references and peers, in turn on one machine: every ratio that docs/performance.md states.

    python benchmarks/compare.py --pairs 5 --peer PEER        PEER: a Python with headrace's extra `peers`
    python benchmarks/compare.py --only W1 --pairs 3 --quick

W1 is PPO on CartPole-v1, the same hyperparameters for all: the command with actor and learner in processes of their own
and with both inline, our trainer in a bare loop (`bare_loop.py`), PPO by hand in NumPy (`reference_numpy_ppo.py`), PPO
in eager torch (`reference_torch_ppo.py`), and Stable-Baselines3 (`peer_sb3.py`), which is the peer of the others too:
W2 is PPO on HalfCheetah-v5, W3 SAC on Pendulum-v1, Pong PPO from pixels. Every process has one thread.

Contestants of a workload run one after the other, round by round, in another order each time; a ratio is taken within a
round, and the median of the rounds is told: by the clock, which needs a quiet machine, and in CPU time per step of the
busiest process, which other work disturbs less. Above 1, ours is faster. Start-up and the first fifth of the steps are
left out. What is not installed is skipped by name.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from compare_runs import ROOT, Measured, pipeline, program

sys.path.insert(0, str(ROOT))

from config.sections import TorchSettings

INLINE = [f"pipeline.hosts.{part}.kind=inline" for part in ("actors", "learners")]
PROCESS = [f"pipeline.hosts.{part}.kind=process" for part in ("actors", "learners")]
BARE = """
import json, sys, time
sys.path[:0] = [".", "benchmarks"]
import torch
from bare_loop import TASKS, run_bare
torch.set_num_threads(1)
began = time.process_time()
told = run_bare(TASKS["cartpole"], int(sys.argv[2]), int(sys.argv[1]))
took = {"steps": told.steps, "seconds": told.seconds, "cpu_s": time.process_time() - began, "stages": {}}
print(json.dumps({**took, "score": told.last_100, "solved_at": told.solved_at}))
"""
Run = Callable[[int], Measured]
"""A contestant: from a seed to what its run took."""


@dataclass(frozen=True)
class Bar:
    """A ratio that is told, and the least that it should be."""

    ours: str
    other: str
    cpu: float | None = None
    clock: float | None = None


@dataclass(frozen=True)
class Workload:
    """What all contestants do."""

    title: str
    contestants: Mapping[str, Run]
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    peer: str | None
    quick: bool


def w1(asked: Asked) -> Workload:
    """PPO on CartPole-v1."""
    steps = 100_000 if asked.quick else 250_000
    sized = ["--steps", str(steps), "--seed"]

    def ours(sets: Sequence[str]) -> Run:
        return lambda seed: pipeline("cartpole.yaml", "CartPole", sets, seed, steps, steps // 5, mark=475.0)

    contestants = {
        OURS: ours(PROCESS),
        INLINE_OURS: ours(INLINE),
        "our trainer in a bare loop": lambda seed: program([sys.executable, "-c", BARE, str(steps), str(seed)]),
        "NumPy by hand": lambda seed: program([sys.executable, "benchmarks/reference_numpy_ppo.py", *sized, str(seed)]),
        "eager torch": lambda seed: program([sys.executable, "benchmarks/reference_torch_ppo.py", *sized, str(seed)]),
        **peer(asked, "W1", steps),
    }
    bars = [
        Bar(OURS, "NumPy by hand", cpu=0.85),
        Bar(OURS, SB3, cpu=5.0, clock=5.0),
        Bar(OURS, "eager torch", cpu=2.5),
        Bar(INLINE_OURS, "NumPy by hand"),
        Bar(INLINE_OURS, SB3),
        Bar(INLINE_OURS, "our trainer in a bare loop"),
    ]
    return Workload(
        "PPO on CartPole-v1: 64 environments × 32 steps, 4 epochs of minibatches of 256, 2×64", contestants, bars
    )


def w2(asked: Asked) -> Workload:
    """PPO on HalfCheetah-v5."""
    steps = 16_384 if asked.quick else 61_440
    contestants = {OURS: lambda seed: pipeline("halfcheetah.yaml", "HalfCheetah", PROCESS, seed, steps, steps // 5)}
    title = "PPO on HalfCheetah-v5: 16 environments × 128 steps, 10 epochs of minibatches of 512, 2×256"
    return Workload(title, {**contestants, **peer(asked, "W2", steps)}, [Bar(OURS, SB3, cpu=3.0)])


def w3(asked: Asked) -> Workload:
    """SAC on Pendulum-v1."""
    steps = SAC_FIRST + (500 if asked.quick else 2000)
    sets = [*PROCESS, *(f"behaviors.Pendulum.{key}" for key in PENDULUM)]
    contestants = by_precision("pendulum.yaml", "Pendulum", sets, steps, SAC_FIRST, SAC_FIRST)
    bars = [Bar(OURS, SB3, cpu=1.5), Bar(BF16, SB3, cpu=2.5)]
    title = "SAC on Pendulum-v1: one environment, an update of 256 rows a step, 2×256; rates after 1,000 steps"
    return Workload(title, {**contestants, **peer(asked, "W3", steps)}, bars)


def pong(asked: Asked) -> Workload:
    """PPO on Atari's Pong."""
    steps = 3_072 if asked.quick else 10_240
    contestants = by_precision("pong.yaml", "Pong", PROCESS, steps, steps // 5)
    bars = [Bar(OURS, SB3, cpu=3.0), Bar(BF16, SB3, cpu=4.0)]
    title = "PPO on Pong from pixels: 8 environments × 128 steps, 4 epochs of minibatches of 256, nature_cnn"
    return Workload(title, {**contestants, **peer(asked, "Pong", steps)}, bars)


OURS, INLINE_OURS, BF16, SB3 = "Headrace, processes", "Headrace, inline", "Headrace, bf16", "Stable-Baselines3"
SAC_FIRST = 1000
PENDULUM = ("network_settings.hidden_units=256", "hyperparameters.learning_rate=3e-4")
WORKLOADS: dict[str, Callable[[Asked], Workload]] = {"W1": w1, "W2": w2, "W3": w3, "Pong": pong}
NEEDS = {"W2": "mujoco", "Pong": "ale_py"}
"""What the environment of a workload needs."""


def by_precision(
    example: str, behavior: str, sets: Sequence[str], steps: int, first: int, warm_up: int = 0
) -> dict[str, Run]:
    """Ours in float32, and in bf16 where there is such a key."""

    def ours(more: Sequence[str]) -> Run:
        return lambda seed: pipeline(example, behavior, [*sets, *more], seed, steps, first, warm_up=warm_up)

    found = {OURS: ours([])}
    if "precision" in TorchSettings.model_fields:
        found[BF16] = ours(["torch_settings.precision=bf16"])
    return found


def peer(asked: Asked, workload: str, steps: int) -> dict[str, Run]:
    """Stable-Baselines3, if there is a Python that has it, and what the environment needs."""
    if asked.peer is None or not has(asked.peer, NEEDS.get(workload)):
        return {}
    words = [asked.peer, "benchmarks/peer_sb3.py", workload, "--steps", str(steps), "--seed"]
    return {SB3: lambda seed: program([*words, str(seed)])}


def has(python: str, package: str | None) -> bool:
    """Whether a Python has a package; says so if it has not."""
    if package is None:
        return True
    try:
        found = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise SystemExit(f"--peer: {python} does not run ({error}); expected a Python") from None
    if not found:
        print(f"skipped: {python} has no {package}", file=sys.stderr)
    return found


def rounds(workload: Workload, pairs: int) -> dict[str, list[Measured]]:
    """What each contestant took in each round."""
    found: dict[str, list[Measured]] = {name: [] for name in workload.contestants}
    names = list(workload.contestants)
    for number in range(pairs):
        # Who goes first changes, so that a drift of the machine favours nobody.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(workload.contestants[name](number))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def table(name: str, workload: Workload, found: Mapping[str, Sequence[Measured]]) -> list[str]:
    """What each contestant took: medians of the rounds."""
    rows = [
        f"**{name}**: {workload.title}.\n",
        "| | steps/s | CPU µs per step, busiest process | all processes | µs deciding / stepping / update | s in all "
        "| score | solved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for contestant, runs in found.items():
        stages = " / ".join(f"{median(run.stages[stage] for run in runs):.1f}" for stage in runs[0].stages) or "–"
        figures = [median(getattr(run, what) for run in runs) for what in ("steps_per_s", "cpu_us", "all_cpu_us")]
        cells = f"{figures[0]:,.0f} | {figures[1]:,.1f} | {figures[2]:,.1f}"
        ended = f"{median(run.seconds for run in runs):.1f} | {median(run.score for run in runs):.0f}"
        solved = f"{sum(run.solved_at is not None for run in runs)} of {len(runs)}"
        rows.append(f"| {contestant} | {cells} | {stages} | {ended} | {solved} |")
    return rows


def ratios(workload: Workload, found: Mapping[str, Sequence[Measured]]) -> list[str]:
    """Medians of the ratios within a round, beside their bars."""
    rows = ["| | CPU time per step, busiest process | by the clock |", "|---|---|---|"]
    for bar in workload.bars:
        if bar.ours not in found or bar.other not in found:
            continue
        pairs = list(zip(found[bar.ours], found[bar.other], strict=True))
        cpu = median(other.cpu_us / ours.cpu_us for ours, other in pairs)
        clock = median(ours.steps_per_s / other.steps_per_s for ours, other in pairs)
        rows.append(f"| {bar.ours} : {bar.other} | {told(cpu, bar.cpu)} | {told(clock, bar.clock)} |")
    return rows


def told(ratio: float, bar: float | None) -> str:
    """A ratio, and whether it reaches its bar."""
    if bar is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} (bar {bar:g}{'' if ratio >= bar else ', missed'})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="workloads")
    parser.add_argument("--pairs", type=int, default=3, help="rounds in which all contestants run in turn")
    parser.add_argument("--peer", help="a Python with the extra `peers`; without it, Stable-Baselines3 is skipped")
    parser.add_argument("--quick", action="store_true", help="fewer steps: to see that it works")
    asked = parser.parse_args(arguments)
    if asked.pairs < 1:
        parser.error("--pairs: there is at least one")
    if asked.peer is None:
        print("Stable-Baselines3 is skipped: --peer names a Python that has it", file=sys.stderr)
    elif not has(asked.peer, "stable_baselines3"):
        parser.error(
            f"--peer: {asked.peer} has no stable-baselines3; in that environment: pip install 'headrace[peers]'"
        )
    for name in asked.only:
        if not has(sys.executable, NEEDS.get(name)):
            continue
        workload = WORKLOADS[name](Asked(asked.peer, asked.quick))
        found = rounds(workload, asked.pairs)
        print("\n".join([*table(name, workload, found), "", *ratios(workload, found), ""]), flush=True)


if __name__ == "__main__":
    main()
