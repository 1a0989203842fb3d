"""What networks of all kinds are made of: layers, hidden products in bfloat16, the distributions that heads stand for.

Layers have ML-Agents' initial weights. Of a product in bfloat16 weights, gradients and results stay float32, its
factors are rounded. bfloat16 has float32's range with 8 of its 24 bits, so nothing needs to be scaled. CPUs with AMX or
AVX512-bf16 multiply it several times as fast and add up in float32. Small products, first layers over observations and
heads stay float32: there rounding costs accuracy, and nothing is gained.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import e, log, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS

WIDE = 128
"""Rows and columns of a weight from which its products are worth rounding."""
_AMX = "AMX"
_CPU_FLAGS = {"amx_bf16": _AMX, "avx512_bf16": "AVX512-bf16", "bf16": "the ARM bf16 extension"}
"""What CPUs that multiply bfloat16 fast call it (in Linux, and the first two in torch), the fastest first."""


def fast_bf16(device: str) -> str | None:
    """What makes products in bfloat16 fast on a torch device, in words; None where they are slower than float32's."""
    if device.startswith("cuda"):
        # From Ampere on; older ones have no unit for it, but torch calls it supported.
        return "tensor cores" if torch.cuda.get_device_capability(device)[0] >= 8 else None
    if device != "cpu":
        return None
    found = _cpu_flags()
    return next((words for flag, words in _CPU_FLAGS.items() if flag in found), None)


def is_wide(weight: Tensor) -> bool:
    """True if products with this weight [out, in], or a stack of such, are worth rounding."""
    return min(weight.shape[-2:]) >= WIDE


class HiddenLinear(nn.Linear):
    """A linear layer whose product is computed in bfloat16, forwards and backwards; its bias is added in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, in] to [B, out], both float32."""
        product = nn.functional.linear(x.bfloat16(), self.weight.bfloat16())
        return product.float() + self.bias


class HiddenProducts:
    """Products of a perceptron without autograd, in float32 or with factors that are rounded to bfloat16.

    On a CPU with AMX oneDNN rounds by itself, and is told to for the time of a product: the process' other products are
    none of ours. Elsewhere factors are rounded here: without AMX oneDNN takes the request as a leave, and keeps float32
    where it likes.

    Args:
        bf16: whether wide products are rounded.
    """

    def __init__(self, bf16: bool) -> None:
        self._bf16 = bf16
        self._onednn = _onednn_setting() if bf16 and fast_bf16("cpu") == _AMX else None

    def layer(self, bias: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write x [B, in] @ weight [out, in] transposed + bias into `out`."""
        if not self.rounds(weight):
            torch.addmm(bias, x, weight.t(), out=out)
        elif self._onednn is not None and x.is_cpu:
            with _Rounding(self._onednn):
                torch.addmm(bias, x, weight.t(), out=out)
        else:
            torch.add(x.bfloat16() @ weight.t().bfloat16(), bias, out=out)

    def stacked(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """A layer x @ weight + bias, with a graph if one is recorded.

        Args:
            bias: [out], or [T, 1, out] of T towers side by side.
            x: [B, in], or [T, B, in]
            weight: [in, out], or [T, in, out]
        """
        if not self.rounds(weight):
            return torch.baddbmm(bias, x, weight) if x.ndim > 2 else torch.addmm(bias, x, weight)
        if torch.is_grad_enabled():
            return (x.bfloat16() @ weight.bfloat16()).float() + bias
        out = torch.empty((*x.shape[:-1], weight.shape[-1]), dtype=x.dtype, device=x.device)
        self.product(x, weight, out)
        return out.add_(bias)

    def product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Write the product of two matrices, or of T side by side, into `out`; their factors are rounded."""
        if self._onednn is not None and a.is_cpu:
            with _Rounding(self._onednn):
                torch.matmul(a, b, out=out)
        else:
            out.copy_(a.bfloat16() @ b.bfloat16())

    def below(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The gradient of a layer's input: gradient [B, out] @ weight [out, in]."""
        if not self.rounds(weight):
            return gradient @ weight
        if self._onednn is not None and gradient.is_cpu:
            with _Rounding(self._onednn):
                return gradient @ weight
        return (gradient.bfloat16() @ weight.bfloat16()).float()

    def add_gradient(self, total: Tensor, gradient: Tensor, x: Tensor) -> None:
        """Add the gradient of a weight, gradient [B, out] transposed @ x [B, in], to `total`."""
        if not self.rounds(total):
            total.addmm_(gradient.t(), x)
        elif self._onednn is not None and x.is_cpu:
            with _Rounding(self._onednn):
                total.addmm_(gradient.t(), x)
        else:
            total.add_(gradient.t().bfloat16() @ x.bfloat16())

    def rounds(self, weight: Tensor) -> bool:
        """Whether factors of products with a weight, or of a stack of such, are rounded."""
        return self._bf16 and is_wide(weight)


def encoding_in(bf16: bool, device: torch.device) -> Any:
    """A context in which convolutions and linear layers of torch modules are computed in bfloat16, if asked for."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


class _Rounding:
    """A context in which oneDNN rounds the factors of products; of a function with `yield` it would take twice as long.

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
    """Torch's setting of the precision of oneDNN's products; None in versions of torch before 2.9, without one."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    setting = getattr(torch.backends.mkldnn, "matmul", None)
    return setting if hasattr(setting, "fp32_precision") else None


def _cpu_flags() -> set[str]:
    """The CPU's features by name: those that torch knows, or else the system."""
    if hasattr(torch.cpu, "get_capabilities"):
        known = {name for name, there in torch.cpu.get_capabilities().items() if there is True}
        if known:
            return known
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()[2:]}


ACTIVATIONS: dict[str, type[nn.Module]] = {"swish": nn.SiLU, "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A layer with ML-Agents' initial weights: normal with std gain / sqrt(fan_in), biases 0."""
    return _normal(nn.Linear(inputs, outputs), gain / sqrt(max(1, inputs)))


def hidden_linear(inputs: int, outputs: int, bf16: bool) -> nn.Linear:
    """A hidden layer with the weights of `linear`; with `bf16` a wide one multiplies in bfloat16."""
    if not bf16 or min(inputs, outputs) < WIDE:
        return linear(inputs, outputs)
    return _normal(HiddenLinear(inputs, outputs), 1.0 / sqrt(inputs))


def attention_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer of an attention block: normal with std sqrt(0.125 / outputs) for inputs of any width, biases 0.

    Small enough for a transformer to learn without warm-up: Huang et al. (2020), "Improving Transformer Optimization
    Through Better Initialization".
    """
    return _normal(nn.Linear(inputs, outputs), sqrt(0.125 / outputs))


def write_tanh(z: Tensor, out: Tensor) -> None:
    """Write the hyperbolic tangent of z, without a graph; `out` may be z.

    On a CPU it is NumPy's, which is fast on all of them: torch's takes seven times as long on AMD's.
    """
    if z.is_cpu:
        np.tanh(z.numpy(), out=out.numpy())
    else:
        torch.tanh(z, out=out)


_ATEN: Any = torch.ops.aten

WRITE_ACTIVATION: dict[str, Callable[[Tensor, Tensor], object]] = {
    "relu": lambda z, out: torch.clamp_min(z, 0, out=out),
    "tanh": write_tanh,
    "elu": lambda z, out: _ATEN.elu.out(z, out=out),
    "swish": lambda z, out: _ATEN.silu.out(z, out=out),
}
"""Write an activation of z, without a graph; `out` may be z where the slope is not of the input."""
TIMES_SLOPE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "relu": lambda gradient, kept: _ATEN.threshold_backward.grad_input(gradient, kept, 0, grad_input=gradient),
    "tanh": lambda gradient, kept: _ATEN.tanh_backward.grad_input(gradient, kept, grad_input=gradient),
    "elu": lambda gradient, kept: _ATEN.elu_backward.grad_input(
        gradient, 1.0, 1.0, 1.0, True, kept, grad_input=gradient
    ),
    "swish": lambda gradient, kept: _ATEN.silu_backward.grad_input(gradient, kept, grad_input=gradient),
}
"""Multiply a gradient in place by the slope of the activation, at its output or input, by autograd's operators."""
SLOPE_OF_INPUT = frozenset({"swish"})
"""Activations whose slope is found at their input."""


def layer_norm(x: Tensor) -> Tensor:
    """Zero mean and unit variance over the last axis, without learned parameters."""
    return nn.functional.layer_norm(x, x.shape[-1:])


def _normal(layer: nn.Linear, std: float) -> nn.Linear:
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


# Log-probabilities and entropies of actions, as pure functions. Written out instead of using `torch.distributions`: at
# game-agent sizes the dispatch of its checks and broadcasts costs more than the arithmetic. What actors sample, and by
# which formula, is in `stages/policy/sampling.py`.

_LOG_TWO = log(2.0)
_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)
_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


def gaussian_log_probs(mu: Tensor, log_sigma: Tensor, actions: Tensor) -> Tensor:
    """Per dimension log N(action; mu, exp(log_sigma)): [B, C] of mu [B, C], log_sigma [C], actions [B, C]."""
    deviation = (actions - mu) * torch.exp(-log_sigma)
    return torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, deviation, deviation, value=-0.5)


