"""Matmuls in learners' wide layers: which library computes them, and at which precision.

**Providers.** Which library multiplies float32 matrices fastest depends on the CPU: torch's default, MKL, uses its AVX2
kernels on AMD CPUs, whereas NumPy's BLAS has AVX-512 kernels. `fastest` measures both on the actual shapes. Their
results agree up to float32 rounding. Providers matter only on the CPU.

**bfloat16.** A matmul's inputs are rounded; weights, gradients and results stay float32. bfloat16 has float32's range
with 8 of its 24 bits, so nothing needs scaling. CPUs with AMX or AVX512-bf16 multiply it several times as fast and
accumulate in float32. Small matmuls, first layers over observations, and heads stay float32, because rounding them
costs accuracy and gains nothing.

Axis letters: R rows, V inputs, U units, T parallel towers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headrace.stages.policy.design import FROM_UNITS, ProductSettings

log = logging.getLogger(__name__)

_AMX = "AMX"
_CPU_FLAGS = {"amx_bf16": _AMX, "avx512_bf16": "AVX512-bf16", "bf16": "the ARM bf16 extension"}
"""CPU flags that indicate fast bfloat16, fastest first, with names for messages. Linux reports all of them, and torch
the first two."""


def fast_bf16(device: str) -> str | None:
    """Describe why bfloat16 matmuls are fast on a torch device; return None if they are slower than float32 ones."""
    if device.startswith("cuda"):
        # Ampere or later: older GPUs have no unit for bfloat16, although torch reports it as supported.
        return "tensor cores" if torch.cuda.get_device_capability(device)[0] >= 8 else None
    if device != "cpu":
        return None
    flags = _cpu_flags()
    return next((words for flag, words in _CPU_FLAGS.items() if flag in flags), None)


# Providers of float32 matmuls.


Multiply = Callable[..., object]
"""Function called as `(a, b, out=c)`, which writes the product of two matrices, or of T pairs of matrices, to `out`."""


class Provider(NamedTuple):
    """A library that multiplies float32 matrices on the CPU."""

    title: str
    multiply: Multiply
    layer: Callable[[Tensor, Tensor, Tensor, Tensor], object]
    """Writes x·Wᵀ + b to its last argument [R, U], given a bias [U], x [R, V] and a weight [U, V]."""


def _by_numpy(a: Tensor, b: Tensor, out: Tensor) -> None:
    np.matmul(a.numpy(), b.numpy(), out=out.numpy())


def _by_rounding(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a.bfloat16() @ b.bfloat16())


def _layer_by_numpy(bias: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> None:
    _by_numpy(x, weight.t(), out)
    out.add_(bias)


TORCH = "torch"
PROVIDERS = {
    TORCH: Provider(
        "torch",
        torch.matmul,
        lambda bias, x, weight, out: torch.addmm(bias, x, weight.t(), out=out),
    ),
    "numpy": Provider("NumPy", _by_numpy, _layer_by_numpy),
}
"""The providers, keyed by the value of `torch_settings.products`; the default comes first."""
GAIN = 0.9
"""A provider replaces the default only if it takes less than this fraction of the default's time.

