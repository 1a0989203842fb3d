"""The body of a network, from observations (and actions) to an encoding with an optional memory, and the actor.

A separate encoder handles each kind of observation; the encodings are concatenated.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.specs import ObservationSpec
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.flat_parameters import seeded, write_named
from headrace.stages.policy.network.layers import (
    ACTION_GAIN,
    ACTIVATIONS,
    Inputs,
    draw_weights,
    hidden_linear,
    host_copies,
    layer_norm,
    linear,
)
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.policy.sampling import GSDE_EPSILON


class KindEncoder(Protocol):
    """A torch module that encodes all observations of one kind; `ObservationKind.encoder` names its class.

    Attributes:
        size: total width of `forward`'s result.
        goals: index and width of each encoding that generates a hypernetwork's weights.
    """

    size: int
    goals: Sequence[tuple[int, int]]

    def __init__(self, observations: Sequence[ObservationSpec], design: PolicyDesign, context: int) -> None:
        """Make the encoder for these observations.

        Args:
            observations: the specs of one kind's observations; never empty.
            design: the policy's design.
            context: width of the preceding kinds' encodings.

        Raises:
            StageError: if an observation can't be encoded.
        """
        ...

    def __call__(self, observations: Sequence[Tensor], context: Tensor | None) -> Sequence[Tensor]:
        """Encode B rows.

        Args:
            observations: one tensor [B, *shape] per observation, in its own dtype; must not be modified.
            context: [B, context] encodings of the preceding kinds; None if there are none.

        Returns:
            Encodings [B, …], which follow those of the preceding kinds.
        """
        ...


class Encoders(nn.Module):
    """Encodes all observations: passes vectors through, and runs an encoder for every other kind.

    Observations that hold a goal are encoded like all others; for a hypernetwork they are also returned separately.

    Attributes:
        by_kind: for each kind, its name, its encoder, and the indices of its observations in
            `ObservationLayout.others`.
        size: width of all encodings together.
        goal_vectors: columns of the vector matrix that feed a hypernetwork.
        goal_size: width of the goals; 0 if nothing is conditioned on goals.

    Raises:
        StageError: if an encoder does not fit its observation, or a set holds a goal for a hypernetwork.
    """

    def __init__(self, design: PolicyDesign) -> None:
        super().__init__()
        specs, layout = design.spec.observations, ObservationLayout(design.spec)
        self.goal_vectors = layout.goals if design.hypernetwork else ()
        self.size = layout.vector_size
        self.goal_size = sum(columns.stop - columns.start for columns in self.goal_vectors)
        self.by_kind: list[tuple[str, KindEncoder, list[int]]] = []
        for name, kind in OBSERVATION_KINDS.items():
            places = [at for at, index in enumerate(layout.others) if specs[index].kind == name]
            if not places or kind.encoder is None:
                continue
            make = load_attribute(kind.encoder, None, "observation encoder")
            encoder = make([specs[layout.others[at]] for at in places], design, self.size)
            self.add_module(f"{name}s", encoder)
            self.by_kind.append((name, encoder, places))
            self.size += encoder.size
            self.goal_size += sum(width for _, width in encoder.goals)

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the encodings [B, size] and the goals [B, goal_size] (None if nothing is conditioned on goals)."""
        features, goals = inputs.vectors, list[Tensor]()
        for columns in self.goal_vectors:
            goals.append(features[:, columns])
        for _, encoder, places in self.by_kind:
            parts = encoder([inputs.others[at] for at in places], features if features.shape[1] else None)
            goals += [parts[number] for number, _ in encoder.goals]
            features = _side_by_side([features, *parts])
        return features, _side_by_side(goals) if goals else None


def _side_by_side(parts: list[Tensor]) -> Tensor:
    wide = [part for part in parts if part.shape[1]] or parts[:1]
    return torch.cat(wide, dim=1) if len(wide) > 1 else wide[0]


