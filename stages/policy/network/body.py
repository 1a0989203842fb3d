"""The body of a network: from observations (and actions) to an encoding, with a memory if the settings say so."""

from __future__ import annotations

import warnings
from math import sqrt

import torch
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.encoding import Encoders
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.layers import ACTIVATIONS, hidden_linear, layer_norm, linear

# The memory of a recurrent network: one LSTM layer (Hochreiter & Schmidhuber, 1997) after the hidden layers.

# On CUDA an LSTM's weights are copied into cuDNN's own order at each call, since they live in the flat vector of all
# parameters; the copy is small, and torch's advice to undo that would take them out of the optimizer's sight.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class Memory(nn.Module):
    """Runs over sequences; a memory is [h, c] end to end, half of `memory_size` each.

    Args:
        inputs: width of its input.
        memory_size: m, even; half of it is the width of the output.
    """

    def __init__(self, inputs: int, memory_size: int) -> None:
        super().__init__()
        self.size = memory_size // 2
        self.lstm = nn.LSTM(inputs, self.size, batch_first=True)
        for name, parameter in self.lstm.named_parameters():
            gates = parameter.detach().chunk(4)  # input, forget, cell, output
            if name.startswith("weight"):
                for gate in gates:
                    nn.init.xavier_uniform_(gate)
            else:
                parameter.detach().zero_()
                gates[1].fill_(1.0)  # on both biases, as in ML-Agents: memories stay at first

    def forward(self, features: Tensor, memories: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        """Run B / L sequences of L rows each, which lie end to end.

        Args:
            features: [B, inputs]
            memories: [B / L, m] before the first row of each sequence; None for zeros.
            length: L.

        Returns:
            [B, m / 2], and the memories [B / L, m] after the last row of each sequence.
        """
        sequences = features.view(len(features) // length, length, features.shape[1])
        if memories is None:
            outputs, (h, c) = self.lstm(sequences)
        else:
            before = memories.unsqueeze(0)
            h, c = before[..., : self.size].contiguous(), before[..., self.size :].contiguous()
            outputs, (h, c) = self.lstm(sequences, (h, c))
        return outputs.reshape(-1, self.size), torch.cat((h, c), dim=2).squeeze(0)


# Goal conditioning: a hypernetwork makes the last hidden layer's weights from the goals.


class HyperLayer(nn.Module):
    """A linear layer whose matrix depends on the goal; Ha et al. (2017), "HyperNetworks".

    Two hidden layers with swish, a layer norm and one linear layer make the matrix; the bias is a parameter as in any
    other layer. Initial weights are ML-Agents'.

    Args:
        inputs: width of its input.
        outputs: width of its output, and of the hypernetwork's layers.
        goals: width of the goal.
    """

    def __init__(self, inputs: int, outputs: int, goals: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(linear(goals, outputs), nn.SiLU(), linear(outputs, outputs), nn.SiLU())
        self.matrix = nn.Linear(outputs, inputs * outputs)
        # So small that the matrix made from normalised activations is spread like that of an ordinary layer.
        bound = sqrt(1.0 / (outputs * inputs))
        nn.init.uniform_(self.matrix.weight, -bound, bound)
        nn.init.zeros_(self.matrix.bias)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.shape = (inputs, outputs)

    def forward(self, x: Tensor, goals: Tensor) -> Tensor:
        """Map x [B, inputs] to [B, outputs] by the goals [B, goals] of the same rows."""
        matrices = self.matrix(layer_norm(self.hidden(goals))).view(len(x), *self.shape)
        return torch.bmm(x.unsqueeze(1), matrices).squeeze(1) + self.bias


class NetworkBody(nn.Module):
    """Encoders of all observations side by side, then hidden layers, then an LSTM if there is memory.

    Goals make the last hidden layer's weights, if the settings say so. A network of the user's own replaces encoders
    and hidden layers; where actions are inputs as well, one hidden layer joins them to its encoding.

    Attributes:
        encoding_size: width E of its output.
        memory_size: m, 0 without memory.

    Args:
        design: observations, sizes, memory.
        extra: width of the inputs beside observations (actions, in a Q network).

    Raises:
        StageError: if an encoder does not fit its observation, or the user's network is not what it should be.
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
            layers += [hidden_linear(width, units, design.bf16), activation()]
            width = units
        self.layers = nn.Sequential(*layers)
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
        """Make the first layer's weights, newly drawn, those of a network that does not see previous actions.

        Their columns become 0, and the others as large as they are drawn for so many fewer inputs.
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
            extra: [B, extra] beside them.

        Returns:
            [B, E], and the memories [B / L, m] after the last row of each sequence (None without memory).
        """
        features, goals = self.encoders(inputs)
        parts = [features, *(part for part in (self._previous_actions(inputs), extra) if part is not None)]
        x = self.layers(torch.cat(parts, dim=1) if len(parts) > 1 else features)
        if self.hyper is not None:
            x = self.activation(self.hyper(x, goals))
        if self.memory is None:
            return x, None
        return self.memory(x, inputs.memories, inputs.sequence_length)  # type: ignore[no-any-return]  # untyped call

    def _previous_actions(self, inputs: Inputs) -> Tensor | None:
        return inputs.previous_actions if self.memory_size else None
