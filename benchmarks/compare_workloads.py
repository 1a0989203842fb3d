"""The workloads of `benchmarks/compare.py`: who does what, and the ratios that are told with their bars."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import compare_before
from compare_machine import flags
from compare_runs import ROOT, Measured, pipeline, program

sys.path.insert(0, str(ROOT))

from headrace.config.sections import TorchSettings

INLINE = [f"pipeline.hosts.{part}.kind=inline" for part in ("actors", "learners")]
PROCESS = [f"pipeline.hosts.{part}.kind=process" for part in ("actors", "learners")]
OURS, INLINE_OURS, BF16 = "Headrace, processes", "Headrace, inline", "Headrace, bf16"
NUMPY, EAGER, SB3, BEFORE = "NumPy by hand", "eager torch", "Stable-Baselines3", "Headrace, --before"
SAC_FIRST = 1000
PENDULUM = ("network_settings.hidden_units=256", "hyperparameters.learning_rate=3e-4")
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
    once: bool = False
    """Whether it is done once, so that seconds are told instead of rates."""


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    peer: str | None
    before: Path | None
    quick: bool


def w1(asked: Asked) -> Workload:
    """PPO on CartPole-v1."""
    steps = 100_000 if asked.quick else 250_000
    sized = ["--steps", str(steps), "--seed"]

    def ours(sets: Sequence[str]) -> Run:
        return lambda seed: pipeline(
            "config/examples/cartpole.yaml", "CartPole", sets, seed, steps, steps // 5, mark=475.0
        )

    contestants = {
        OURS: ours(PROCESS),
        INLINE_OURS: ours(INLINE),
        "our trainer in a bare loop": lambda seed: program([sys.executable, "-c", BARE, str(steps), str(seed)]),
        NUMPY: lambda seed: program([sys.executable, "benchmarks/reference_numpy_ppo.py", *sized, str(seed)]),
        EAGER: lambda seed: program([sys.executable, "benchmarks/reference_torch_ppo.py", *sized, str(seed)]),
        **peer(asked, "W1", steps),
    }
    bars = [
        Bar(OURS, NUMPY, cpu=0.85),
        Bar(OURS, SB3, cpu=5.0, clock=5.0),
        Bar(OURS, EAGER, cpu=2.5),
        Bar(INLINE_OURS, NUMPY),
        Bar(INLINE_OURS, SB3),
        Bar(INLINE_OURS, "our trainer in a bare loop"),
    ]
    return Workload(
        "PPO on CartPole-v1: 64 environments × 32 steps, 4 epochs of minibatches of 256, 2×64", contestants, bars
    )


def w2(asked: Asked) -> Workload:
    """PPO on HalfCheetah-v5."""
    steps = 16_384 if asked.quick else 61_440
    contestants = by_precision("config/examples/halfcheetah.yaml", "HalfCheetah", PROCESS, steps, steps // 5)
    title = "PPO on HalfCheetah-v5: 16 environments × 128 steps, 10 epochs of minibatches of 512, 2×256"
    bars = [Bar(OURS, SB3, cpu=3.0), Bar(BF16, SB3)]
    return Workload(title, {**contestants, **peer(asked, "W2", steps)}, bars)


def w3(asked: Asked) -> Workload:
    """SAC on Pendulum-v1."""
    steps = SAC_FIRST + (500 if asked.quick else 2000)
    sets = [*PROCESS, *(f"behaviors.Pendulum.{key}" for key in PENDULUM)]
    contestants = by_precision("config/examples/pendulum.yaml", "Pendulum", sets, steps, SAC_FIRST, SAC_FIRST)
    bars = [Bar(OURS, SB3, cpu=1.5), Bar(BF16, SB3, cpu=3.0 if "amx_bf16" in flags() else 2.5)]
    title = "SAC on Pendulum-v1: one environment, an update of 256 rows a step, 2×256; rates after 1,000 steps"
    return Workload(title, {**contestants, **peer(asked, "W3", steps)}, bars)


def pong(asked: Asked) -> Workload:
    """PPO on Atari's Pong."""
    steps = 3_072 if asked.quick else 10_240
    contestants = by_precision("config/examples/pong.yaml", "Pong", PROCESS, steps, steps // 5)
    bars = [Bar(OURS, SB3, cpu=3.0), Bar(BF16, SB3, cpu=4.0)]
    title = "PPO on Pong from pixels: 8 environments × 128 steps, 4 epochs of minibatches of 256, nature_cnn"
    return Workload(title, {**contestants, **peer(asked, "Pong", steps)}, bars)


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


def start(asked: Asked) -> Workload:
    """From the command to the first update."""
    assert asked.before is not None, "asked for where there is one"
    before = asked.before
    contestants: dict[str, Run] = {
        OURS: lambda seed: compare_before.start(ROOT, seed),
        BEFORE: lambda seed: compare_before.start(before, seed),
    }
    title = "CartPole from the command to the first summary after an update"
    return Workload(title, contestants, [Bar(OURS, BEFORE, clock=1 / 0.6)], once=True)


def main_job(asked: Asked) -> Workload:
    """Volley to its bar."""
    assert asked.before is not None, "asked for where there is one"
    before, steps, wins = asked.before, 375_000 if asked.quick else 0, 0.1 if asked.quick else 0.9
    contestants: dict[str, Run] = {
        OURS: lambda seed: compare_before.main_job(ROOT, seed, steps, wins),
        BEFORE: lambda seed: compare_before.main_job(before, seed, steps, wins),
    }
    title = (
        f"the built-in game by self-play, from the command to a policy that wins {wins:.0%} against the scripted player"
    )
    return Workload(title, contestants, [Bar(OURS, BEFORE, clock=2.0)], once=True)


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


WORKLOADS: dict[str, Callable[[Asked], Workload]] = {
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "Pong": pong,
    "start": start,
    "main": main_job,
}
NEEDS = {"W2": "mujoco", "Pong": "ale_py"}
"""What the environment of a workload needs."""
