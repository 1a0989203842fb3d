"""An actor like PPO's, and a critic that evaluates the entire group, with or without one member's action.

Cohen et al. (2021), "On the Use and Misuse of Absorbing States in Multi-agent Reinforcement Learning": attention over
the members that are present replaces absorbing states for absent members. Axis letters: B agents, each at one moment; M
teammates in the largest group; U members in total; P features of an action; S reward signals; m memory size.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.network.actor_critic import ActorTower, FlatActor, WithActor, value_heads
from headrace.stages.policy.network.body import Encoders, Memory
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import ACTIVATIONS, Inputs, attention_linear, linear
from headrace.stages.policy.network.sets import HEADS, residual_attention


class Teams(NamedTuple):
    """B agents, each with its teammates. With memory, they are B / L sequences of L rows each, concatenated."""

    inputs: Inputs
    """[U, …] the members' observations, without memories."""
    actions: Tensor
    """[U, P] the members' actions."""
    members: Tensor
    """[B, 1 + M] int64 indices, among the U members, of the agent and its teammates."""
    present: Tensor
    """[B, 1 + M] true for members that are present; absent members have no influence."""
    size: Tensor
    """[B, 1] the number of present members, scaled so one member gives -1 and the largest number so far gives 1."""
    memories: Tensor | None = None
    """[B / L, 2m] memories for value and baseline before each sequence's first row; None without memory."""
    sequence_length: int = 1
    """L, the number of rows per sequence."""


class GroupCritic(nn.Module):
    """Computes group values from all observations, and counterfactual baselines also from the teammates' actions.

    Both use the same network; only the input about the teammates differs. The memory is the last layer before the
    heads. It follows the agent's group as long as the agent is present, separately for the value and the baseline.

    Args:
        design: the policy's design: observations, actions, sizes, memory.
        signals: S, the number of reward signals.

    Raises:
        StageError: if an encoder does not fit its observation, or a custom network breaks its contract.
    """

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        design = design.of_critic
        settings, actions = design.settings, design.spec.actions
        self.encoders: Encoders | CustomNetwork
        self.encoders = Encoders(design) if settings.network is None else CustomNetwork(design)
        width = -(-settings.widths[0] // HEADS) * HEADS
        self.seeing = attention_linear(self.encoders.size, width)
        self.doing = attention_linear(self.encoders.size + actions.continuous_size + actions.mask_size, width)
        self.query = attention_linear(width, width)
        self.key = attention_linear(width, width)
        self.value = attention_linear(width, width)
        self.out = attention_linear(width, width)
        layers: list[nn.Module] = []
        for hidden in settings.widths:
            layers += [linear(width, hidden, sqrt(0.125 / hidden)), ACTIVATIONS[settings.activation]()]
            width = hidden
        self.layers = nn.Sequential(*layers)
        self.memory: Memory | None = None
        if design.memory_size:
            self.memory = Memory(width, design.memory_size)
            width = self.memory.size
        self.heads = value_heads(width + 1, signals)

    def forward(self, teams: Teams) -> tuple[Tensor, Tensor, Tensor | None]:
        """Evaluate B agents.

        Returns:
            Values of the agents' groups [B, S], baselines [B, S], and the memories [B / L, 2m] after each sequence's
            last row (None without memory).
        """
        seen, _ = self.encoders(teams.inputs)
        seeing = nn.functional.silu(self.seeing(seen))[teams.members]
        doing = nn.functional.silu(self.doing(torch.cat([seen, teams.actions], dim=1)))[teams.members[:, 1:]]
        both = torch.cat([seeing, torch.cat([seeing[:, :1], doing], dim=1)])
        there = teams.present.repeat(2, 1)
        x = self.layers(residual_attention(both, there, self.query, self.key, self.value, self.out))
        after = None
        if self.memory is not None:
            before = None if teams.memories is None else torch.cat(teams.memories.chunk(2, dim=1))
            x, after = self.memory(x, before, teams.sequence_length)
            after = torch.cat(after.chunk(2), dim=1)
        values, baselines = self.heads(torch.cat([x, teams.size.repeat(2, 1)], dim=1)).chunk(2)
        return values, baselines, after


class GroupActorCritic(FlatActor["_ActorAndGroupCritic"]):
    """Actor and critic with one flat parameter vector; see `headrace.stages.policy.network.protocol.TrainedActor`.

    Args:
        design: observations, actions, sizes, memory.
        signals: S, the number of reward signals.
        random: the generator that draws the initial weights, which are the same on any device.
        device: the device that holds the parameters, such as `cpu` or `cuda:0`.

    Raises:
        StageError: if an encoder does not fit its observation, or a custom network breaks its contract.
    """

    def __init__(self, design: PolicyDesign, signals: int, random: np.random.Generator, device: str = "cpu") -> None:
        super().__init__(seeded(random, lambda: _ActorAndGroupCritic(design, signals)), device)
        self.tower = ActorTower(self, design) if design.perceptron else None
        """The actor, if it is a perceptron over vectors; otherwise None."""

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the actor's head outputs [B, H]."""
        found: Tensor = self.module.actor(inputs)[0]
        return found

    def values_and_baselines(self, teams: Teams) -> tuple[Tensor, Tensor]:
        """Return the values [B, S] of the agents' groups, and the counterfactual baselines [B, S]."""
        values, baselines, _ = self.module.critic(teams)
        return values, baselines

    def evaluate(self, teams: Teams, /) -> tuple[Tensor, Tensor | None]:
        """Return values and baselines, concatenated [B, 2S], and memories [B / L, 2m] after each sequence, if any."""
        values, baselines, memories = self.module.critic(teams)
        return torch.cat([values, baselines], dim=1), memories


class _ActorAndGroupCritic(WithActor):
    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        self.actor = ActorNetwork(design)
        self.critic = GroupCritic(design, signals)
