"""The workloads of `benchmarks/compare.py`: their contestants, and the reported ratios with their bars."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import compare_before
from compare_machine import flags
from compare_runs import ROOT, Measured, pipeline, program

INLINE = [f"pipeline.hosts.{part}.kind=inline" for part in ("actors", "learners")]
PROCESS = [f"pipeline.hosts.{part}.kind=process" for part in ("actors", "learners")]
OURS, INLINE_OURS, BF16, LAG = "Headrace, processes", "Headrace, inline", "Headrace, bf16", "Headrace, lag 1"
NUMPY, EAGER, BARE, BEFORE = "NumPy by hand", "eager torch", "our trainer in a bare loop", "Headrace, --before"
INLINE_BEFORE = "Headrace inline, --before"
SB3, RLTOOLS, SBX = "Stable-Baselines3", "RLtools", "sbx"
SAC_FIRST = 1000
PENDULUM = ("network_settings.hidden_units=256", "hyperparameters.learning_rate=3e-4")
Run = Callable[[int], Measured]
"""A contestant: a function from a seed to the measurements of its run."""


@dataclass(frozen=True)
class Bar:
    """A ratio to report, and its minimum in CPU and in wall-clock time."""

    ours: str
    other: str
    cpu: float | None = None
    clock: float | None = None


@dataclass(frozen=True)
class Workload:
    """A workload and its contestants."""

    title: str
    contestants: Mapping[str, Run]
    bars: Sequence[Bar]
    once: bool = False
    """True if a run gives a duration, so that seconds are reported instead of rates."""


@dataclass(frozen=True)
class Peer:
    """A comparable library, installed in a separate Python."""

    option: str
    """The command-line option that names the peer's Python."""
    module: str
    distribution: str
    words: Sequence[str]
    """The benchmark program, and the arguments that select the peer."""
    workloads: Sequence[str]
    packages: str
    """The packages to install in the peer's Python."""


PEERS: Mapping[str, Peer] = {
    SB3: Peer(
        "peer",
        "stable_baselines3",
        "stable-baselines3",
        ["benchmarks/peer_sb3.py"],
        ["W1", "W2", "W3", "W4", "Pong"],
        "'headrace[peers]'",
    ),
    RLTOOLS: Peer(
        "rltools",
        "rltools",
        "rltools",
        ["benchmarks/peer_rltools.py"],
        ["W3", "W4"],
        "rltools mkl mkl-devel gymnasium",
    ),
    SBX: Peer("sbx", "sbx", "sbx-rl", ["benchmarks/peer_sb3.py", "--sbx"], ["W3", "W4"], "sbx-rl"),
}


@dataclass(frozen=True)
class Asked:
    """The command line's options."""

    peers: Mapping[str, str]
    """Path of the Python of each available peer, by peer."""
    before: Path | None
    quick: bool


def w1(asked: Asked) -> Workload:
    """Return workload W1: PPO on CartPole-v1."""
    steps = 100_000 if asked.quick else 250_000
    sized = ["--steps", str(steps), "--seed"]
    contestants = {
        **by_hosts("config/examples/cartpole.yaml", "CartPole", steps, 475.0),
        BARE: lambda seed: program([sys.executable, "benchmarks/bare_loop.py", "cartpole", *sized, str(seed)]),
        NUMPY: lambda seed: program([sys.executable, "benchmarks/reference_numpy_ppo.py", *sized, str(seed)]),
        EAGER: lambda seed: program([sys.executable, "benchmarks/reference_torch_ppo.py", *sized, str(seed)]),
        **peers(asked, "W1", steps),
    }
    bars = [
        Bar(OURS, NUMPY, cpu=0.85),
        Bar(OURS, SB3, cpu=5.5, clock=5.5),
        Bar(OURS, EAGER, cpu=2.5, clock=3.5),
        Bar(INLINE_OURS, NUMPY),
        Bar(INLINE_OURS, SB3),
        Bar(INLINE_OURS, BARE),
    ]
    return Workload(
        "PPO on CartPole-v1: 64 environments × 32 steps, 4 epochs of minibatches of 256, 2×64", contestants, bars
    )


