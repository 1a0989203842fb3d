"""SAC's networks other than the actor (Q, V, entropy coefficients), their passes, and the losses.

The actor is `ActorNetwork`. Each network has a separate body, of the kind that the settings describe.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headrace.queues.specs import ActionSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import SLOPE_OF_INPUT, TIMES_SLOPE, WRITE_ACTIVATION, Inputs
from headrace.stages.policy.network.products import HiddenProducts

Network = TypeVar("Network", bound=nn.Module)


class ValueNetwork(nn.Module):
    """V: the soft value of a state under the policy, for each of S reward signals."""

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        design = design.of_critic
        self.body = NetworkBody(design)
        self.head = nn.Linear(self.body.encoding_size, signals)
        self._plain = Perceptron(design, self.body, self.head) if design.plain else None

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the values [B, S] for B rows."""
        if self._plain is not None:
            return self._plain(inputs.vectors)
        encoding, _ = self.body(inputs)
        values: Tensor = self.head(encoding)
        return values


class QNetwork(nn.Module):
    """Q: the value of an action in a state, for each of S reward signals.

    Continuous actions are inputs. For discrete actions, the outputs are the values of all A choices; A is 1 if there
    are none.
    """

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        design = design.of_critic
        actions = design.spec.actions
        self._signals = signals
        self._takes_actions = actions.continuous_size > 0
        self.body = NetworkBody(design, extra=actions.continuous_size)
        self.head = nn.Linear(self.body.encoding_size, signals * max(1, actions.mask_size))
        self._plain = Perceptron(design, self.body, self.head) if design.plain else None

    def forward(self, inputs: Inputs, continuous: Tensor, frozen: bool = False) -> Tensor:
        """Return the values [B, S, A] for B rows with continuous actions [B, C].

        If `frozen`, only the gradients with respect to the actions are computed, not those of the weights.
        """
        if self._plain is not None:
            x = torch.cat((inputs.vectors, continuous), dim=1) if self._takes_actions else inputs.vectors
            values = self._plain(x, frozen)
        else:
            encoding, _ = self.body(inputs, continuous if self._takes_actions else None)
            values = self.head(encoding)
        return values.view(len(values), self._signals, -1)


class Critics(nn.Module):
    """Both Q networks, and V if V is learned. One optimizer trains them all."""

    def __init__(self, design: PolicyDesign, signals: int, values: bool) -> None:
        super().__init__()
        self.q1 = QNetwork(design, signals)
        self.q2 = QNetwork(design, signals)
        if values:
            self.value = ValueNetwork(design, signals)  # last: its parameters are the end of the flat vector


class EntropyCoefficients(nn.Module):
    """G entropy coefficients: one for all continuous actions together, if any, then one per discrete branch."""

    def __init__(self, design: PolicyDesign, initial: float) -> None:
        super().__init__()
        actions = design.spec.actions
        groups = (actions.continuous_size > 0) + len(actions.discrete_branches)
        self.logs = nn.Parameter(torch.full((groups,), log(initial)))


def drawn_for(actions: ActionSpec, network: Network) -> Network:
    """Draw new weights for a network, depending on the kinds of actions; its encoders and memory do not change.

    With only continuous actions, hidden layers and heads are drawn uniformly within ±1/sqrt(fan_in), as torch does.
    ML-Agents' weights are 1.7 times as large, and even larger for value heads. Q's values for untried actions are then
    large compared with the first learned values, which delays learning (docs/learning.md). The values of discrete
    choices are outputs, and are learned sooner with ML-Agents' weights, which hidden layers already have. With both
    kinds of actions, value heads also get ML-Agents' weights (Xavier uniform, biases 0). With memory, previous actions,
    which ML-Agents' networks do not get, have zero weights at first. Otherwise observations, and the action that Q
    evaluates, would be a small part of the inputs, which would delay learning (docs/learning.md).
    """
    if actions.discrete_branches:
        if actions.continuous_size:
            for body in _bodies(network):
                body.start_without_previous_actions()
            for head in _linear(network, "head"):
                nn.init.xavier_uniform_(head.weight)
                nn.init.zeros_(head.bias)
        return network
    for body in _bodies(network):
        for layer in body.layers:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    for head in _linear(network, "head", "action"):
        head.reset_parameters()
    return network


