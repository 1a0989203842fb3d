"""Manual gradients for an actor and a critic that are multilayer perceptrons.

This code replaces autograd for the network that most agents have (`ActorCritic`). It records no graph, and allocates
its buffers once. Autograd remains the reference: tests compare the two for every combination of actions, heads, losses
and sizes.

Axis letters: R rows, T towers (actor and critic; 1 for an actor alone, or if the critic shares its body), V inputs, U
units, C continuous actions, H head outputs (means, then each branch's logits), S value heads, P columns of
log-probabilities. Head outputs are processed head by head, so their arrays have rows as the last axis.

**Network** (`ManualPerceptrons`). A layer is y = f(z) with z = x·W + b, the heads are h = y₀·A + a and v = y₋₁·B + c.
Given ∂L/∂h and ∂L/∂v of a loss L, the chain rule gives

    ∂L/∂A = y₀ᵀ·∂L/∂h       ∂L/∂a = Σ_R ∂L/∂h       ∂L/∂y₀  = ∂L/∂h·Aᵀ
    ∂L/∂B = y₋₁ᵀ·∂L/∂v      ∂L/∂c = Σ_R ∂L/∂v       ∂L/∂y₋₁ = ∂L/∂v·Bᵀ      (their sum if T = 1 has both)

and from the last layer to the first, with δ = ∂L/∂z = ∂L/∂y ⊙ f′(z),

    ∂L/∂W = xᵀ·δ            ∂L/∂b = Σ_R δ           ∂L/∂x   = δ·Wᵀ.

**Actions** (`ActionLikelihood`). With g = ∂L/∂log π for a column, w = ∂L/∂(entropy), and 1ₐ the one-hot choice,

    Gaussian, d = (a - μ)/σ:    log π = -d²/2 - log σ - log(2π)/2    ∂L/∂μ = g·d/σ    ∂L/∂log σ = Σ_R g·(d² - 1) + w/C
    categorical, p = softmax l: log π = log pₐ                       ∂L/∂l = g·(1ₐ - p) - w·p·(log p + h)/R

where h = -Σ p·log p is a row's entropy. A branch's entropy is the mean over rows, and the Gaussian's is the mean of log
σ + log(2πe)/2 over dimensions.

**Losses** (`ManualPPOUpdate`). The clipped surrogate max(r·k, clip(r)·k), with r =
π / π_old and the cost k = -advantage, has the derivative r·k with respect to log π if the first term is at least as
large as the second, else 0. The squared error (v - return)² has the derivative 2·(v - return) with respect to v. Both
losses are means over rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import e, log, pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.policy.network.layers import SLOPE_OF_INPUT, TIMES_SLOPE, WRITE_ACTIVATION
from headrace.stages.policy.network.products import HiddenProducts
from headrace.stages.trainer.on_policy.rollout import MinibatchArrays

Numbers = NDArray[np.floating[Any]]
"""Arrays with the network's floating-point precision."""

_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)
_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


