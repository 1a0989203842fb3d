"""The networks of soft actor-critic beside the actor: Q, V, and the entropy coefficients.

The actor is `stages.policy.network.ActorNetwork`. All of them have the body that the settings describe, each its own.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn

from stages.policy.design import PolicyDesign
from stages.policy.network.body import NetworkBody
from stages.policy.network.inputs import Inputs


class ValueNetwork(nn.Module):
    """V: what a state is worth under the policy, entropy included, for each of S reward signals."""

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        self.body = NetworkBody(design)
        self.head = _value_head(self.body.encoding_size, signals)

    def forward(self, inputs: Inputs) -> Tensor:
        """Values [B, S] of B rows."""
        encoding, _ = self.body(inputs)
        values: Tensor = self.head(encoding)
        return values


class QNetwork(nn.Module):
    """Q: what an action is worth in a state, for each of S reward signals.

    Continuous actions go in; of discrete ones, the worth of all A choices comes out. A = 1 without any.
    """

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        actions = design.spec.actions
        self._signals = signals
        self._takes_actions = actions.continuous_size > 0
        self.body = NetworkBody(design, extra=actions.continuous_size)
        self.head = _value_head(self.body.encoding_size, signals * max(1, actions.mask_size))

    def forward(self, inputs: Inputs, continuous: Tensor) -> Tensor:
        """Values [B, S, A] of B rows with continuous actions [B, C]."""
        encoding, _ = self.body(inputs, continuous if self._takes_actions else None)
        values: Tensor = self.head(encoding)
        return values.view(len(encoding), self._signals, -1)


class Critics(nn.Module):
    """Both Q networks and V, which one optimizer trains."""

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        self.q1 = QNetwork(design, signals)
        self.q2 = QNetwork(design, signals)
        self.value = ValueNetwork(design, signals)  # last: its parameters are the end of the flat vector


class EntropyCoefficients(nn.Module):
    """One for all continuous actions together if there are any, then one per discrete branch: G in all."""

    def __init__(self, design: PolicyDesign, initial: float) -> None:
        super().__init__()
        actions = design.spec.actions
        groups = (actions.continuous_size > 0) + len(actions.discrete_branches)
        self.logs = nn.Parameter(torch.full((groups,), log(initial)))


def _value_head(inputs: int, outputs: int) -> nn.Linear:
    """A layer with ML-Agents' initial weights of value heads: Xavier uniform, biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
