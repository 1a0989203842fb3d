"""The machine of `benchmarks/compare.py`: its description and its peak performance.

The roofline is the time that a core needs for a workload's products alone, at the rate of a 1024³ product by whoever is
fastest here, torch, oneDNN or NumPy's BLAS: forward once for deciding, forward and backward (three times the work) for
each epoch. What goes beyond is memory, dispatch, small shapes, environments and all the rest.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from compare_runs import environment

_PONG = 20 * 20 * 32 * 256 + 9 * 9 * 64 * 512 + 7 * 7 * 64 * 576 + 3136 * 512 + 512 * 7


def _tower(inputs: int, units: int, outputs: int) -> int:
    return inputs * units + units * units + units * outputs


FLOP = {
    "W1": 2 * (1 + 3 * 4) * (_tower(4, 64, 2) + _tower(4, 64, 1)),
    "W2": 2 * (1 + 3 * 10) * (_tower(17, 256, 6) + _tower(17, 256, 1)),
    # The policy's pass over s', its pass and gradient; the targets' over s', the critics' pass and gradient, and their
    # pass and the actions' gradient in the policy's loss. Two critics.
    "W3": 2 * 256 * (4 * _tower(3, 256, 2) + 2 * (1 + 3 + 2) * _tower(4, 256, 1)),
    "W4": 2 * (1 + 3 * 4) * 2 * _tower(3, 64, 1),
    "Pong": 2 * (1 + 3 * 4) * _PONG,
}
"""Multiplications and additions of the products of a step, learning included."""
ROUNDS, SIZE = 8, 1024


def products_per_s(half: bool) -> tuple[str, float]:
    """The fastest provider, with its multiplications and additions per second, in float32 or bfloat16."""
    return max(_measured()["bfloat16" if half else "float32"].items(), key=lambda item: item[1])


@cache
def _measured() -> Mapping[str, Mapping[str, float]]:
    """The rates of a large product by precision and provider: of a process like those of the contestants."""
    command = [sys.executable, __file__]
    ran = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    found: Mapping[str, Mapping[str, float]] = json.loads(ran.stdout)
    return found


def providers() -> dict[str, dict[str, Callable[[], Any]]]:
    """By precision and name, one large product."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name in ("float32", "bfloat16"):
        one, other = (torch.randn(SIZE, SIZE, dtype=getattr(torch, name)) for _ in range(2))
        found[name] = {"torch": partial(torch.matmul, one, other)}
        if torch.backends.mkldnn.is_available():
            found[name]["oneDNN"] = partial(torch.ops.mkldnn._linear_pointwise, one, other, None, "none", [], "")
    arrays = [np.random.default_rng(n).standard_normal((SIZE, SIZE), np.float32) for n in range(2)]
    found["float32"]["NumPy"] = partial(np.matmul, *arrays)
    return found


def rate(product: Callable[[], Any]) -> float:
    """Multiplications and additions per second of CPU, at best."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(4):
            product()
        times.append((time.process_time() - began) / 4)
    return 2 * SIZE**3 / min(times)


def flags() -> list[str]:
    """Return the processor's relevant features for products (Linux)."""
    found = _cpuinfo().get("flags", "").split()
    return [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in found]


def description(peers: Mapping[str, str]) -> str:
    """Return processor, memory, versions, and the load by other programs.

    Args:
        peers: the Python with each distribution.
    """
    model = _cpuinfo().get("model name", platform.processor() or platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    packages = {**dict.fromkeys(("torch", "numpy", "gymnasium"), sys.executable), **peers}
    versions = [f"{package} {_version(python, package)}" for package, python in packages.items()]
    busy = f"{os.getloadavg()[0]:.1f} programs ran on average in the minute before"
    cores = f"{psutil.cpu_count()} cores, {memory:.0f} GiB"
    told = f"Python {platform.python_version()}, {', '.join(versions)}"
    return f"{model} ({', '.join(flags())}), {cores}; {told}; {busy}."


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _version(python: str, package: str) -> str:
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    print(json.dumps({kind: {name: rate(one) for name, one in by.items()} for kind, by in providers().items()}))
