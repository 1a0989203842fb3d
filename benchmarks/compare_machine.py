"""The machine of `benchmarks/compare.py`: what it is, and what it could do.

The roofline is the time that a core needs for a workload's products alone, at the rate of a 1024³ product: forward once
for deciding, forward and backward (three times the work) for each epoch. What goes beyond is memory, dispatch, small
shapes, environments and all the rest.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_PONG = 20 * 20 * 32 * 256 + 9 * 9 * 64 * 512 + 7 * 7 * 64 * 576 + 3136 * 512 + 512 * 7


def _tower(inputs: int, units: int, outputs: int) -> int:
    return inputs * units + units * units + units * outputs


FLOP = {
    "W1": 2 * (1 + 3 * 4) * (_tower(4, 64, 2) + _tower(4, 64, 1)),
    "W2": 2 * (1 + 3 * 10) * (_tower(17, 256, 6) + _tower(17, 256, 1)),
    # The policy's pass over s', its pass and gradient; the targets' over s', the critics' pass and gradient, and their
    # pass and the actions' gradient in the policy's loss. Two critics.
    "W3": 2 * 256 * (4 * _tower(3, 256, 2) + 2 * (1 + 3 + 2) * _tower(4, 256, 1)),
    "Pong": 2 * (1 + 3 * 4) * _PONG,
}
"""Multiplications and additions of the products of a step, learning included."""
ROUNDS, SIZE = 8, 1024


def products_per_s(half: bool) -> float:
    """Multiplications and additions per second of CPU in a large product, in float32 or bfloat16, on one thread."""
    import torch

    torch.set_num_threads(1)
    one, other = (torch.randn(SIZE, SIZE, dtype=torch.bfloat16 if half else torch.float32) for _ in range(2))
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(4):
            one @ other
        times.append((time.process_time() - began) / 4)
    return float(2 * SIZE**3 / min(times))


def flags() -> list[str]:
    """What the processor has for products, of what matters here (Linux)."""
    found = _cpuinfo().get("flags", "").split()
    return [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in found]


def description(peer: str | None, packages: Sequence[str] = ("torch", "numpy", "gymnasium")) -> str:
    """Processor, memory, versions, and how busy other programs keep it."""
    model = _cpuinfo().get("model name", platform.processor() or platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{package} {_version(package)}" for package in packages)
    beside = f", {_peer(peer)}" if peer else ""
    busy = f"{os.getloadavg()[0]:.1f} programs ran on average in the minute before"
    cores = f"{psutil.cpu_count()} cores, {memory:.0f} GiB"
    return f"{model} ({', '.join(flags())}), {cores}; Python {platform.python_version()}, {versions}{beside}; {busy}."


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _peer(python: str) -> str:
    asked = "from importlib.metadata import version as v; print('stable-baselines3', v('stable-baselines3'))"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
