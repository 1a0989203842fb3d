"""Building blocks for all networks: layers with ML-Agents' initial weights, activations, distributions, inputs.

`products` decides which library computes the layers' matmuls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import e, log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.queues.messages import Array
from headrace.stages.policy.design import FROM_UNITS, TORCHS_OWN, ProductSettings
from headrace.stages.policy.network.products import HiddenLinear, HiddenProducts
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
}
"""Activation modules keyed by name, with torch's default parameters."""
_LEAK = 0.01


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """Make a layer with ML-Agents' initial weights: normal with std gain / sqrt(fan_in), biases 0."""
    return _normal(nn.Linear(inputs, outputs), gain / sqrt(max(1, inputs)))


def hidden_linear(inputs: int, outputs: int, settings: ProductSettings, gain: float = 1.0) -> nn.Linear:
    """Make a hidden layer with initial weights as in `linear`; a wide layer computes matmuls as configured."""
    if min(inputs, outputs) < FROM_UNITS or settings == TORCHS_OWN:
        return linear(inputs, outputs, gain)
    return _normal(HiddenLinear(inputs, outputs, HiddenProducts(settings)), gain / sqrt(inputs))


HIDDEN_GAIN, ACTION_GAIN, VALUE_GAIN = sqrt(2.0), 0.01, 1.0
"""Gains for orthogonal weights, as in Stable-Baselines3's `ActorCriticPolicy`."""


def draw_weights(module: nn.Module, how: str, gain: float = HIDDEN_GAIN) -> None:
    """Draw new weights for linear layers and convolutions, following `initial_weights`; `default` keeps the old ones.

    `torch` draws as torch does; `orthogonal` draws orthogonal matrices multiplied by the gain, with biases 0: Saxe,
    McClelland and Ganguli (2014), "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks".
    """
    for layer in module.modules() if how != "default" else ():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            if how == "torch":
                layer.reset_parameters()
                continue
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def attention_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a layer for an attention block: normal with std sqrt(0.125 / outputs) for inputs of any width, biases 0.

    These weights are small enough for a transformer to learn without warm-up: Huang et al. (2020), "Improving
    Transformer Optimization Through Better Initialization".
    """
    return _normal(nn.Linear(inputs, outputs), sqrt(0.125 / outputs))


def write_tanh(z: Tensor, out: Tensor) -> None:
    """Write the hyperbolic tangent of z to `out`, without a graph; `out` may be z.

    On a CPU, NumPy does the computation, which is fast on all CPUs; torch's tanh takes seven times as long on AMD CPUs.
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
    "gelu": lambda z, out: _ATEN.gelu.out(z, out=out),
    "leaky_relu": lambda z, out: _ATEN.leaky_relu.out(z, _LEAK, out=out),
}
"""Maps the name of an activation f to a function that writes f(z) to `out`, which may be z if f is not in
`SLOPE_OF_INPUT`."""
TIMES_SLOPE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "relu": lambda gradient, kept: _ATEN.threshold_backward.grad_input(gradient, kept, 0, grad_input=gradient),
    "tanh": lambda gradient, kept: _ATEN.tanh_backward.grad_input(gradient, kept, grad_input=gradient),
    "elu": lambda gradient, kept: _ATEN.elu_backward.grad_input(
        gradient, 1.0, 1.0, 1.0, True, kept, grad_input=gradient
    ),
    "swish": lambda gradient, kept: _ATEN.silu_backward.grad_input(gradient, kept, grad_input=gradient),
    "gelu": lambda gradient, kept: _ATEN.gelu_backward.grad_input(gradient, kept, grad_input=gradient),
    "leaky_relu": lambda gradient, kept: _ATEN.leaky_relu_backward.grad_input(
        gradient, kept, _LEAK, True, grad_input=gradient
    ),
}
"""Maps the name of an activation f to a function that multiplies a gradient by f' in place, given f's output or
input."""
SLOPE_OF_INPUT = frozenset({"swish", "gelu"})
"""Activations for which `TIMES_SLOPE` takes f's input; for all others it takes f's output."""


def layer_norm(x: Tensor) -> Tensor:
    """Normalise to zero mean and unit variance over the last axis, without learned parameters."""
    return nn.functional.layer_norm(x, x.shape[-1:])


def _normal(layer: nn.Linear, std: float) -> nn.Linear:
    if not layer.weight.is_meta:  # for which torch would import hundreds of modules
        nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


