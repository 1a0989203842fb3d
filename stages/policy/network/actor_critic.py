"""An actor and a critic in torch: two stacked perceptrons for vector-only designs, for speed; otherwise two modules.

Actors run the stack's acting part in NumPy (`numpy_policy`), with names and shapes as in `design.policy_layout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.errors import StageError
from headrace.stages.policy.design import FROM_UNITS, PolicyDesign
from headrace.stages.policy.network.body import LOGITS_GAIN, MU_GAIN, ActorNetwork, NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatVectors, seeded
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.policy.network.layers import (
    ACTION_GAIN,
    ACTIVATIONS,
    HIDDEN_GAIN,
    VALUE_GAIN,
    Inputs,
    draw_weights,
    host_copies,
    write_tanh,
)
from headrace.stages.policy.network.products import HiddenProducts
from headrace.stages.policy.observations import ObservationLayout

_MINUS_ONE = torch.tensor(-1.0)


def _tanh(x: Tensor) -> Tensor:
    """Return tanh(x); with a graph, use 2·sigmoid(2x) - 1, because torch's tanh takes three times as long on some CPUs.

    Without a graph the result overwrites x, which is a layer's new output.
    """
    if x.is_cpu and not x.requires_grad:
        write_tanh(x, x)
        return x
    return torch.add(_MINUS_ONE, torch.sigmoid(x + x), alpha=2.0)


class TrainedActor(FlatVectors):
    """An actor, and other parts that are trained with it; all parameters are in one flat vector.

    Args:
        parameters: leaf tensors keyed by name, which become views into `values`.
        log_sigma: [C] log standard deviation of continuous actions, shared by all states; None if it depends on the
            state.
        squashed: whether continuous actions are the tanh of a draw from the heads' Gaussian.
        shared: whether all parts share a body.

    Attributes:
        acting_views: views of the actor's parameters, without the normaliser's, keyed by their names in
            `PolicyUpdate.layout`.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], log_sigma: Tensor | None, squashed: bool, shared: bool
    ) -> None:
        super().__init__(parameters)
        self.acting_views = self._views_of_actor(parameters)
        self.log_sigma, self.squashed, self.shared = log_sigma, squashed, shared

    def _views_of_actor(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select the actor's tensors from all `named` ones, as views with names and shapes as in `acting_views`."""
        raise NotImplementedError

    @property
    def acting(self) -> Tensor:
        """[len(values)] mask: 1 for the values that actions depend on, 0 for all others."""
        mask = torch.zeros_like(self.values)
        for view in self._views_of_actor(self.named_views(mask)).values():
            view.fill_(1.0)
        return mask

    @property
    def parts(self) -> Tensor:
        """[2, len(values)] masks: the actor's values, then the other parts'; a single row if all parts share a body."""
        acting = self.acting
        return torch.ones_like(acting)[None] if self.shared else torch.stack([acting, 1.0 - acting])

    def acting_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return host copies of the `acting_views`."""
        return host_copies(self.acting_views)


class ActorCritic(TrainedActor):
    """An actor and a critic for vectors only, without memory; see `make_actor_critic`.

    The critic has its own body, of the actor's shape, or shares the actor's. Bodies of equal shape form one stack of T
    towers (T = 2: actor, critic; T = 1: shared), so each layer takes one batched matmul. All parameters are views into
    one flat vector, and so are their gradients; an optimizer step, a norm or a copy is then one operation. Both
    measures reduce dispatch, which dominates the cost of a small network.

    The arguments are those of `make_actor_critic`; the design must be plain, and not squashed.

    Raises:
        StageError: if the design needs a different network.
    """

    def __init__(
        self,
        design: PolicyDesign,
        signals: int,
        shared_critic: bool,
        random: np.random.Generator,
        device: str = "cpu",
        accelerated: bool = True,
    ) -> None:
        if not design.perceptron or design.squashed:
            raise StageError(
                f"{design.spec.behavior_id}: this network supports only vectors, without goals, memory or a custom "
                "network, and samples actions from a plain Gaussian; make_actor_critic returns a network that fits"
            )
        settings = design.settings
        self.activation: str = settings.activation
        """Name of the activation function."""
        self.layers = len(settings.widths)
        """Number of hidden layers."""
        tanh = accelerated and self.activation == "tanh"
        self._activation = _tanh if tanh else ACTIVATIONS[self.activation]().forward
        self._towers = 1 if shared_critic else 2
        self.products = HiddenProducts(design.products)
        self._plain = design.products.plain
        initial = _initial_parameters(design, signals, self._towers, random)
        kind = torch.get_default_dtype()
        leaves = {name: torch.from_numpy(array).to(device, kind).requires_grad_() for name, array in initial.items()}
        super().__init__(leaves, leaves.get("log_sigma"), False, shared_critic)
        self._body = [(leaves[f"body.{i}.bias"], leaves[f"body.{i}.weight"]) for i in range(self.layers)]
        self._action, self._value = [(leaves[f"{head}.bias"], leaves[f"{head}.weight"]) for head in ("action", "value")]
        narrow = accelerated and device == "cpu" and max(settings.widths) < FROM_UNITS
        self._compiles = narrow and compiled.compiles(self.activation, settings.widths, self.values.dtype)

    def __call__(self, inputs: Inputs, critic_memories: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the action head outputs [B, continuous + choices] (means, logits) and values [B, S] for B rows."""
        x = inputs.vectors.expand(self._towers, *inputs.vectors.shape)
        if self._compiles and not torch.is_grad_enabled():
            here: NDArray[np.float32] = x.numpy()
            for bias, weight in self._body:
                out = np.empty((*here.shape[:2], weight.shape[2]), np.float32)
                scratch = np.empty_like(out) if self.activation == "swish" else out
                arrays = here, weight.detach().numpy(), bias.detach().numpy(), scratch, out
                compiled.kernels.forward(*arrays, compiled.ACTIVATIONS[self.activation])
                here = out
            heads, values = (  # with few outputs, NumPy's matmul is ten times as fast as torch's
                torch.from_numpy(np.matmul(encoding, weight.detach().numpy())).add_(bias)
                for (bias, weight), encoding in ((self._action, here[0]), (self._value, here[-1]))
            )
            return heads, values
        for bias, weight in self._body:
            x = torch.baddbmm(bias, x, weight) if self._plain else self.products.stacked(bias, x, weight)
            x = self._activation(x)
        return torch.addmm(self._action[0], x[0], self._action[1]), torch.addmm(self._value[0], x[-1], self._value[1])

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the action head outputs [B, H] for B rows."""
        return torch.addmm(self._action[0], self._encoded(0, inputs), self._action[1])

    def evaluate(self, inputs: Inputs) -> tuple[Tensor, None]:
        """Return the values [B, S] for B rows, and None in place of memories."""
        return torch.addmm(self._value[0], self._encoded(-1, inputs), self._value[1]), None

    def _encoded(self, tower: int, inputs: Inputs) -> Tensor:
        """Return the output of one tower's last hidden layer."""
        x = inputs.vectors
        for bias, weight in self._body:
            x = self._activation(self.products.stacked(bias[tower], x, weight[tower]))
        return x

    def _views_of_actor(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return views of the first tower and the action layer, named and shaped as in `design.policy_layout`."""
        views = {}
        for name, tensor in named.items():
            if name.startswith("body."):
                tower = tensor.detach()[0]
                views[name] = tower if name.endswith("weight") else tower.view(-1)
            elif not name.startswith("value."):
                views[name] = tensor.detach()
        return views


def _initial_parameters(
    design: PolicyDesign, signals: int, towers: int, random: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """Draw initial weights as ML-Agents does.

    Bodies: normal with std 1/sqrt(fan_in) (He initialisation with a linear layer's gain). Heads: the same std times 0.2
    for continuous and 0.1 for discrete actions. Value heads: Xavier uniform. Biases: 0. The settings may choose
    orthogonal weights or torch's instead.
    """
    parameters: dict[str, NDArray[np.float32]] = {}
    settings, actions = design.settings, design.spec.actions
    width, how = ObservationLayout(design.spec).vector_size, settings.initial_weights

    def uniform(shape: tuple[int, ...], bound: float) -> NDArray[np.float32]:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    def drawn(shape: tuple[int, ...], gain: float) -> NDArray[np.float32]:
        *stack, inputs, outputs = shape
        if how == "torch":
            return uniform(shape, 1.0 / sqrt(inputs))
        if how == "orthogonal":  # see `layers.draw_weights`
            normal = random.standard_normal((*stack, outputs, inputs), np.float32)
            return orthogonalised(normal, gain).swapaxes(-1, -2)
        return random.standard_normal(shape, np.float32) / np.float32(sqrt(inputs))

    def bias(shape: tuple[int, ...]) -> NDArray[np.float32]:
        return uniform(shape, 1.0 / sqrt(width)) if how == "torch" else np.zeros(shape, np.float32)

    for layer, units in enumerate(settings.widths):
        parameters[f"body.{layer}.weight"] = drawn((towers, width, units), HIDDEN_GAIN)
        parameters[f"body.{layer}.bias"] = bias((towers, 1, units))
        width = units
    continuous, choices = actions.continuous_size, actions.mask_size
    heads = drawn((width, continuous + choices), ACTION_GAIN)
    if how == "default":
        heads[:, :continuous] *= MU_GAIN
        heads[:, continuous:] *= LOGITS_GAIN
    parameters["action.weight"] = heads
    parameters["action.bias"] = bias((continuous + choices,))
    # Each reward signal has its own head with one output.
    if how == "default":
        parameters["value.weight"] = uniform((width, signals), sqrt(6.0 / (width + 1)))
    else:
        parameters["value.weight"] = drawn((signals, width, 1), VALUE_GAIN)[:, :, 0].T.copy()
    parameters["value.bias"] = bias((signals,))
    if continuous:
        parameters["log_sigma"] = np.full(continuous, settings.initial_log_std, np.float32)
    return parameters


def orthogonalised(drawn: NDArray[np.float32], gain: float) -> NDArray[np.float32]:
    """Convert normal draws [..., out, in] to matrices with orthonormal rows (or columns, if fewer), scaled by `gain`.

    As in `torch.nn.init.orthogonal_`, the choice of signs makes the matrices uniformly distributed: Mezzadri (2007),
    "How to generate random matrices from the classical compact groups".
    """
    wide = drawn.shape[-2] < drawn.shape[-1]
    q, r = np.linalg.qr(drawn.swapaxes(-1, -2) if wide else drawn)
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    matrices: NDArray[np.float32] = (np.float32(gain) * (q.swapaxes(-1, -2) if wide else q)).astype(np.float32)
    return matrices


class WithActor(nn.Module):
    """A module with an actor and other parts that are trained with it."""

    actor: ActorNetwork


Trained = TypeVar("Trained", bound=WithActor)


class FlatActor(TrainedActor, Generic[Trained]):
    """A `TrainedActor` for a module with an actor and possibly other parts, which may share the actor's body."""

    def __init__(self, module: Trained, device: str, shared: bool = False) -> None:
        self.module: Trained = module.to(device)
        actor = module.actor
        super().__init__(dict(module.named_parameters()), actor.common_log_sigma, actor.squashed, shared)

    def _views_of_actor(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        of_actor = {name: named[f"actor.{name}"] for name, _ in self.module.actor.named_parameters()}
        return self.module.actor.acting_views(of_actor)

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the action head outputs [B, H] for B rows, with the actor's memories."""
        heads: Tensor = self.module.actor(inputs)[0]
        return heads


class ModularActorCritic(FlatActor["_ActorAndCritic"]):
    """An actor and a critic as two modules. The critic has its own body, of the actor's shape, or shares the actor's.

    The arguments and errors are those of `make_actor_critic`.
    """

    def __init__(
        self, design: PolicyDesign, signals: int, shared_critic: bool, random: np.random.Generator, device: str = "cpu"
    ) -> None:
        super().__init__(seeded(random, lambda: _ActorAndCritic(design, signals, shared_critic)), device, shared_critic)

    def __call__(self, inputs: Inputs, critic_memories: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return action head outputs [B, H] and values [B, S] for B rows; see `Inputs` for sequences.

        Args:
            inputs: B rows; `inputs.memories` contains the actor's memories.
            critic_memories: [B / L, m] the critic's memories before each sequence's first row; None for zeros. Ignored
                by a critic that shares the actor's body, and so its memories.
        """
        actor, critic = self.module.actor, self.module.critic
        encoding, _ = actor.body(inputs)
        of_critic = encoding if critic is None else critic(inputs._replace(memories=critic_memories))[0]
        return actor.heads(encoding), self.module.value(of_critic)

    def evaluate(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return values [B, S], and the critic's memories [B / L, m] after each sequence's last row, if any.

        `inputs.memories` contains the critic's memories, or the actor's if they share a body.
        """
        body = self.module.actor.body if self.module.critic is None else self.module.critic
        encoding, memories = body(inputs)
        return self.module.value(encoding), memories


class _ActorAndCritic(WithActor):
    def __init__(self, design: PolicyDesign, signals: int, shared_critic: bool) -> None:
        super().__init__()
        self.actor = ActorNetwork(design)
        self.critic: NetworkBody | None = None if shared_critic else NetworkBody(design.of_critic)
        width = (self.critic or self.actor.body).encoding_size
        self.value = value_heads(width, signals)
        draw_weights(self.value, design.settings.initial_weights, VALUE_GAIN)


def value_heads(width: int, signals: int) -> nn.Linear:
    """Make one value head per reward signal, with Xavier uniform weights as if each were a layer with one output."""
    heads = nn.Linear(width, signals)
    bound = sqrt(6.0 / (width + 1))
    with torch.no_grad():
        heads.weight.uniform_(-bound, bound)
        heads.bias.zero_()
    return heads


def make_actor_critic(
    design: PolicyDesign,
    signals: int,
    shared_critic: bool,
    random: np.random.Generator,
    device: str = "cpu",
    accelerated: bool = True,
) -> ActorCritic | ModularActorCritic:
    """Make an actor and a critic for a design.

    Args:
        design: the design, which gives observations, actions, layer sizes and memory.
        signals: number of reward signals S.
        shared_critic: true if the critic shares the actor's body, and so the actor's memory.
        random: the source of the initial weights, which are the same on any device.
        device: the torch device of the parameters, such as `cpu` or `cuda:0`.
        accelerated: whether compiled code and NumPy may compute parts of the outputs.

    Raises:
        StageError: if an encoder does not fit its observation, or a custom network breaks its protocol.
    """
    stacks = shared_critic or design.of_critic.settings.widths == design.settings.widths
    if design.perceptron and not design.squashed and stacks:
        return ActorCritic(design, signals, shared_critic, random, device, accelerated)
    return ModularActorCritic(design, signals, shared_critic, random, device)