def _bodies(network: nn.Module) -> list[NetworkBody]:
    return [module for module in network.modules() if isinstance(module, NetworkBody)]


def _linear(network: nn.Module, *names: str) -> list[nn.Linear]:
    """Return all linear layers with these names in the network."""
    found = network.named_modules()
    return [module for path, module in found if isinstance(module, nn.Linear) and path.rpartition(".")[2] in names]


def check_actions(behavior: str, actions: ActionSpec, target_entropy: float | None) -> None:
    """Reject continuous actions that SAC's policies can't scale, and a target entropy without continuous actions.

    Raises:
        StageError: if an action has no bounds, or the setting does not apply; the message names the actions or the
            setting.
    """
    if target_entropy is not None and not actions.continuous_size:
        raise StageError(
            f"{behavior}: hyperparameters.target_entropy: {target_entropy:g} applies to continuous actions, and there "
            "are none; for discrete actions the target is always a fifth of the largest entropy; remove the setting"
        )
    if actions.unbounded:
        several = len(actions.unbounded) > 1
        which = f"action{'s' * several} {', '.join(map(str, actions.unbounded))} {'have' if several else 'has'}"
        raise StageError(
            f"{behavior}: sac draws continuous actions from [-1, 1] and scales them to the environment's bounds, but "
            f"{which} no finite bounds on both sides (of {actions.continuous_size} actions, counted from 0): give the "
            "environment a bounded action space, for instance with a wrapper in environment.wrappers "
            "(docs/algorithms.md shows one; gymnasium.wrappers:ClipAction and environment.action_bounds: clip remove "
            "bounds), or use trainer_type: ppo"
        )


# An entire perceptron as one step of autograd, which computes the same results as `NetworkBody` and a head, but faster.
# Off-policy learning makes an update every step or so, and each update runs networks seven times. For plain designs,
# these passes consist of matrix products and their overhead: graphs of small operations, copied biases, and new memory
# for each result. Here, a pass keeps its results in reused buffers, weight gradients are added in place to the vector
# of `FlatParameters`, and matrix products with observations that have few columns are transposed if that is faster.


FEW = 32
"""Number of columns up to which the transposed matrix product is faster.

It is five times as fast at 4 columns, and never slower.
"""


class Perceptron:
    """The hidden layers of a body, and a head. A `FlatParameters` holds their parameters.

    At any time, only one pass of each kind (frozen or not) can await its backward pass, because the next pass of that
    kind overwrites the buffers.

    Args:
        design: a plain design.
        body: the body of that design.
        head: the linear layer after the body.
    """

    def __init__(self, design: PolicyDesign, body: NetworkBody, head: nn.Linear) -> None:
        layers = [*(layer for layer in body.layers if isinstance(layer, nn.Linear)), head]
        self._parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
        activation = design.settings.activation
        products = HiddenProducts(design.products)
        self._learning = _Pass(self._parameters, activation, products, frozen=False)
        self._frozen = _Pass(self._parameters, activation, products, frozen=True)

    def __call__(self, x: Tensor, frozen: bool = False) -> Tensor:
        """Return outputs [B, out] for inputs [B, in]; if `frozen`, only the inputs get gradients."""
        if frozen:
            result: Tensor = _Node.apply(self._frozen, x)  # type: ignore[no-untyped-call]
        else:
            result = _Node.apply(self._learning, x, *self._parameters)  # type: ignore[no-untyped-call]
        return result