def gaussian_entropy(log_sigma: Tensor) -> Tensor:
    """Entropy in nats, the mean over dimensions (as ML-Agents weighs it): a scalar of log_sigma [C]."""
    return log_sigma.mean() + _HALF_LOG_TWO_PI_E


def squashed_sample(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tanh(u) with u = μ + σ·noise, so that gradients flow into μ and σ; σ is clamped as actors clamp it.

    Haarnoja et al. (2018), "Soft Actor-Critic", appendix C, here per dimension:
    log π(tanh u) = log N(u; μ, σ) - log(1 - tanh² u).

    Args:
        mu: [B, C] means of u.
        log_sigma: [B, C] log of its standard deviations, not clamped yet.
        noise: [B, C] standard normal.

    Returns:
        [B, C] actions in [-1, 1], and [B, C] their log-probabilities, finite where an action is rounded to ±1.
    """
    log_sigma = log_sigma.clamp(*LOG_SIGMA_LIMITS)
    u = torch.addcmul(mu, log_sigma.exp(), noise)
    log_probs = torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, noise, noise, value=-0.5) - log_tanh_slope(u)
    return torch.tanh(u), log_probs


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh² u) of any shape: the log of tanh's derivative, exact also where tanh u is ±1 in float32.

    1 - tanh² u = 4 / (e^u + e^-u)², so its log is 2·(log 2 - |u| - log(1 + e^(-2|u|))).
    """
    size = u.abs()
    return 2.0 * (_LOG_TWO - size - torch.nn.functional.softplus(-2.0 * size))


def categorical_log_probs(logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each choice, and the entropy of one branch.

    Args:
        logits: [B, choices], with `design.MASK_PENALTY` added where a choice is forbidden.
        choices: [B, 1] index of the choice, int64.

    Returns:
        [B, 1] log-probabilities, and the entropy in nats, the mean over rows: a scalar.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    entropy = (log_probs.exp() * log_probs).sum() / -len(logits)
    return log_probs.gather(1, choices), entropy