Smaller gains are noise.
"""
_ROUNDS, _AGREE, _MOST_ROWS = 5, 1e-4, 512


@cache
def fastest(rows: int, inputs: int, outputs: int) -> str:
    """Return the fastest provider for a weight [outputs, inputs], which is measured once per process."""
    return measure_fastest(PROVIDERS, rows, inputs, outputs)


def measure_fastest(providers: Mapping[str, Provider], rows: int, inputs: int, outputs: int) -> str:
    """Measure which of these providers, which include torch, is fastest for a weight [outputs, inputs].

    The time is that of a forward and backward pass. A provider is excluded if it raises, or if its result differs from
    torch's by more than float32 rounding.
    """
    shapes, draw = ((rows, inputs), (rows, outputs), (outputs, inputs), (outputs,)), torch.Generator().manual_seed(0)
    x, above, weight, bias = (torch.randn(shape, generator=draw) for shape in shapes)
    results = [torch.empty(rows, outputs), torch.empty(rows, inputs), torch.empty(outputs, inputs)]
    took, right = dict[str, float](), list[Tensor]()
    for name, provider in providers.items():
        best = float("inf")
        try:
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                provider.layer(bias, x, weight, results[0])
                provider.multiply(above, weight, out=results[1])
                provider.multiply(above.t(), x, out=results[2])
                best = min(best, time.perf_counter() - began)
        except (RuntimeError, TypeError):  # this version of torch does not support this matmul
            continue
        right = right or [result.clone() for result in results]
        if all(float((a - b).norm()) <= _AGREE * float(b.norm()) for a, b in zip(results, right, strict=True)):
            took[name] = best
    quickest = min(took, key=took.__getitem__)
    chosen = quickest if took[quickest] < GAIN * took[TORCH] else TORCH
    told = ", ".join(f"{providers[name].title} {1e3 * seconds:.3g} ms" for name, seconds in took.items())
    log.info(
        "Layers of %d × %d use %s. Forward and backward pass with %d rows: %s.",
        *(inputs, outputs, providers[chosen].title, rows, told),
    )
    return chosen


class HiddenProducts:
    """Computes a perceptron's matmuls without autograd, with the provider and precision from the settings.

    On a CPU with AMX, oneDNN itself rounds the inputs. oneDNN's setting is process-wide, so it is switched on only
    during a matmul and does not affect the process's other matmuls. On other CPUs this class rounds the inputs: without
    AMX, oneDNN treats the setting only as permission, and keeps some matmuls in float32.

    Args:
        settings: provider and precision.
    """

    def __init__(self, settings: ProductSettings) -> None:
        self._settings = settings
        by_onednn = settings.onednn and settings.rounded_from > 0 and fast_bf16("cpu") == _AMX
        self._onednn = _onednn_setting() if by_onednn else None
        self.alone = self._onednn is not None
        """Whether only one thread at a time may multiply, because oneDNN's setting is process-wide."""

    def layer(self, bias: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write x Wᵀ + b to `out`, for x [R, V], a weight W [U, V] and a bias b [U]."""
        if not self.rounds(weight):
            self.provider(weight).layer(bias, x, weight, out)
        elif self._onednn is not None and x.is_cpu:
            with _Rounding(self._onednn):
                torch.addmm(bias, x, weight.t(), out=out)
        else:
            torch.add(x.bfloat16() @ weight.t().bfloat16(), bias, out=out)

    def stacked(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Compute x @ weight + bias, with autograd if autograd is recording.

        Args:
            bias: [U], or [T, 1, U] for T parallel towers.
            x: [R, V], or [T, R, V] for towers.
            weight: [V, U], or [T, V, U] for towers.
        """
        plain = not self.rounds(weight) and self.provider(weight) is PROVIDERS[TORCH]
        if plain:
            return (torch.baddbmm if x.ndim > 2 else torch.addmm)(bias, x, weight)
        if torch.is_grad_enabled():
            return _Product.apply(self, x, weight) + bias  # type: ignore[no-any-return, no-untyped-call]
        out = torch.empty((*x.shape[:-1], weight.shape[-1]), dtype=x.dtype, device=x.device)
        self.product(x, weight, out, weight)
        return out.add_(bias)

    def product(self, a: Tensor, b: Tensor, out: Tensor, weight: Tensor) -> None:
        """Write the product of two matrices, or of T pairs, to `out`, with the provider and precision for `weight`."""
        self.multiply_for(weight)(a, b, out=out)

    def multiply_for(self, weight: Tensor) -> Multiply:
        """Return the matmul function for a weight or a stack of weights; by default this is `torch.matmul`."""
        if not self.rounds(weight):
            return self.provider(weight).multiply
        return self._by_rounding_onednn if self._onednn is not None and weight.is_cpu else _by_rounding

    def _by_rounding_onednn(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        with _Rounding(self._onednn):
            torch.matmul(a, b, out=out)

    def rounds(self, weight: Tensor) -> bool:
        """Return True if matmul inputs are rounded for this weight or stack of weights."""
        least = self._settings.rounded_from
        return least > 0 and min(weight.shape[-2:]) >= least

    def provider(self, weight: Tensor) -> Provider:
        """Return the provider of float32 matmuls for a weight or a stack of weights."""
        name, (inputs, outputs) = self._settings.provider, weight.shape[-2:]
        if name == TORCH or min(inputs, outputs) < FROM_UNITS or not weight.is_cpu or weight.dtype is not torch.float32:
            return PROVIDERS[TORCH]
        if name == "auto":
            name = fastest(min(self._settings.rows, _MOST_ROWS), inputs, outputs)
        return PROVIDERS[name]


class _Product(torch.autograd.Function):
    """Matmul with a weight, as an autograd function."""

    @staticmethod
    def forward(ctx: Any, products: HiddenProducts, x: Tensor, weight: Tensor) -> Tensor:
        ctx.products = products
        ctx.save_for_backward(x, weight)
        out = torch.empty((*x.shape[:-1], weight.shape[-1]), dtype=x.dtype, device=x.device)
        products.product(x, weight, out, weight)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight), products = gradients, ctx.saved_tensors, ctx.products
        of_x = of_weight = None
        if ctx.needs_input_grad[1]:
            of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            products.product(gradient, weight.mT, of_x, weight)
        if ctx.needs_input_grad[2]:
            of_weight = torch.empty_like(weight)
            products.product(x.mT, gradient, of_weight, weight)
        return None, of_x, of_weight


class HiddenLinear(nn.Linear):
    """A linear layer that multiplies with `HiddenProducts`, forward and backward, and adds its bias in float32.

    Args:
        inputs: V, the width of the input.
        outputs: U, the width of the output.
        products: computes the matmuls.
    """

    def __init__(self, inputs: int, outputs: int, products: HiddenProducts) -> None:
        super().__init__(inputs, outputs)
        self._products = products

    def forward(self, x: Tensor) -> Tensor:
        """Map x [R, V] to [R, U], both float32."""
        return self._products.stacked(self.bias, x, self.weight.t())


def encoding_in(bf16: bool, device: torch.device) -> Any:
    """Return a context in which torch's convolutions and linear layers compute in bfloat16 if `bf16`."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


class _Rounding:
    """A context in which oneDNN rounds matmul inputs. It is a class because a generator would take twice as long.

    Args:
        setting: `torch.backends.mkldnn.matmul`.
    """

    __slots__ = ("_before", "_setting")

    def __init__(self, setting: Any) -> None:
        self._setting = setting

    def __enter__(self) -> None:
        self._before = self._setting.fp32_precision
        self._setting.fp32_precision = "bf16"

    def __exit__(self, *_: object) -> None:
        self._setting.fp32_precision = self._before


def _onednn_setting() -> Any | None:
    """Return torch's precision setting for oneDNN matmuls; None before torch 2.9, which introduced it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    setting = getattr(torch.backends.mkldnn, "matmul", None)
    return setting if hasattr(setting, "fp32_precision") else None


def _cpu_flags() -> set[str]:
    """Return the names of the CPU's features as reported by torch, or else by the operating system."""
    if hasattr(torch.cpu, "get_capabilities"):
        flags = {name for name, present in torch.cpu.get_capabilities().items() if present is True}
        if flags:
            return flags
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()[2:]}
