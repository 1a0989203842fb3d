"""The policy as actors hold it: a forward pass in NumPy over flat weights, with hand-written sampling.

For networks of game-agent size this costs a third of the same pass in torch and needs no thread pool. The
network that is trained is `network.ActorCritic`; both follow `layout`, and a test holds their
log-probabilities together.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi

import numpy as np
from numpy.typing import NDArray

from config import NetworkSettings
from queues.messages import Array, PolicyUpdate
from queues.specs import BehaviorSpec
from stages.environment.protocol import ActionBatch
from stages.errors import NotFiniteError, StageError
from stages.policy.encoders import ObservationEncoder
from stages.policy.layout import ACTION_LIMIT, MASK_PENALTY, branch_slices, check_layout, policy_layout
from stages.policy.normalizer import normalize
from stages.policy.protocol import Decision

Floats = NDArray[np.float32]

_HALF_LOG_TWO_PI = np.float32(0.5 * log(2.0 * pi))
_HALF = np.float32(0.5)


class NumpyPolicy:
    """Acts for one behaviour id: `ActingPolicy` with the weights of a `PolicyUpdate`.

    The buffers of the forward pass belong to the policy and grow to the most agents seen; what `act` returns
    is new.

    Raises:
        StageError: if the spec has observations without an encoder, or the activation is unknown.
    """

    def __init__(self, spec: BehaviorSpec, network_settings: NetworkSettings) -> None:
        self._spec = spec
        self._layout = policy_layout(spec, network_settings)
        self._encoder = ObservationEncoder(spec)
        self._activation = activation(network_settings.activation)
        self._continuous = spec.actions.continuous_size
        self._branches = branch_slices(spec)
        self._unbounded = np.array(spec.actions.unbounded, np.intp)
        self._body: list[tuple[Floats, Floats]] = []
        self._normalizer: tuple[Floats, Floats] | None = None
        self._widths = [
            self._encoder.size,
            *(shape[1] for name, shape in self._layout if name.endswith(".weight")),
        ]
        self._buffers: list[Floats] = []
        self._views: list[Floats] = []
        self._scratch: list[Floats] = []
        self._log_sigma = np.zeros(0, np.float32)
        self._sigma = np.ones(0, np.float32)
        self.version = -1
        """Version of the loaded weights; -1 before the first `load`."""

    def load(self, update: PolicyUpdate) -> None:
        """Take up the weights of an update (copied).

        Raises:
            StageError: if the update was made for another network; the message names the tensor.
        """
        check_layout(update, self._layout)
        tensors = {name: tensor.copy() for name, tensor in update.tensors().items()}
        layers = [name.removesuffix(".weight") for name, _ in self._layout if name.endswith(".weight")]
        self._body = [(tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]) for layer in layers]
        if "normalizer.mean" in tensors:
            self._normalizer = (tensors["normalizer.mean"], tensors["normalizer.inverse_std"])
        if self._continuous:
            self._log_sigma = tensors["log_sigma"]
            self._sigma = np.exp(self._log_sigma)
        self.version = update.version

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
    ) -> Decision:
        """Decide for d agents; see `ActingPolicy.act`.

        Raises:
            NotFiniteError: if the network's output is NaN or infinite.
            StageError: if no policy was loaded yet, or a mask forbids all choices of a branch.
        """
        heads = self._forward(observations)
        d, c = len(heads), self._continuous
        log_probs = np.empty((d, self._spec.actions.log_prob_size), np.float32)
        columns: dict[str, Array] = {}
        continuous = np.empty((d, 0), np.float32)
        discrete = np.empty((d, len(self._branches)), np.int32)
        if c:
            raw = self._sample_gaussian(heads[:, :c], random, deterministic, log_probs[:, :c])
            columns["continuous_actions"] = raw
            continuous = self._bounded(raw)
        if self._branches:
            logits = heads[:, c:]
            if masks is not None:
                self._check_masks(masks)
                logits = np.where(masks, logits, logits + MASK_PENALTY)
            for index, branch in enumerate(self._branches):
                choices, chosen = sample_categorical(logits[:, branch], random, deterministic)
                discrete[:, index] = choices
                log_probs[:, c + index] = chosen
            columns["discrete_actions"] = discrete
        columns["log_probs"] = log_probs
        if self._spec.actions.masked:
            columns["action_masks"] = np.ones((d, self._spec.actions.mask_size), np.bool_) if masks is None else masks
        return Decision(ActionBatch(continuous, discrete), columns)

    def _forward(self, observations: tuple[Array, ...]) -> Floats:
        """The heads' outputs [d, continuous + choices]: means, then logits. A view into a buffer."""
        if not self._body:
            raise StageError(f"{self._spec.behavior_id}: no policy was loaded to act with")
        d = len(observations[0])
        if not self._views or len(self._views[0]) != d:
            self._resize(d)
        x = self._views[0]
        with np.errstate(over="ignore", invalid="ignore"):
            self._encoder.write(observations, x)
            if self._normalizer is not None:
                normalize(x, *self._normalizer, x)
            last = len(self._body) - 1
            for layer, (weight, bias) in enumerate(self._body):
                out = self._views[layer + 1]
                np.matmul(x, weight, out=out)
                out += bias
                if layer < last:
                    self._activation(out, self._scratch[layer])
                x = out
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
            raise NotFiniteError(
                f"{self._spec.behavior_id}: policy version {self.version} gives {x[row].tolist()} "
                f"for row {row} of {d} agents, which observes {[o[row].tolist() for o in observations]}"
            )
        return x

    def _resize(self, d: int) -> None:
        if not self._buffers or len(self._buffers[0]) < d:
            self._buffers = [np.empty((d, width), np.float32) for width in self._widths]
        self._views = [buffer[:d] for buffer in self._buffers]
        self._scratch = [np.empty_like(view) for view in self._views[1:-1]]

    def _sample_gaussian(
        self, mu: Floats, random: np.random.Generator, deterministic: bool, log_probs: Floats
    ) -> Floats:
        """Raw actions [d, c]; their log-probabilities go to `log_probs` [d, c].

        log N(a; μ, σ) = -((a - μ)/σ)²/2 - log σ - log(2π)/2, of the action as it is stored, so that the
        trainer finds the same number.
        """
        if deterministic:
            actions = mu.copy()
        else:
            actions = random.standard_normal(mu.shape, np.float32)
            actions *= self._sigma
            actions += mu
        np.subtract(actions, mu, out=log_probs)
        log_probs /= self._sigma
        np.square(log_probs, out=log_probs)
        log_probs *= -_HALF
        log_probs -= self._log_sigma + _HALF_LOG_TWO_PI
        return actions

    def _bounded(self, raw: Floats) -> Floats:
        """What the environment gets: clip(a, -3, 3) / 3, and the raw action where there are no bounds."""
        squashed = np.clip(raw, -ACTION_LIMIT, ACTION_LIMIT)
        squashed /= ACTION_LIMIT
        if len(self._unbounded):
            squashed[:, self._unbounded] = raw[:, self._unbounded]
        return squashed

    def _check_masks(self, masks: NDArray[np.bool_]) -> None:
        for index, branch in enumerate(self._branches):
            open_rows = masks[:, branch].any(axis=1)
            if not open_rows.all():
                row = int(np.flatnonzero(~open_rows)[0])
                raise StageError(
                    f"{self._spec.behavior_id}: the action mask of row {row} forbids all "
                    f"{branch.stop - branch.start} choices of branch {index}; "
                    "an environment must leave at least one"
                )