class ManualPerceptrons:
    """Forward and backward passes of perceptrons on the CPU.

    Args:
        network: the network whose parameters are read and whose gradients are overwritten.
        rows: the usual number of rows in a minibatch.
        use_kernels: whether compiled code may be used if it is installed.

    Attributes:
        heads: [H, R] the actor's head outputs from the last forward pass.
        values: [S, R] the critic's values from the last forward pass; [0, R] without a critic.
        of_heads: [H, R] the loss's gradient with respect to `heads`, which the caller fills in before the backward
            pass.
        of_values: [S, R] the loss's gradient with respect to `values`.
    """

    def __init__(self, network: ActorCritic, rows: int, use_kernels: bool = True) -> None:
        weights = {name: leaf.detach() for name, leaf in network.parameters.items()}
        gradients = network.named_views(network.gradients)
        layers = [_of_layer(f"body.{i}", weights, gradients) for i in range(network.layers)]
        sizes = [weight.shape[2] for weight, *_ in layers]
        kind: type[Any] = _NarrowLayer  # any kind works for all sizes; this chooses the fastest
        if max(sizes) >= FEWEST_OF_TORCH or max(sizes) * rows >= LEAST_OF_TORCH:
            kind = _WideLayer
        elif use_kernels and compiled.compiles(network.activation, sizes, network.values.dtype):
            kind = _CompiledLayer
        self._layers = [kind(network.activation, network.products, *parameters) for parameters in layers]
        self._action = Head(*_of_layer("action", weights, gradients))
        self._value = Head(*_of_layer("value", weights, gradients)) if "value.weight" in weights else None
        self._inputs = torch.empty(0)
        self.heads = self.values = self.of_heads = self.of_values = np.empty((0, 0), self._action.weight.dtype)

    def forward(self, inputs: Tensor) -> None:
        """Compute `heads` and `values` for rows [R, V]."""
        if len(inputs) != self.heads.shape[1]:
            self._make_room(len(inputs))
        self._inputs = inputs
        before = None
        for layer in self._layers:
            layer.forward(inputs, before)
            before = layer
        last = self._layers[-1].outputs
        self._action.forward(last[0], self.heads)
        if self._value is not None:
            self._value.forward(last[-1], self.values)

    def backward(self) -> None:
        """Write the gradients of all parameters, from `of_heads` and `of_values`."""
        last, deltas = self._layers[-1].outputs, self._layers[-1].deltas
        self._action.backward(last[0], self.of_heads)
        np.matmul(self.of_heads.T, self._action.weight.T, out=deltas[0])
        if self._value is not None:
            self._value.backward(last[-1], self.of_values)
            weight = self._value.weight
            if len(deltas) == 1:
                deltas[0] += self.of_values.T @ weight.T
            elif len(self.values) == 1:  # an outer product: BLAS would take three times as long
                np.multiply(self.of_values.T, weight.T, out=deltas[1])
            else:
                np.matmul(self.of_values.T, weight.T, out=deltas[1])
        for i in range(len(self._layers) - 1, -1, -1):
            self._layers[i].backward(self._inputs, self._layers[i - 1] if i else None)

    def _make_room(self, rows: int) -> None:
        for layer in self._layers:
            layer.make_room(rows)
        kind, signals = self._action.weight.dtype, 0 if self._value is None else self._value.weight.shape[1]
        self.heads, self.of_heads = (np.empty((self._action.weight.shape[1], rows), kind) for _ in range(2))
        self.values, self.of_values = (np.empty((signals, rows), kind) for _ in range(2))


