"""Describes the machine that runs `benchmarks/compare.py`, and measures its peak performance.

The roofline is the time that a core needs for a workload's matrix products alone, at the rate of a 1024³ product by the
fastest provider here: torch, oneDNN or NumPy's BLAS. Deciding takes one forward pass; each epoch takes a forward and a
backward pass (three times the work). The remaining time goes to memory, dispatch, small shapes, environments and
everything else.
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
    # Policy: one forward pass over s', then forward and backward. Two critics: the targets' forward pass over s', then
    # forward and backward, and in the policy's loss forward and the gradient of the actions.
    "W3": 2 * 256 * (4 * _tower(3, 256, 2) + 2 * (1 + 3 + 2) * _tower(4, 256, 1)),
    "W4": 2 * (1 + 3 * 4) * 2 * _tower(3, 64, 1),
    "Pong": 2 * (1 + 3 * 4) * _PONG,
}
"""Floating-point operations in the matrix products of one step, including learning."""
ROUNDS, SIZE = 8, 1024


def products_per_s(half: bool) -> tuple[str, float]:
    """Return the fastest provider and its floating-point operations per second, in float32 or, if `half`, bfloat16."""
    return max(_measured()["bfloat16" if half else "float32"].items(), key=lambda item: item[1])


@cache
def _measured() -> Mapping[str, Mapping[str, float]]:
    """Return the rates of a large matrix product by precision and provider, in a process like the contestants'."""
    command = [sys.executable, __file__]
    ran = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    found: Mapping[str, Mapping[str, float]] = json.loads(ran.stdout)
    return found


def providers() -> dict[str, dict[str, Callable[[], Any]]]:
    """Return functions that compute one large matrix product each, by precision and provider."""
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
    """Return a matrix product's floating-point operations per CPU second, in the best of several rounds."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(4):
            product()
        times.append((time.process_time() - began) / 4)
    return 2 * SIZE**3 / min(times)


def flags() -> list[str]:
    """Return the processor features that speed up matrix products (Linux only)."""
    found = _cpuinfo().get("flags", "").split()
    return [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in found]


def description(peers: Mapping[str, str]) -> str:
    """Return the processor, memory, versions, and load by other programs as text.

    Args:
        peers: path of the Python that has each distribution, by distribution.
    """
    model = _cpuinfo().get("model name", platform.processor() or platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    packages = {**dict.fromkeys(("torch", "numpy", "gymnasium"), sys.executable), **peers}
    versions = [f"{package} {_version(python, package)}" for package, python in packages.items()]
    busy = f"load average of the last minute: {os.getloadavg()[0]:.1f}"
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