# Log-probabilities and entropies of actions, as pure functions, without `torch.distributions`. In small networks,
# dispatching its checks and broadcasts costs more than the arithmetic. `stages/policy/sampling.py` has the formulas
# that actors sample with.

_LOG_TWO = log(2.0)
_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)
_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


def gaussian_log_probs(mu: Tensor, log_sigma: Tensor, actions: Tensor) -> Tensor:
    """Return log N(action; mu, exp(log_sigma)) [B, C], from mu [B, C], log_sigma [C] or [B, C], and actions [B, C]."""
    deviation = (actions - mu) * torch.exp(-log_sigma)
    return torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, deviation, deviation, value=-0.5)


def gaussian_entropy(log_sigma: Tensor) -> Tensor:
    """Return the entropy in nats, a scalar averaged over dimensions as in ML-Agents, for log_sigma [C] or [B, C]."""
    return log_sigma.mean() + _HALF_LOG_TWO_PI_E


def split_gaussians(heads: Tensor, log_sigma: Tensor | None, continuous: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return means [B, C], log σ and logits. log σ is `log_sigma` [C] if given, otherwise [B, C] from the heads."""
    logits = heads[:, continuous:]
    if log_sigma is None:
        log_sigma, logits = logits[:, :continuous], logits[:, continuous:]
    return heads[:, :continuous], log_sigma, logits


def gaussian_scores(
    heads: Tensor, log_sigma: Tensor | None, actions: Tensor, squashed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the continuous actions' log-probabilities [B, C], their entropy (see `gaussian_entropy`), and the logits.

    Args:
        heads: [B, H] the actor's head outputs.
        log_sigma: [C] shared by all states; None if the heads contain log σ, after the means.
        actions: [B, C] in the form that policies draw.
        squashed: whether actions are the tanh of a Gaussian; their entropy has no closed form and is estimated.
    """
    mu, log_sigma, logits = split_gaussians(heads, log_sigma, actions.shape[1])
    if not squashed:
        return gaussian_log_probs(mu, log_sigma, actions), gaussian_entropy(log_sigma), logits
    edge = 1.0 - torch.finfo(actions.dtype).eps
    u = torch.atanh(actions.clamp(-edge, edge))
    log_probs = gaussian_log_probs(mu, log_sigma.clamp(*LOG_SIGMA_LIMITS), u) - log_tanh_slope(u)
    return log_probs, -log_probs.mean(), logits


def squashed_sample(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tanh(u) with u = μ + σ·noise, so gradients flow into μ and σ; σ is clamped as actors clamp it.

    Haarnoja et al. (2018), "Soft Actor-Critic", appendix C, here per dimension: log π(tanh u) = log N(u; μ, σ) - log(1
    - tanh² u).

    Args:
        mu: [B, C] means of u.
        log_sigma: [B, C] log standard deviations of u, not clamped yet.
        noise: [B, C] standard normal.

    Returns:
        Actions [B, C] in [-1, 1] and their log-probabilities [B, C], which are finite even for actions rounded to ±1.
    """
    log_sigma = log_sigma.clamp(*LOG_SIGMA_LIMITS)
    u = torch.addcmul(mu, log_sigma.exp(), noise)
    log_probs = torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, noise, noise, value=-0.5) - log_tanh_slope(u)
    return torch.tanh(u), log_probs


def log_tanh_slope(u: Tensor) -> Tensor:
    """Return log(1 - tanh² u), the log of tanh's derivative, for any shape; exact even if tanh u is ±1 in float32.

    1 - tanh² u = 4 / (e^u + e^-u)², so its log is 2·(log 2 - |u| - log(1 + e^(-2|u|))).
    """
    size = u.abs()
    return 2.0 * (_LOG_TWO - size - torch.nn.functional.softplus(-2.0 * size))


def categorical_log_probs(logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Return each choice's log-probability, and the branch's entropy.

    Args:
        logits: [B, choices], with `design.MASK_PENALTY` added for forbidden choices.
        choices: [B, 1] index of the choice, int64.

    Returns:
        Log-probabilities [B, 1], and the entropy in nats, averaged over rows: a scalar.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    entropy = (log_probs.exp() * log_probs).sum() / -len(logits)
    return log_probs.gather(1, choices), entropy


# Network inputs, and the transfer of tensors to a device and back. Transfers to a GPU go through pinned memory, in
# parallel with the GPU's work; results return in one transfer. On a CPU, nothing is copied: tensors are passed through
# unchanged.


def to_device(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Copy a host tensor to a device; return the tensor itself if the device is the CPU.

    The copy to a GPU runs in parallel with the GPU's queued work; the caller may change the tensor immediately.
    """
    where = torch.device(device)
    if where.type != "cuda" or not tensor.numel():
        return tensor.to(where)
    return _send(tensor.pin_memory(), where)


def gathered(others: tuple[Tensor, ...], rows: Tensor, device: str | torch.device) -> tuple[Tensor, ...]:
    """Copy the given rows of images and sets on the host to a device, as in `to_device`; dtypes do not change."""
    where, copies = torch.device(device), list[Tensor]()
    for tensor in others:
        channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        if where.type == "cuda" and tensor.numel():
            # Gather directly into pinned memory, because images are too large to copy twice.
            pinned = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
            copies.append(_send(torch.index_select(tensor, 0, rows, out=pinned), where))
        elif channels_last and not tensor.is_contiguous():
            # Images with channels innermost in memory keep that memory format.
            copies.append(tensor.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2).to(where))
        else:
            copies.append(tensor.index_select(0, rows).to(where))
    return tuple(copies)


# Copies do not wait for computations on a GPU, but computations wait for their copies.
_copy_stream = cache(torch.cuda.Stream)
"""Returns this process's stream for copies to a GPU."""


def _send(pinned: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from pinned memory to a GPU; that memory stays allocated until the copy is complete."""
    stream, present = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copy = pinned.to(device, non_blocking=True)
    present.wait_stream(stream)
    # The tensor was allocated for the copy stream; without this call, the next copy could reuse its memory too early.
    copy.record_stream(present)
    return copy


def host_copies(views: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy tensors to the host; views into one vector need only one transfer from a GPU, which copies all of it."""
    copies, here = dict[str, NDArray[Any]](), dict[int, Tensor]()
    for name, view in views.items():
        tensor, storage = view.detach(), view.untyped_storage()
        if not tensor.is_cpu:
            if storage.data_ptr() not in here:
                whole = tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
                pinned = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=whole.is_cuda)
                here[storage.data_ptr()] = pinned.copy_(whole)
            tensor = here[storage.data_ptr()].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copies[name] = np.array(tensor.numpy(), order="C")
    return copies


class Inputs(NamedTuple):
    """A network's inputs for B rows; with memory, B / L sequences of L rows, concatenated and padded at the end."""

    vectors: Tensor
    """[B, V] all vectors, concatenated; normalised if the trainer normalises observations."""
    others: tuple[Tensor, ...] = ()
    """One tensor [B, *shape] per image and set, in spec order, each in its own dtype."""
    previous_actions: Tensor | None = None
    """[B, P] each row's previous action; None without memory. See `protocol.Recall`."""
    memories: Tensor | None = None
    """[B / L, m] the memory before each sequence's first row; None without memory, or for zeros."""
    sequence_length: int = 1
    """L, the number of rows per sequence."""
    vectors_rest: Tensor | None = None
    """[B, V] the float32 rounding error of float64 vectors that are not normalised; None for float32 vectors."""

    @classmethod
    def from_encoded(cls, encoded: EncodedObservations, device: str | torch.device = "cpu") -> Inputs:
        """Make inputs from encoded observations, without memory; on the CPU they may share the arrays' memory."""
        # Arrays from another process are read-only, which torch tensors can't be.
        writable = [torch.from_numpy(np.require(other, requirements=("C", "W"))) for other in encoded.others]
        others = [to_device(other, device) for other in writable]
        vectors: Array = encoded.vectors.astype(np.float32, copy=False)
        inputs = cls(to_device(torch.from_numpy(vectors), device), tuple(others))
        if vectors is encoded.vectors:
            return inputs
        rest = (encoded.vectors - vectors).astype(np.float32)
        return inputs._replace(vectors_rest=to_device(torch.from_numpy(rest), device))

    def rows(self, index: Tensor | slice) -> Inputs:
        """Return the rows selected by `index`, without memories."""
        rest = None if self.vectors_rest is None else self.vectors_rest[index]
        return Inputs(self.vectors[index], tuple(other[index] for other in self.others), vectors_rest=rest)


def on_host(values: Tensor) -> NDArray[np.float64]:
    """Copy values to a NumPy array, detached from the graph."""
    return values.detach().cpu().double().numpy()