# The memory of a recurrent network: one LSTM layer (Hochreiter & Schmidhuber, 1997) after the hidden layers.

# On CUDA, each call copies an LSTM's weights into cuDNN's order, because they are in the flat vector of all parameters.
# The copy is small. Following the advice in torch's warning would move the weights out of the optimizer's vector.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class Memory(nn.Module):
    """An LSTM that runs over sequences. A memory is [h, c], concatenated; each is half of `memory_size` wide.

    Args:
        inputs: width of the input.
        memory_size: m, even; half of it is the width of the output.
    """

    def __init__(self, inputs: int, memory_size: int) -> None:
        super().__init__()
        self.size = memory_size // 2
        self.lstm = nn.LSTM(inputs, self.size, batch_first=True)
        for name, parameter in self.lstm.named_parameters():
            gates = parameter.detach().chunk(4)  # order: input, forget, cell, output
            if name.startswith("weight"):
                for gate in gates:
                    nn.init.xavier_uniform_(gate)
            else:
                parameter.detach().zero_()
                gates[1].fill_(1.0)  # on both biases, as in ML-Agents: memories persist initially

    def forward(self, features: Tensor, memories: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        """Run B / L sequences of L rows each, concatenated.

        Args:
            features: [B, inputs] the input.
            memories: [B / L, m] the memory before each sequence's first row; None for zeros.
            length: L, the number of rows per sequence.

        Returns:
            Outputs [B, m / 2], and the memories [B / L, m] after each sequence's last row.
        """
        sequences = features.view(len(features) // length, length, features.shape[1])
        before = None if memories is None else tuple(half.contiguous() for half in memories[None].chunk(2, dim=2))
        outputs, (h, c) = self.lstm(sequences, before)
        return outputs.reshape(-1, self.size), torch.cat((h, c), dim=2).squeeze(0)


# Goal conditioning: a hypernetwork generates the last hidden layer's weights from the goals.


class HyperLayer(nn.Module):
    """A linear layer whose matrix depends on a goal (Ha et al. 2017, "HyperNetworks").

    Two hidden layers with swish, a layer norm and one linear layer generate the matrix; the bias is an ordinary
    parameter. The initial weights are drawn as in ML-Agents.

    Args:
        inputs: width of the input.
        outputs: width of the output, and of the hypernetwork's layers.
        goals: width of the goal.
    """

    def __init__(self, inputs: int, outputs: int, goals: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(linear(goals, outputs), nn.SiLU(), linear(outputs, outputs), nn.SiLU())
        self.matrix = nn.Linear(outputs, inputs * outputs)
        # With this bound, a matrix generated from normalised activations has the same spread as an ordinary layer's.
        bound = sqrt(1.0 / (outputs * inputs))
        nn.init.uniform_(self.matrix.weight, -bound, bound)
        nn.init.zeros_(self.matrix.bias)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.shape = (inputs, outputs)

    def forward(self, x: Tensor, goals: Tensor) -> Tensor:
        """Map x [B, inputs] to [B, outputs], given each row's goal [B, goals]."""
        matrices = self.matrix(layer_norm(self.hidden(goals))).view(len(x), *self.shape)
        return torch.bmm(x.unsqueeze(1), matrices).squeeze(1) + self.bias


class NetworkBody(nn.Module):
    """Encoders of all observations, then hidden layers, then an LSTM if there is memory.

    With `goal_conditioning_type: hyper`, goals generate the last hidden layer's weights. A custom network replaces the
    encoders and hidden layers; if actions are inputs too, one hidden layer combines them with the custom network's
    encoding.

    Attributes:
        encoding_size: E, the width of the output.
        memory_size: m, the size of an agent's memory; 0 without memory.

    Args:
        design: the design, which gives observations, layer sizes and memory.
        extra: width of inputs other than observations (actions, in a Q network).

    Raises:
        StageError: if an encoder does not fit its observation, or a custom network breaks its protocol.
    """

    def __init__(self, design: PolicyDesign, extra: int = 0) -> None:
        super().__init__()
        settings, beside = design.settings, design.previous_action_size + extra
        self.encoders: Encoders | CustomNetwork
        if settings.network is None:
            self.encoders, hidden = Encoders(design), settings.widths
        else:
            self.encoders, hidden = CustomNetwork(design), settings.widths[-1:] if beside else ()
        self._previous = slice(self.encoders.size, self.encoders.size + design.previous_action_size)
        width, goals = self.encoders.size + beside, self.encoders.goal_size
        activation = ACTIVATIONS[settings.activation]
        layers: list[nn.Module] = []
        for units in hidden[:-1] if goals else hidden:
            layers += [hidden_linear(width, units, design.products), activation()]
            width = units
        self.layers = nn.Sequential(*layers)
        for part in (self.layers, self.encoders) if settings.network is None else (self.layers,):
            draw_weights(part, settings.initial_weights)
        self.hyper: HyperLayer | None = None
        if goals:
            self.hyper, width = HyperLayer(width, settings.widths[-1], goals), settings.widths[-1]
        self.activation = activation()
        self.memory_size = design.memory_size
        self.memory: Memory | None = None
        if self.memory_size:
            self.memory = Memory(width, self.memory_size)
            width = self.memory.size
        self.encoding_size = width

    @torch.no_grad()
    def start_without_previous_actions(self) -> None:
        """Set the first layer's new weights to those of a network without previous actions as inputs.

        The weights for previous actions become 0; the other weights are scaled to the size that they would have without
        those inputs.
        """
        columns = self._previous.stop - self._previous.start
        if columns and len(self.layers):
            first = self.layers[0]
            assert isinstance(first, nn.Linear)
            for parameter in (first.weight, first.bias):
                parameter *= sqrt(first.in_features / max(1, first.in_features - columns))
            first.weight[:, self._previous] = 0.0

    def forward(self, inputs: Inputs, extra: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Encode B rows.

        Args:
            inputs: the observations, previous actions and memories.
            extra: [B, extra] other inputs, such as actions.

        Returns:
            The encoding [B, E], and the memories [B / L, m] after each sequence's last row (None without memory).
        """
        features, goals = self.encoders(inputs)
        parts = [features]
        if self.memory is not None and inputs.previous_actions is not None:
            parts.append(inputs.previous_actions)
        if extra is not None:
            parts.append(extra)
        x = self.layers(torch.cat(parts, dim=1) if len(parts) > 1 else features)
        if self.hyper is not None:
            x = self.activation(self.hyper(x, goals))
        if self.memory is None:
            return x, None
        return self.memory(x, inputs.memories, inputs.sequence_length)  # type: ignore[no-any-return]  # untyped call


# The actor: a body, and one linear layer for the heads of all actions.

MU_GAIN = 0.2
LOGITS_GAIN = 0.1


class ActorNetwork(nn.Module):
    """Computes action head outputs: means, log σ if state-dependent (squashed, gSDE), then each branch's logits.

    The parameter `log_sigma` is [C] for a Gaussian that is not squashed; with gSDE it belongs to the noise matrix.

    Args:
        design: the policy's design.
        learns_by_noise: whether gSDE's standard deviations also pass gradients to the layers below (SAC).
    """

    def __init__(self, design: PolicyDesign, learns_by_noise: bool = False) -> None:
        super().__init__()
        actions = design.spec.actions
        self.body = NetworkBody(design)
        self.action = linear(self.body.encoding_size, design.output_size)
        gaussian = design.output_size - actions.mask_size
        draw_weights(self.action, design.settings.initial_weights, ACTION_GAIN)
        if design.settings.initial_weights == "default":
            with torch.no_grad():
                self.action.weight[:gaussian] *= MU_GAIN
                self.action.weight[gaussian:] *= LOGITS_GAIN
        shape = design.log_sigma_shape(self.body.encoding_size)
        self.log_sigma: nn.Parameter | None = None
        if shape is not None:
            self.log_sigma = nn.Parameter(torch.full(shape, design.settings.initial_log_std))
        self.squashed = design.squashed
        self._plain, self._gsde, self._learns_by_noise = design.plain, design.gsde, learns_by_noise
        self._continuous, self._mean_limit = actions.continuous_size, design.mean_limit

    @property
    def common_log_sigma(self) -> nn.Parameter | None:
        """[C] log σ of the continuous actions, shared by all states; None if it depends on the state."""
        return self.log_sigma if self._gsde is None else None

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the action head outputs [B, H] for B rows, and the memories after each sequence."""
        encoding, memories = self.body(inputs)
        return self.heads(encoding), memories

    def heads(self, encoding: Tensor) -> Tensor:
        """Return the action head outputs [B, H], given the body's output."""
        outputs: Tensor = self.action(encoding)
        if self._gsde is None or self.log_sigma is None:
            return outputs
        # Gives gSDE the same spreads as `stages/policy/sampling.py`.
        log_sigma, sigma = self.log_sigma, self.log_sigma.exp()
        if self._gsde.use_expln:
            above = (log_sigma.clamp(min=0.0) + GSDE_EPSILON).log1p() + 1.0
            sigma = torch.where(log_sigma > 0, above, log_sigma.clamp(max=0.0).exp())
        seen, c, limit = encoding if self._learns_by_noise else encoding.detach(), self._continuous, self._mean_limit
        variances = seen.square() @ sigma.square().expand(-1, c)
        means = outputs[:, :c].clamp(-limit, limit) if limit else outputs[:, :c]
        return torch.cat([means, 0.5 * (variances + GSDE_EPSILON).log(), outputs[:, c:]], dim=1)

    def acting_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all parameters except the normaliser's, with names and shapes as in `PolicyUpdate.layout`.

        A plain design uses the names of `policy_layout` (matrices are [in, out]); other designs use the parameters' own
        names.
        """
        return host_copies(self.acting_views(dict(self.named_parameters())))

    def load_acting(self, tensors: Mapping[str, Any]) -> None:
        """Load `acting_tensors()` from a policy update or a file; the normaliser's tensors are ignored.

        Raises:
            StageError: if a tensor is missing or unknown, or has the wrong shape; the message names it, and nothing is
                changed.
        """
        write_named(self.acting_views(dict(self.named_parameters())), without_normalizer(tensors), "policy")

    def acting_views(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the named tensors, detached.

        For a plain design, they are views with names and shapes as in `policy_layout`.
        """
        detached = {name: tensor.detach() for name, tensor in named.items()}
        if not self._plain:
            return detached
        layers = [at for at, module in enumerate(self.body.layers) if isinstance(module, nn.Linear)]
        of_layout = {f"body.{number}": f"body.layers.{at}" for number, at in enumerate(layers)} | {"action": "action"}
        views = {}
        for name, of_module in of_layout.items():
            views[f"{name}.weight"] = detached[f"{of_module}.weight"].T
            views[f"{name}.bias"] = detached[f"{of_module}.bias"]
        if "log_sigma" in detached:
            views["log_sigma"] = detached["log_sigma"]
        return views


def actor_tensors(design: PolicyDesign) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, shape) of each parameter of an actor, without memory for a size that may be only a file's word."""
    with torch.device("meta" if design.settings.network is None else "cpu"):
        return [(name, tuple(parameter.shape)) for name, parameter in untrained_actor(design).named_parameters()]


def untrained_actor(design: PolicyDesign) -> ActorNetwork:
    """Build a design's actor, into which weights can be loaded; torch's global random state does not change."""
    actor = seeded(np.random.default_rng(0), lambda: ActorNetwork(design))
    return actor.requires_grad_(False).eval()


def without_normalizer(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's tensors without the normaliser's."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("normalizer.")}