class _Pass:
    """A forward and backward pass through alternating weights [out, in] and biases [out]."""

    def __init__(self, parameters: list[Tensor], activation: str, products: HiddenProducts, frozen: bool) -> None:
        self._weights, self._biases = parameters[0::2], parameters[1::2]
        self._forward, self._backward = WRITE_ACTIVATION[activation], TIMES_SLOPE[activation]
        self._products = products
        self._keeps_z = activation in SLOPE_OF_INPUT
        self._learns = not frozen
        self._x = torch.empty(0)
        self._zs: list[Tensor] = []
        self._results: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [B, out] as a new tensor."""
        if not self._results or len(self._results[0]) != len(x):
            self._make_buffers(x)
        self._x = x
        for weight, bias, z, result in zip(self._weights[:-1], self._biases[:-1], self._zs, self._results, strict=True):
            self._products.layer(bias, x, weight, z)
            self._forward(z, result)
            x = result
        return torch.addmm(self._biases[-1], x, self._weights[-1].t())

    def backward(self, gradient: Tensor, to_inputs: bool) -> Tensor | None:
        """Add to the gradients of the parameters; return the gradient of the inputs if `to_inputs`."""
        if not self._learns:
            return self._to_inputs(gradient) if to_inputs else None
        for layer in reversed(range(len(self._weights))):
            below = self._results[layer - 1] if layer else self._x
            weight, bias = self._weights[layer].grad, self._biases[layer].grad
            assert weight is not None, "`FlatParameters` sets it"
            assert bias is not None
            bias.add_(gradient.sum(dim=0))
            if below.shape[1] <= FEW:
                weight.add_((below.t() @ gradient).t())
            else:
                self._products.add_gradient(weight, gradient, below)
            if layer:
                kept = self._zs[layer - 1] if self._keeps_z else below
                gradient = self._below(gradient, layer, kept)
        return self._first(gradient) if to_inputs else None

    def _to_inputs(self, gradient: Tensor) -> Tensor:
        rows = _some_rows(gradient) if gradient.device.type == "cpu" else None
        if rows is not None:
            gradient = gradient[rows]
        for layer in reversed(range(1, len(self._weights))):
            kept = (self._zs if self._keeps_z else self._results)[layer - 1]
            gradient = self._below(gradient, layer, kept if rows is None else kept[rows])
        found = self._first(gradient)
        return found if rows is None else torch.zeros_like(self._x).index_copy_(0, rows, found)

    def _below(self, gradient: Tensor, layer: int, kept: Tensor) -> Tensor:
        """Return the gradient [n, hidden] with respect to the activation's input below a layer, as a new tensor."""
        below = self._products.below(gradient, self._weights[layer])
        self._backward(below, kept)
        return below

    def _first(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs, given the gradient of the first layer's outputs."""
        return (self._weights[0].t() @ gradient.t()).t()

    def _make_buffers(self, x: Tensor) -> None:
        shapes = [(len(x), weight.shape[0]) for weight in self._weights[:-1]]

        def buffers() -> list[Tensor]:
            return [torch.empty(shape, dtype=x.dtype, device=x.device) for shape in shapes]

        self._results = buffers()
        # Only swish needs the activation's input in the backward pass; other activations may overwrite it.
        self._zs = buffers() if self._keeps_z else self._results


def _some_rows(gradient: Tensor) -> Tensor | None:
    """Return the indices of a gradient's nonzero rows; None if all rows are nonzero.

    If only the smaller of two networks' outputs counts, each network has gradients for only some of the rows. On a CPU,
    where reading the gradient does not wait for a device, only these rows are computed.
    """
    rows = gradient.count_nonzero(dim=1).nonzero().squeeze(1)
    return None if len(rows) == len(gradient) else rows


class _Node(torch.autograd.Function):
    """A pass as an autograd function. The parameters are among its inputs because they require gradients."""

    @staticmethod
    def forward(ctx: Any, way: _Pass, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.way, ctx.count = way, len(parameters)
        return way.forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        below = ctx.way.backward(gradients[0], ctx.needs_input_grad[1])
        return (None, below, *(None for _ in range(ctx.count)))  # the parameters' gradients were added in place


# The losses and their parts, as pure functions of tensors. B: rows; S: reward signals; A: choices of K discrete
# branches; G: entropy coefficients. Masks are as in `update`.


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of values [B, ...] without padding, a scalar; 0 if all rows are padding."""
    if mask is None:
        return values.mean()
    rows = values.reshape(len(values), -1).mean(dim=1)
    return (rows * mask).sum() / mask.sum().clamp(min=1.0)


def q_target(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Return the soft Bellman backup r + γ·V(s'); all arguments and the result are [B, S].

    Args:
        rewards: scaled by each signal's strength.
        discounts: the signal's γ; 0 if the episode terminated and the signal ends with it. If the episode was only cut
            short, s' is the real next observation, and its value counts.
        next_values: the target network's values.
    """
    return torch.addcmul(rewards, discounts, next_values)


def taken_values(q: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """Return the value [B, S] of the actions taken, averaged over branches.

    Args:
        q: [B, S, A] values, given the continuous actions taken.
        choices: for each branch, the index [B, 1] of the choice among all A choices.
    """
    if not choices:
        return q.squeeze(2)
    index = choices[0] if len(choices) == 1 else torch.cat(tuple(choices), dim=1)
    return q.gather(2, index.unsqueeze(1).expand(-1, q.shape[1], -1)).mean(dim=2)


def expected_values(q: Tensor, probabilities: Tensor | None, branches: int) -> Tensor:
    """Return the value [B, S] under the policy: Σ π(a)·Q(a) over a branch's choices, averaged over branches.

    Args:
        q: [B, S, A] values, given continuous actions drawn from the policy.
        probabilities: [B, A] probabilities of the discrete choices, 0 where forbidden; None if there are none.
        branches: K, the number of branches.
    """
    if probabilities is None:
        return q.squeeze(2)
    return torch.bmm(q, probabilities.unsqueeze(2)).squeeze(2) / branches


def soft_values(expected: Tensor, negentropies: Tensor, coefficients: Tensor, weights: Tensor) -> Tensor:
    """Return the soft value of a state under the policy, E[Q(s, a)] - Σ α·E[log π], [B, S].

    The entropy has the same sign for continuous and discrete actions. V learns this value, and the policy maximises it.

    Args:
        expected: [B, S] E[Q(s, a)] of the smaller Q.
        negentropies: [B, G] negative entropies: the log-probability of the continuous actions drawn, and each branch's
            Σ π log π.
        coefficients: [G] α.
        weights: [G] 1 for continuous actions, 1 / K for each branch.
    """
    return expected - (negentropies @ (coefficients * weights)).unsqueeze(1)


def half_squared_error(values: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Return ½·mean (values - targets)² over rows and signals [B, S], a scalar; targets get no gradient."""
    if mask is None:
        return 0.5 * torch.nn.functional.mse_loss(values, targets)
    return 0.5 * masked_mean((values - targets).square(), mask)


def policy_loss(soft: Tensor, mask: Tensor | None) -> Tensor:
    """Return the policy's loss: minus its actions' soft value [B, S], averaged over signals and rows."""
    return -masked_mean(soft, mask)


def coefficient_gradients(negentropies: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Return the gradients [G] of Σ log α·(H - H_target) with respect to log α; α falls if entropy is above its target.

    This loss is eq. 18 of "Algorithms and Applications", but with log α instead of α, as in all common implementations,
    so the step does not depend on the scale of α.

    Args:
        negentropies: [B, G] -H, as in `soft_values`.
        targets: [G] or [B, G] H_target.
        mask: [B] 1 for rows, 0 for padding; None without padding.
    """
    excess = -(negentropies.detach() + targets)
    return excess.mean(dim=0) if mask is None else mask @ excess / mask.sum().clamp(min=1.0)
