"""The acting policy for plain designs, a NumPy forward pass over flat weights. Also `make_policy`, for all designs.

For small networks, which most game agents have, the NumPy pass takes a third of torch's time and needs no thread pool.
The trained network is a torch module. Both follow `design.policy_layout`, and a test compares their outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array, Floats, PolicyUpdate
from headrace.stages.activity import preparing
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import (
    NORMALIZER_INVERSE_STD,
    NORMALIZER_MEAN,
    NORMALIZER_REST,
    PolicyDesign,
    check_tensors,
    consecutive_slices,
    policy_layout,
)
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.observations import ObservationLayout, normalize
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall
from headrace.stages.policy.sampling import ActionSampler, check_heads, noise_size

_HALF = np.float32(0.5)


class NumpyPolicy:
    """An `ActingPolicy` for one behaviour id with the weights of a `PolicyUpdate`; its only memory is gSDE's noise.

    The forward pass writes to buffers that grow to the largest number of agents seen; `act` returns new arrays.

    Args:
        design: a plain design.

    Raises:
        StageError: if the design is not plain; `make_policy` takes any design.
    """

    previous_action_size = 0

    def __init__(self, design: PolicyDesign) -> None:
        if not design.plain:
            raise StageError(
                f"{design.spec.behavior_id}: NumpyPolicy supports only perceptrons over vectors, without goals or "
                "memory; use headrace.training.make_policy"
            )
        self._design = design
        self._layout = policy_layout(design)
        self._observations = ObservationLayout(design.spec)
        self._activation = _ACTIVATIONS[design.settings.activation]
        self._sampler = ActionSampler(design)
        self.memory_size = noise_size(design, self._layout)
        self._normalizes = any(name == NORMALIZER_MEAN for name, _ in self._layout)
        self._exact = self._normalizes and self._observations.exact
        self._weights: list[Floats] = []
        self._vectors = np.empty(0, np.float32)
        """The network's one-dimensional tensors, concatenated: the normaliser's mean and 1/std, the mean's rounding
        error (for float64), and each layer's bias."""
        self._own: list[Floats] = []
        """Views into `_vectors`, one per tensor."""
        self._widths = [
            self._observations.vector_size,
            *(shape[1] for name, shape in self._layout if name.endswith(".weight")),
        ]
        inputs = self._widths[:1] * (2 * self._normalizes + self._exact)
        self._ends = list(accumulate([*inputs, *self._widths[1:-1]]))
        """The columns of `_vectors` at which its parts end, except the last one's."""
        self._buffers: list[Floats] = []
        self._views: list[Floats] = []
        self._scratch: list[Floats] = []
        self.version = -1
        """Version of the loaded weights; -1 before the first call to `load`."""

    def load(self, update: PolicyUpdate) -> None:
        """See `ActingPolicy.load`."""
        about = f"{update.behavior_id}: policy version {update.version} does not fit this network"
        check_tensors(about, update.layout, self._layout)
        tensors = {name: tensor.copy() for name, tensor in update.tensors().items()}
        layers = [name.removesuffix(".weight") for name, _ in self._layout if name.endswith(".weight")]
        self._weights = [tensors[f"{layer}.weight"] for layer in layers]
        vectors = [tensors[name] for name in (NORMALIZER_MEAN, NORMALIZER_INVERSE_STD) if self._normalizes]
        if self._exact:  # policies trained on float32 vectors have no rounding error
            vectors.append(tensors.get(NORMALIZER_REST, np.zeros_like(vectors[0])))
        vectors += [tensors[f"{layer}.bias"] for layer in layers]
        self._vectors = np.concatenate(vectors)
        self._own = np.split(self._vectors, self._ends)
        self._sampler.adopt(update, tensors.get("log_sigma"))
        self.version = update.version

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`."""
        heads = self.heads(observations)
        recall = recall or nothing_recalled(self, self._design.spec.actions, len(heads))
        return self._sampler.decide(heads, self._views[-2], masks, random, deterministic, recall)

    def joins(self, other: ActingPolicy, deterministic: bool) -> bool:
        """Return True if `act_together` can decide for both policies.

        They must share a design, and neither may explore by itself or sample uniformly.
        """
        if not isinstance(other, NumpyPolicy) or self._design != other._design or self._sampler.noise is not None:
            return False
        if self._design.exploration is not None:  # it depends on each policy's step
            return deterministic
        return deterministic or not (self._sampler.uniform or other._sampler.uniform)

    def heads(self, observations: tuple[Array, ...]) -> Floats:
        """Return the action head outputs [d, H] (see `PolicyDesign.head_size`), valid until the next call.

        Raises:
            NotFiniteError: if a head output is NaN or infinite.
            StageError: if no policy is loaded yet.
        """
        outputs = self._forward((self,), (len(observations[0]),), observations)
        noise = self._sampler.noise
        return outputs if noise is None else noise.heads(outputs, self._views[-2])

    def _forward(
        self, policies: Sequence[NumpyPolicy], counts: Sequence[int], observations: tuple[Array, ...]
    ) -> Floats:
        """Compute the head outputs for several policies' rows, ordered by policy, using this policy's buffers."""
        for policy in policies:
            if not policy._weights:
                raise StageError(f"{self._design.spec.behavior_id}: no policy has been loaded")
        d = len(observations[0])
        if not self._views or len(self._views[0]) != d:
            if not self._buffers or len(self._buffers[0]) < d:
                self._buffers = [np.empty((d, width), np.float32) for width in self._widths]
            self._views = [buffer[:d] for buffer in self._buffers]
            self._scratch = [np.empty_like(view) for view in self._views[1:-1]]
        x, layers = self._views[0], len(self._weights)
        parts: Sequence[slice] = _ALL
        vectors = self._own
        if len(policies) > 1:
            parts = consecutive_slices(counts)
            vectors = np.split(np.repeat([policy._vectors for policy in policies], counts, axis=0), self._ends, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._exact:
                seen = self._observations.encode(observations).vectors
                normalize(seen, vectors[0] + vectors[2].astype(np.float64), vectors[1], x)
            else:
                self._observations.encode(observations, x)
                if self._normalizes:
                    normalize(x, vectors[0], vectors[1], x)
            for layer, bias in enumerate(vectors[-layers:]):
                out = self._views[layer + 1]
                for policy, rows in zip(policies, parts, strict=True):
                    np.matmul(x[rows], policy._weights[layer], out=out[rows])
                out += bias
                if layer < layers - 1:
                    self._activation(out, self._scratch[layer])
                x = out
        if not np.isfinite(x).all():
            for policy, rows in zip(policies, parts, strict=True):
                observed = tuple(o[rows] for o in observations)
                check_heads(self._design.spec.behavior_id, policy.version, x[rows], observed)
        return x


def act_together(
    parts: Sequence[tuple[NumpyPolicy, NDArray[np.intp]]],
    observations: tuple[Array, ...],
    masks: NDArray[np.bool_] | None,
    random: np.random.Generator,
    deterministic: bool = False,
) -> Decision:
    """Decide for the rows of several policies in one pass, in which only the matmuls are separate for each policy.

    With few rows, the cost depends on the number of operations rather than their size. The head outputs are
    bit-identical to those that each policy would compute separately. All actions are sampled together.

    Args:
        parts: each policy with its rows. All policies share a design (see `NumpyPolicy.joins`), and together they cover
            all rows.
        observations: the observations for all rows. This argument and the following ones are as in `ActingPolicy.act`.
        masks: for all rows.
        random: the only source of randomness.
        deterministic: whether to take the most likely actions instead of samples.
    """
    first, policies, counts = parts[0][0], [policy for policy, _ in parts], [len(rows) for _, rows in parts]
    sampler, order = first._sampler, np.concatenate([rows for _, rows in parts])
    forward = first._forward(policies, counts, tuple([o[order] for o in observations]))
    heads = np.empty_like(forward)
    heads[order] = forward
    log_sigma = np.empty((len(order), len(sampler.log_sigma)), np.float32)
    if log_sigma.size:
        log_sigma[order] = np.repeat([policy._sampler.log_sigma for policy in policies], counts, axis=0)
    return Decision(*sampler.sample(heads, masks, random, deterministic, log_sigma))


def _swish(x: Floats, scratch: Floats) -> None:
    # x·sigmoid(x) = h·(1 + tanh h) with h = x/2; unlike exp(-x), this can't overflow.
    x *= _HALF
    np.tanh(x, out=scratch)
    scratch += np.float32(1.0)
    x *= scratch


def _elu(x: Floats, scratch: Floats) -> None:
    # For x ≤ 0, exp(x) - 1 ≥ x; for x > 0, the scratch array holds 0. The ELU is therefore the maximum of x and the
    # scratch array.
    np.minimum(x, np.float32(0.0), out=scratch)
    np.expm1(scratch, out=scratch)
    np.maximum(x, scratch, out=x)


def _leaky_relu(x: Floats, scratch: Floats) -> None:
    np.multiply(x, np.float32(0.01), out=scratch)
    np.maximum(x, scratch, out=x)


_ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Coefficients of Abramowitz and Stegun (1964), 7.1.26, which approximates erfc(z) for z ≥ 0 to within 1.5e-7."""


def _gelu(x: Floats, scratch: Floats) -> None:
    # x·Φ(x), with Φ(x) = erfc(-x/√2)/2: the series gives Φ(x) for x ≤ 0; for x > 0, Φ(x) is 1 minus the series for -x.
    z = np.abs(x) * np.float32(sqrt(0.5))
    t = 1.0 / (1.0 + np.float32(0.3275911) * z)
    scratch[...] = np.float32(_ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        scratch *= t
        scratch += np.float32(coefficient)
    scratch *= t
    scratch *= np.exp(-z * z)
    scratch *= _HALF
    np.subtract(np.float32(1.0), scratch, out=scratch, where=x > 0)
    x *= scratch


_ALL = [slice(None)]

_ACTIVATIONS: dict[str, Callable[[Floats, Floats], object]] = {
    "swish": _swish,
    "tanh": lambda x, scratch: np.tanh(x, out=x),
    "relu": lambda x, scratch: np.maximum(x, np.float32(0.0), out=x),
    "elu": _elu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
}
"""Functions that modify their first argument in place and use the second one, of the same shape, as scratch space."""


TORCH_POLICY = "headrace.stages.policy.network.torch_policy:TorchPolicy"
"""Import path of the policy class for designs that are not plain, so only those designs import torch."""


@preparing()
def make_policy(design: PolicyDesign, device: str = "cpu") -> ActingPolicy:
    """Make an acting policy; it has no weights until its first update.

    Args:
        design: the policy's design.
        device: the torch device to compute on.

    Raises:
        StageError: if an observation or a network does not fit the design.
    """
    if design.plain and device == "cpu":
        return NumpyPolicy(design)
    policy: ActingPolicy = load_attribute(TORCH_POLICY, None, "policy")(design, device)
    return policy