def sample_categorical(
    logits: Floats, random: np.random.Generator, deterministic: bool
) -> tuple[NDArray[np.intp], Floats]:
    """Draw from softmax(logits) [d, choices] by inverting the distribution function.

    The number drawn lies in (0, total] and the first choice whose cumulated weight reaches it is taken:
    choices of weight 0 are never taken, whatever the rounding.

    Returns:
        Choices [d] (the most likely ones if `deterministic`) and their log-probabilities [d].
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    cumulated = np.exp(shifted)
    np.cumsum(cumulated, axis=1, out=cumulated)
    total = cumulated[:, -1]
    if deterministic:
        choices = shifted.argmax(axis=1)
    else:
        drawn = (np.float32(1.0) - random.random(len(logits), np.float32)) * total
        choices = (cumulated < drawn[:, None]).sum(axis=1)
    return choices, shifted[np.arange(len(logits)), choices] - np.log(total)


def activation(name: str) -> Callable[[Floats, Floats], None]:
    """The activation of that name, as a function that changes its first argument; the second is scratch.

    Raises:
        StageError: if there is none.
    """
    if name not in _ACTIVATIONS:
        raise StageError(f"network_settings.activation: {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _swish(x: Floats, scratch: Floats) -> None:
    # x·sigmoid(x) = h·(1 + tanh h) with h = x/2: unlike exp(-x) it can't overflow.
    x *= _HALF
    np.tanh(x, out=scratch)
    scratch += np.float32(1.0)
    x *= scratch


def _tanh(x: Floats, scratch: Floats) -> None:
    np.tanh(x, out=x)


def _relu(x: Floats, scratch: Floats) -> None:
    np.maximum(x, np.float32(0.0), out=x)


def _elu(x: Floats, scratch: Floats) -> None:
    # For x ≤ 0, exp(x) - 1 ≥ x; for x > 0 the scratch holds 0: the larger of both is the ELU.
    np.minimum(x, np.float32(0.0), out=scratch)
    np.expm1(scratch, out=scratch)
    np.maximum(x, scratch, out=x)


_ACTIVATIONS: dict[str, Callable[[Floats, Floats], None]] = {
    "swish": _swish,
    "tanh": _tanh,
    "relu": _relu,
    "elu": _elu,
}