def _of_layer(name: str, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> list[Tensor]:
    """Return a layer's weight and bias, and their gradients, given parameters and gradients keyed by name."""
    return [of[f"{name}.{what}"] for of in (weights, gradients) for what in ("weight", "bias")]


class Head:
    """A linear layer on top of a tower; its outputs have rows last.

    Args:
        parameters: the weight [U, H] and the bias [H], and their gradients, which are overwritten.
    """

    def __init__(self, *parameters: Tensor) -> None:
        self.weight, self._bias, self._of_weight, self._of_bias = (parameter.numpy() for parameter in parameters)

    def forward(self, encoding: Numbers, outputs: Numbers | None = None) -> Numbers:
        """Return the outputs [H, R] for an encoding [R, U], in the array `outputs` if one is given."""
        outputs = np.matmul(self.weight.T, encoding.T, out=outputs)
        outputs += self._bias[:, None]
        return outputs

    def backward(self, encoding: Numbers, of_outputs: Numbers) -> None:
        """Write the gradients of the layer's weight and bias."""
        np.matmul(encoding.T, of_outputs.T, out=self._of_weight)
        np.add.reduce(of_outputs, axis=1, out=self._of_bias)


class ActionLikelihood:
    """Computes log-probabilities and entropies of a behaviour's actions, and their gradients.

    Args:
        network: the network with the standard deviations, whose gradient is overwritten.
        actions: the behaviour's actions.
        use_kernels: whether compiled code may be used if it is installed.

    Attributes:
        branches: the positions of each branch among head outputs, which begin with the means.
        log_sigma: [C] the log standard deviations; None without continuous actions.
        of_log_sigma: [C] their gradient.
    """

    def __init__(self, network: ActorCritic, actions: ActionSpec, use_kernels: bool = True) -> None:
        ends = list(accumulate(actions.discrete_branches, initial=actions.continuous_size))
        self.branches = [slice(first, end) for first, end in pairwise(ends)]
        self._continuous = actions.continuous_size
        self.log_sigma = self.of_log_sigma = None
        if "log_sigma" in network.parameters:
            self.log_sigma = network.parameters["log_sigma"].detach().numpy()
            self.of_log_sigma = network.named_views(network.gradients)["log_sigma"].numpy()
        self._deviations = self._inverse_sigma = np.empty(0)
        self._log_ps: list[Numbers] = []
        self._ps: list[Numbers] = []
        self._row_entropies: list[Numbers] = []
        self._chosen: list[NDArray[np.int64]] = []
        self._numbers = np.empty(0, np.int64)
        self._sizes = np.array(actions.discrete_branches, np.int64)
        self.compiled = use_kernels and compiled.scores(actions, network.gradients.dtype)
        """Whether the compiled method `clipped` may be called."""

    def clipped(
        self,
        heads: Numbers,
        rows: MinibatchArrays,
        coefficients: tuple[float, float, float],
        of_heads: Numbers,
        joint: bool,
    ) -> tuple[float, float, Numbers]:
        """Do the work of `ManualPPOUpdate` after the forward pass in compiled code, except for the value loss.

        `coefficients` are clip range, entropy weight and share. Returns the policy loss, the entropy, and the
        log-ratios [P, R].
        """
        columns = 1 if joint else self._continuous + len(self.branches)
        log_ratios = np.empty((columns, heads.shape[1]), np.float32)
        given = heads, rows.continuous, rows.choices, rows.penalties, rows.old_log_probs, rows.advantages
        settings = self._sizes, self.log_sigma, joint, *coefficients
        return *compiled.kernels.surrogate(*given, *settings, of_heads, self.of_log_sigma, log_ratios), log_ratios

    def forward(
        self, heads: Numbers, actions: Numbers, choices: Sequence[NDArray[np.int64]], penalties: Numbers
    ) -> tuple[Numbers, float]:
        """Return the actions' log-probabilities [P, R], and the entropy.

        Args:
            heads: [H, R] head outputs.
            actions: [C, R] continuous actions.
            choices: for each branch, the choices [R].
            penalties: [H - C, R] penalties added to the logits; [0, R] without masks.
        """
        rows = heads.shape[1]
        log_probs = np.empty((self._continuous + len(self.branches), rows), heads.dtype)
        entropy = 0.0
        if self.log_sigma is not None:
            log_sigma = self.log_sigma[:, None]
            self._inverse_sigma = np.exp(-log_sigma)
            self._deviations = (actions - heads[: self._continuous]) * self._inverse_sigma
            columns = log_probs[: self._continuous]
            np.multiply(self._deviations, self._deviations, out=columns)
            columns *= -0.5
            columns -= log_sigma + _HALF_LOG_TWO_PI
            entropy += mean_of(self.log_sigma) + _HALF_LOG_TWO_PI_E
        if not self.branches:
            return log_probs, entropy
        if len(self._numbers) != rows:
            self._numbers = np.arange(rows)
        self._log_ps, self._ps, self._row_entropies, self._chosen = [], [], [], []
        for column, (branch, chosen) in enumerate(zip(self.branches, choices, strict=True), self._continuous):
            logits = heads[branch]
            if len(penalties):
                logits = logits + penalties[branch.start - self._continuous : branch.stop - self._continuous]
            log_p = logits - np.maximum.reduce(logits, axis=0)
            p = np.exp(log_p)
            log_p -= np.log(np.add.reduce(p, axis=0))
            np.exp(log_p, out=p)
            row_entropy = -np.add.reduce(p * log_p, axis=0)
            at = chosen * rows + self._numbers
            log_p.take(at, out=log_probs[column])
            entropy += mean_of(row_entropy)
            self._log_ps.append(log_p)
            self._ps.append(p)
            self._row_entropies.append(row_entropy)
            self._chosen.append(at)
        return log_probs, entropy

    def backward(self, of_log_probs: Numbers, of_entropy: float, of_heads: Numbers) -> None:
        """Write the gradients of head outputs and log σ, given those of the log-probabilities and the entropy.

        Args:
            of_log_probs: [P, R] the log-probabilities' gradients; [1, R] if all columns have the same gradient.
            of_entropy: the gradient of the entropy.
            of_heads: [H, R] the array that receives the head outputs' gradients.
        """
        if self.of_log_sigma is not None:
            mine = of_log_probs[: self._continuous]
            means, deviations = of_heads[: self._continuous], self._deviations
            np.multiply(mine, deviations, out=means)
            of_sigma = means * deviations
            of_sigma -= mine
            np.add.reduce(of_sigma, axis=1, out=self.of_log_sigma)
            self.of_log_sigma += of_entropy / self._continuous
            means *= self._inverse_sigma
        rows = of_heads.shape[1]
        for number, (branch, log_p, p, entropies, at) in enumerate(
            zip(self.branches, self._log_ps, self._ps, self._row_entropies, self._chosen, strict=True)
        ):
            mine = of_log_probs[self._continuous + number if len(of_log_probs) > 1 else 0]
            logits = of_heads[branch]
            np.multiply(p, -mine, out=logits)
            logits.reshape(-1)[at] += mine
            if of_entropy:
                log_p += entropies
                log_p *= p
                log_p *= of_entropy / rows
                logits -= log_p


def mean_of(values: Numbers) -> float:
    """Return the mean, like `values.mean()` but without its checks."""
    return float(np.add.reduce(values, axis=None)) / values.size


# Hidden layers: small ones compiled or in NumPy, large ones in torch.


FEWEST_OF_TORCH = 128
"""Torch computes layers if the widest one has at least this many units; with fewer, calls to torch take longer than
NumPy's."""
LEAST_OF_TORCH = 2**15
"""Torch also computes layers if the widest one has at least this many outputs (units times rows)."""


class _NarrowLayer:
    """One hidden layer of all towers, computed by NumPy, which has less overhead per call than torch.

    Attributes:
        outputs: [T, R, U] y of the last forward pass.
        deltas: [T, R, U] ∂L/∂y, which the backward pass converts to δ in place.
    """

    def __init__(self, activation: str, products: HiddenProducts, *parameters: Tensor) -> None:
        self._weight, self._bias, self._of_weight, self._of_bias = (parameter.numpy() for parameter in parameters)
        self._activate, self._times_slope = WRITE_ACTIVATION[activation], TIMES_SLOPE[activation]
        self._keeps_z, self._tanh = activation in SLOPE_OF_INPUT, activation == "tanh"

    def make_room(self, rows: int) -> None:
        shape, dtype = (len(self._weight), rows, self._weight.shape[2]), torch.from_numpy(self._weight).dtype
        self.y, self.delta = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        self.z = torch.empty(shape, dtype=dtype) if self._keeps_z else self.y
        self.outputs, self.deltas, self._inputs = self.y.numpy(), self.delta.numpy(), self.z.numpy()
        self._ones = np.ones(rows, self._weight.dtype)

    def forward(self, inputs: Tensor, before: _NarrowLayer | None) -> None:
        np.matmul(inputs.numpy() if before is None else before.outputs, self._weight, out=self._inputs)
        self._inputs += self._bias
        if self._tanh:
            np.tanh(self.outputs, out=self.outputs)
        else:  # NumPy would make two to five passes for other activations
            self._activate(self.z, self.y)

    def backward(self, inputs: Tensor, before: _NarrowLayer | None) -> None:
        x = inputs.numpy() if before is None else before.outputs
        if self._tanh:  # f′ = 1 - y²
            np.multiply(self.outputs, self.outputs, out=self.outputs)
            np.subtract(1.0, self.outputs, out=self.outputs)
            self.deltas *= self.outputs
        else:
            self._times_slope(self.delta, self.z)
        np.matmul(x.swapaxes(-1, -2), self.deltas, out=self._of_weight)
        np.matmul(self._ones, self.deltas, out=self._of_bias[:, 0])
        if before is not None:
            np.matmul(self.deltas, self._weight.swapaxes(-1, -2), out=before.deltas)


class _CompiledLayer(_NarrowLayer):
    """A `_NarrowLayer` in compiled code, with one pass over the rows forwards and three backwards."""

    def __init__(self, activation: str, products: HiddenProducts, *parameters: Tensor) -> None:
        super().__init__(activation, products, *parameters)
        self._activation = compiled.ACTIVATIONS[activation]
        self._transposed = np.empty(self._weight[0].size, np.float32)

    def forward(self, inputs: Tensor, before: _NarrowLayer | None) -> None:
        x = inputs.numpy() if before is None else before.outputs
        compiled.kernels.forward(x, self._weight, self._bias, self._inputs, self.outputs, self._activation)

    def backward(self, inputs: Tensor, before: _NarrowLayer | None) -> None:
        x, of_x = (inputs.numpy(), None) if before is None else (before.outputs, before.deltas)
        gradients = self.deltas, self._of_weight, self._of_bias, of_x
        compiled.kernels.backward(x, self._weight, self._inputs, *gradients, self._transposed, self._activation)


class _WideLayer:
    """A `_NarrowLayer` in torch. Torch's matmul is faster and also adds the bias.

    Activation gradients take a single pass.
    """

    def __init__(self, activation: str, products: HiddenProducts, *parameters: Tensor) -> None:
        self._weight, self._bias, self._of_weight, self._of_bias = parameters
        self._multiply = products.multiply_for(self._weight)
        self._activate, self._times_slope = WRITE_ACTIVATION[activation], TIMES_SLOPE[activation]
        self._keeps_z = activation in SLOPE_OF_INPUT

    def make_room(self, rows: int) -> None:
        towers, _, units = self._weight.shape
        self.y, self.delta = (torch.empty((towers, rows, units), dtype=self._weight.dtype) for _ in range(2))
        self.z = torch.empty_like(self.y) if self._keeps_z else self.y
        self.outputs, self.deltas = self.y.numpy(), self.delta.numpy()
        self._ones = torch.ones((towers, 1, rows), dtype=self._weight.dtype)

    def forward(self, inputs: Tensor, before: _WideLayer | None) -> None:
        x = inputs.expand(len(self.y), *inputs.shape) if before is None else before.y
        if self._multiply is torch.matmul:
            torch.baddbmm(self._bias, x, self._weight, out=self.z)
        else:
            self._multiply(x, self._weight, out=self.z)
            self.z.add_(self._bias)
        self._activate(self.z, self.y)

    def backward(self, inputs: Tensor, before: _WideLayer | None) -> None:
        x = inputs.expand(len(self.y), *inputs.shape) if before is None else before.y
        self._times_slope(self.delta, self.z)
        self._multiply(x.transpose(1, 2), self.delta, out=self._of_weight)
        torch.bmm(self._ones, self.delta, out=self._of_bias)
        if before is not None:
            self._multiply(self.delta, self._weight.transpose(1, 2), out=before.delta)
