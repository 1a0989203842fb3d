"""Curiosity: a reward for transitions that are hard to predict, in features that the agent can influence.

Pathak, Agrawal, Efros & Darrell (2017), "Curiosity-driven Exploration by Self-supervised Prediction". An encoder f
turns observations into features. An inverse model predicts the action from f(s) and f(s'), so the features retain what
actions influence. A forward model predicts f(s') from f(s) and the action, and its error is the reward.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.config import CuriositySettings
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import Inputs, linear
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.rewards.signal import NetworkSignal, action_inputs

_MODEL_UNITS = 256
_FORWARD_WEIGHT = 0.2
_LOSS_FACTOR = 10.0


class CuriosityNetwork(nn.Module):
    """An encoder with a forward model and an inverse model."""

    def __init__(self, design: PolicyDesign) -> None:
        super().__init__()
        actions = design.spec.actions
        features = actions.continuous_size + actions.mask_size
        self.body = NetworkBody(design)
        width = self.body.encoding_size
        self.forward_model = nn.Sequential(
            linear(width + features, _MODEL_UNITS), nn.SiLU(), linear(_MODEL_UNITS, width)
        )
        self.inverse_model = nn.Sequential(linear(2 * width, _MODEL_UNITS), nn.SiLU(), linear(_MODEL_UNITS, features))

    def encode(self, inputs: Inputs, next_inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return features [B, E] of s and of s', computed in one pass."""
        both = Inputs(
            torch.cat([inputs.vectors, next_inputs.vectors]),
            tuple(torch.cat(pair) for pair in zip(inputs.others, next_inputs.others, strict=True)),
        )
        encoding, _ = self.body(both)
        before, after = encoding.chunk(2)
        return before, after


class Curiosity(NetworkSignal[CuriosityNetwork]):
    """Rewards the error of the forward model.

    A terminated episode's last step has reward 0, and is excluded from the losses. The observation after it may be
    meaningless (zeros, the start of the next episode, or a substitute for non-finite numbers), and a reward for it
    would attract the agent to endings that are hard to predict.
    """

    ignores_termination: ClassVar[bool] = True

    def build(self, settings: CuriositySettings) -> CuriosityNetwork:
        """Make the encoder and both models."""
        return CuriosityNetwork(self.design)

    def compute(self, transitions: Transitions) -> Tensor:
        """Return 0.5·‖f(s') − prediction‖², but at most 1 / strength; 0 before the first update."""
        rewards = torch.zeros_like(transitions.rewards)
        going_on = transitions.terminated == 0
        if self.updates == 0 or not bool(going_on.any()):
            return rewards
        _, predicted, after = self._predict(transitions.rows(going_on))
        surprise = forward_errors(predicted, after)
        if self.strength:
            surprise = surprise.clamp(max=1.0 / abs(self.strength))
        rewards[going_on] = surprise
        return rewards

    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return 10 · (0.2 · forward loss + 0.8 · inverse loss): equation 7 with β = 0.2, without the policy's term."""
        kept = transitions.rows(transitions.terminated == 0)
        before, predicted, after = self._predict(kept)
        heads = self.network.module.inverse_model(torch.cat([before, after], dim=1))
        rows = max(1, len(kept.rewards))  # a minibatch that contains only endings has no loss
        forward_loss = forward_errors(predicted, after).sum() / rows
        inverse_loss = inverse_errors(self.design.spec.actions, heads, kept.continuous, kept.choices).sum() / rows
        loss = _LOSS_FACTOR * (_FORWARD_WEIGHT * forward_loss + (1.0 - _FORWARD_WEIGHT) * inverse_loss)
        return loss, {"Losses/Curiosity Forward Loss": forward_loss, "Losses/Curiosity Inverse Loss": inverse_loss}

    def _predict(self, transitions: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features [B, E] of s, the predicted features of s', and the actual features of s'."""
        inputs, next_inputs = self.normalized(transitions.inputs), self.normalized(transitions.next_inputs)
        before, after = self.network.module.encode(inputs, next_inputs)
        actions = action_inputs(self.design.spec.actions, transitions.continuous, transitions.choices)
        return before, self.network.module.forward_model(torch.cat([before, actions], dim=1)), after


def forward_errors(predicted: Tensor, after: Tensor) -> Tensor:
    """Return 0.5·‖f(s') − prediction‖² of each row [B], from features [B, E] (equations 5 and 6)."""
    return 0.5 * (after - predicted).square().sum(dim=1)


def inverse_errors(actions: ActionSpec, heads: Tensor, continuous: Tensor, choices: Tensor) -> Tensor:
    """Return each row's error of the predicted action [B]: squared error, plus the branches' cross-entropies (eq. 3).

    Args:
        actions: the actions' spec.
        heads: [B, C + choices] predicted continuous actions, followed by each branch's logits.
        continuous: [B, C] the actions taken.
        choices: [B, branches] the choices taken.
    """
    c = actions.continuous_size
    errors = (heads[:, :c] - continuous).square().sum(dim=1)
    if actions.discrete_branches:
        for branch, logits in enumerate(torch.split(heads[:, c:], list(actions.discrete_branches), dim=1)):
            errors = errors + F.cross_entropy(logits, choices[:, branch], reduction="none")
    return errors
