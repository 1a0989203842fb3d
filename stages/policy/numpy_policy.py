"""The acting policy of plain designs: a forward pass in NumPy over flat weights.

For networks of game-agent size this costs a third of the same pass in torch and needs no thread pool. The network that
is trained is a torch module; both follow `layout`, and a test compares their outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array, Floats, PolicyUpdate
from stages.errors import StageError
from stages.policy.design import PolicyDesign
from stages.policy.layout import NORMALIZER_INVERSE_STD, NORMALIZER_MEAN, check_layout, policy_layout
from stages.policy.normalizer import normalize
from stages.policy.observations import ObservationLayout
from stages.policy.protocol import ActingPolicy, Decision, Recall
from stages.policy.sampling import ActionSampler, check_heads

_HALF = np.float32(0.5)


class NumpyPolicy:
    """Acts for one behaviour id: `ActingPolicy` with the weights of a `PolicyUpdate`, without memory.

    The buffers of the forward pass belong to the policy and grow to the most agents seen; what `act` returns is new.

    Args:
        design: a plain one.

    Raises:
        StageError: if the design is not plain: `factory.make_policy` makes policies of any.
    """

    memory_size = 0
    previous_action_size = 0

    def __init__(self, design: PolicyDesign) -> None:
        if not design.plain:
            raise StageError(
                f"{design.spec.behavior_id}: NumpyPolicy runs perceptrons over vectors only, without goals and memory; "
                "use stages.policy.factory.make_policy"
            )
        self._behavior_id = design.spec.behavior_id
        self._layout = policy_layout(design)
        self._observations = ObservationLayout(design.spec)
        self._activation = activation(design.settings.activation)
        self._sampler = ActionSampler(design)
        self._body: list[tuple[Floats, Floats]] = []
        self._normalizer: tuple[Floats, Floats] | None = None
        self._widths = [
            self._observations.vector_size,
            *(shape[1] for name, shape in self._layout if name.endswith(".weight")),
        ]
        self._buffers: list[Floats] = []
        self._views: list[Floats] = []
        self._scratch: list[Floats] = []
        self.version = -1
        """Version of the loaded weights; -1 before the first `load`."""
        self._draws = (design.spec.actions, design.squashed, design.head_size, tuple(design.extra_columns))

    def load(self, update: PolicyUpdate) -> None:
        """See `ActingPolicy.load`."""
        check_layout(update, self._layout)
        tensors = {name: tensor.copy() for name, tensor in update.tensors().items()}
        layers = [name.removesuffix(".weight") for name, _ in self._layout if name.endswith(".weight")]
        self._body = [(tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]) for layer in layers]
        if NORMALIZER_MEAN in tensors:
            self._normalizer = (tensors[NORMALIZER_MEAN], tensors[NORMALIZER_INVERSE_STD])
        if "log_sigma" in tensors:
            self._sampler.load(tensors["log_sigma"])
        self._sampler.adopt(update)
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
        return Decision(*self._sampler.sample(self.heads(observations), masks, random, deterministic))

    def draws_like(self, other: ActingPolicy, deterministic: bool) -> bool:
        """Whether `act_together` can draw the actions of both policies at once."""
        if not isinstance(other, NumpyPolicy) or self._draws != other._draws:
            return False
        return deterministic or not (self._sampler.uniform or other._sampler.uniform)

    def heads(self, observations: tuple[Array, ...]) -> Floats:
        """The action heads [d, H] (see `PolicyDesign.head_size`): a view into a buffer, valid until the next call.

        Raises:
            NotFiniteError: if they are NaN or infinite.
            StageError: if no policy was loaded yet.
        """
        if not self._body:
            raise StageError(f"{self._behavior_id}: no policy was loaded to act with")
        d = len(observations[0])
        if not self._views or len(self._views[0]) != d:
            self._resize(d)
        x = self._views[0]
        with np.errstate(over="ignore", invalid="ignore"):
            self._observations.write_vectors(observations, x)
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
        check_heads(self._behavior_id, self.version, x, observations)
        return x

    def _resize(self, d: int) -> None:
        if not self._buffers or len(self._buffers[0]) < d:
            self._buffers = [np.empty((d, width), np.float32) for width in self._widths]
        self._views = [buffer[:d] for buffer in self._buffers]
        self._scratch = [np.empty_like(view) for view in self._views[1:-1]]


def act_together(
    parts: Sequence[tuple[NumpyPolicy, NDArray[np.intp]]],
    observations: tuple[Array, ...],
    masks: NDArray[np.bool_] | None,
    random: np.random.Generator,
    deterministic: bool = False,
) -> Decision:
    """Decide for the rows of several policies at once: each computes its heads, and all actions are drawn together.

    Drawing is most of the cost of a decision for few rows, and is paid once here.

    Args:
        parts: policies that draw alike (`NumpyPolicy.draws_like`), and the rows of each; together all rows.
        observations: of all rows; the arguments from here on are those of `ActingPolicy.act`.
        masks: of all rows.
        random: the source of all chance.
        deterministic: whether the most likely actions are taken.
    """
    sampler, count = parts[0][0]._sampler, len(observations[0])
    heads = np.empty((count, parts[0][0]._widths[-1]), np.float32)
    log_sigma = np.empty((count, len(sampler.log_sigma)), np.float32)
    for policy, rows in parts:
        heads[rows] = policy.heads(tuple([o[rows] for o in observations]))
        if log_sigma.size:
            log_sigma[rows] = policy._sampler.log_sigma
    return Decision(*sampler.sample(heads, masks, random, deterministic, log_sigma))


def activation(name: str) -> Callable[[Floats, Floats], None]:
    """Return the activation of that name: a function that changes its first argument; the second is scratch.

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
