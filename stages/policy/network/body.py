"""The body of a network: from observations (and actions) to an encoding, with a memory if the settings say so."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.encoding import Encoders
from headrace.stages.policy.network.goals import HyperLayer
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.layers import ACTIVATIONS, hidden_linear
from headrace.stages.policy.network.memory import Memory


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