def w2(asked: Asked) -> Workload:
    """Return workload W2: PPO on HalfCheetah-v5."""
    steps = 16_384 if asked.quick else 61_440
    contestants = by_precision("config/examples/halfcheetah.yaml", "HalfCheetah", PROCESS, steps, steps // 5)
    title = "PPO on HalfCheetah-v5: 16 environments × 128 steps, 10 epochs of minibatches of 512, 2×256"
    bars = [Bar(OURS, SB3, cpu=3.0, clock=3.0), Bar(BF16, SB3)]
    return Workload(title, {**contestants, **peers(asked, "W2", steps)}, bars)


def w3(asked: Asked) -> Workload:
    """Return workload W3: SAC on Pendulum-v1."""
    steps = SAC_FIRST + (500 if asked.quick else 2000)
    sets = [*PROCESS, *(f"behaviors.Pendulum.{key}" for key in PENDULUM)]
    contestants = by_precision("config/examples/pendulum.yaml", "Pendulum", sets, steps, SAC_FIRST, SAC_FIRST)
    by_default = BF16 if {"amx_bf16", "avx512_bf16"} & set(flags()) else OURS  # what `precision: auto` chooses
    bars = [
        Bar(OURS, SB3, cpu=1.5),
        Bar(OURS, RLTOOLS),
        Bar(by_default, SBX, clock=1.0),
        Bar(BF16, SB3, cpu=3.0 if "amx_bf16" in flags() else 2.5),
        Bar(BF16, OURS, clock=1.0),
    ]
    title = "SAC on Pendulum-v1: one environment, an update of 256 rows a step, 2×256; rates after 1,000 steps"
    return Workload(title, {**contestants, **peers(asked, "W3", steps)}, bars)


def w4(asked: Asked) -> Workload:
    """Return workload W4: PPO on Pendulum-v1, for which Gymnasium has only single environments."""
    steps = 100_000 if asked.quick else 250_000
    contestants = by_hosts("benchmarks/pendulum_ppo.yaml", "Pendulum", steps, lag=True)
    bars = [
        Bar(OURS, RLTOOLS, clock=1.25),
        Bar(OURS, SBX),
        Bar(OURS, SB3, clock=3.0),
        Bar(LAG, RLTOOLS),
        Bar(LAG, SB3),
        Bar(INLINE_OURS, RLTOOLS, clock=0.7),
    ]
    title = "PPO on Pendulum-v1: 64 single environments × 32 steps, 4 epochs of minibatches of 256, 2×64"
    return Workload(title, {**contestants, **peers(asked, "W4", steps)}, bars)


def pong(asked: Asked) -> Workload:
    """Return the workload Pong: PPO on Atari's Pong."""
    steps = 3_072 if asked.quick else 10_240
    contestants = by_precision("config/examples/pong.yaml", "Pong", PROCESS, steps, steps // 5)
    bars = [Bar(OURS, SB3, cpu=2.5, clock=2.5), Bar(BF16, SB3, cpu=4.0)]
    title = "PPO on Pong from pixels: 8 environments × 128 steps, 4 epochs of minibatches of 256, nature_cnn"
    return Workload(title, {**contestants, **peers(asked, "Pong", steps)}, bars)


def by_hosts(example: str, behavior: str, steps: int, mark: float = float("inf"), lag: bool = False) -> dict[str, Run]:
    """Return Headrace's contestants: actor and learner in separate processes, perhaps with lag 1, and both inline."""

    def ours(sets: Sequence[str]) -> Run:
        return lambda seed: pipeline(example, behavior, sets, seed, steps, steps // 5, mark=mark)

    ahead = {LAG: ours([*PROCESS, "pipeline.max_policy_lag=1"])} if lag else {}
    return {OURS: ours(PROCESS), **ahead, INLINE_OURS: ours(INLINE)}


def by_precision(
    example: str, behavior: str, sets: Sequence[str], steps: int, first: int, warm_up: int = 0
) -> dict[str, Run]:
    """Return Headrace's contestants: in float32 and in bf16."""

    def ours(precision: str) -> Run:
        keys = [*sets, f"torch_settings.precision={precision}"]
        return lambda seed: pipeline(example, behavior, keys, seed, steps, first, warm_up=warm_up)

    return {OURS: ours("float32"), BF16: ours("bf16")}


def start(asked: Asked) -> Workload:
    """Return the workload `start`: from the command to the first update."""

    def run(checkout: Path, hosts: Sequence[str]) -> Run:
        return lambda seed: compare_before.start(checkout, hosts, seed)

    contestants = {OURS: run(ROOT, PROCESS), INLINE_OURS: run(ROOT, INLINE)}
    if asked.before is not None:
        contestants |= {BEFORE: run(asked.before, PROCESS), INLINE_BEFORE: run(asked.before, INLINE)}
    title = "CartPole from the command to the first summary after an update"
    bars = [Bar(OURS, BEFORE, clock=1 / 0.6), Bar(INLINE_OURS, INLINE_BEFORE)]
    return Workload(title, contestants, bars, once=True)


def main_job(asked: Asked) -> Workload:
    """Return the workload `main`: Volley until a policy wins enough games."""
    assert asked.before is not None, "only called if there is one"
    before, steps, wins = asked.before, 375_000 if asked.quick else 0, 0.1 if asked.quick else 0.9
    contestants: dict[str, Run] = {
        OURS: lambda seed: compare_before.main_job(ROOT, seed, steps, wins),
        BEFORE: lambda seed: compare_before.main_job(before, seed, steps, wins),
    }
    title = (
        f"the built-in game by self-play, from the command to a policy that wins {wins:.0%} against the scripted player"
    )
    return Workload(title, contestants, [Bar(OURS, BEFORE, clock=2.0)], once=True)


def peers(asked: Asked, workload: str, steps: int) -> dict[str, Run]:
    """Return the peers that run a workload and whose Python has the package that its environment needs."""

    def run(words: Sequence[str]) -> Run:
        return lambda seed: program([*words, workload, "--steps", str(steps), "--seed", str(seed)])

    return {
        name: run([python, *PEERS[name].words])
        for name, python in asked.peers.items()
        if workload in PEERS[name].workloads and has(python, NEEDS.get(workload))
    }


def has(python: str, package: str | None) -> bool:
    """Return True if a Python has a package; print a line if it doesn't."""
    if package is None:
        return True
    try:
        found = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise SystemExit(f"{python} does not run ({error}); expected a Python") from None
    if not found:
        print(f"skipped: {python} has no {package}", file=sys.stderr)
    return found


WORKLOADS: dict[str, Callable[[Asked], Workload]] = {
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "W4": w4,
    "Pong": pong,
    "start": start,
    "main": main_job,
}
NEEDS = {"W2": "mujoco", "Pong": "ale_py"}
"""The package that a workload's environment needs, by workload."""
