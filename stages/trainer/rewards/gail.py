"""Generative adversarial imitation learning (GAIL): a reward for steps that resemble the demonstrations.

Ho & Ermon (2016), "Generative Adversarial Imitation Learning". A discriminator learns to distinguish demonstrated steps
from the agent's; the agent is rewarded for steps that the discriminator mistakes for the expert's. All rewards are
positive; docs/rewards.md explains the effect on episodes without a fixed length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import GAILSettings
from headrace.queues.messages import Array
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.images import pixels
from headrace.stages.policy.network.layers import Inputs, linear
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.imitation.demonstrations import Demonstrations
from headrace.stages.trainer.imitation.loading import load_demonstrations
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards.signal import NetworkSignal, action_inputs

PENALTY_WEIGHT = 10.0
_EPSILON = 1e-7
_Seen = tuple[Inputs, Tensor | None]
"""Normalised observations, and the discriminator's other inputs [B, extra]; None if there are none."""


# The discriminator between demonstrated steps and the agent's, its gradient penalty, and its bottleneck.

BOTTLENECK_SIZE = 128
KL_TARGET = 0.5
"""Target, in nats, for the information that passes the bottleneck, which is the sum in `bottleneck_divergence`."""
BETA_STEP = 0.0005
_ESTIMATE_GAIN = 0.2
_BOTTLENECK_GAIN = 0.1


class Discriminator(nn.Module):
    """Computes a logit x: sigmoid(x) is the probability that a step was demonstrated.

    Args:
        design: observations and sizes.
        extra: width of the inputs other than observations (actions and done flag); 0 if there are none.
        use_vail: whether there is a variational bottleneck after all inputs.
    """

    def __init__(self, design: PolicyDesign, extra: int, use_vail: bool) -> None:
        super().__init__()
        self.body = NetworkBody(design, extra)
        width = self.body.encoding_size
        self.bottleneck: nn.Linear | None = None
        if use_vail:
            self.bottleneck = linear(width, BOTTLENECK_SIZE, _BOTTLENECK_GAIN)
            self.sigma = nn.Parameter(torch.ones(BOTTLENECK_SIZE))
            width = BOTTLENECK_SIZE
        self.estimate = linear(width, 1, _ESTIMATE_GAIN)

    def forward(self, inputs: Inputs, extra: Tensor | None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Classify B rows.

        Args:
            inputs: observations.
            extra: [B, extra] the other inputs; None if there are none.
            noise: [B, Z] standard normal noise for the bottleneck; None for no noise.

        Returns:
            x [B], and the bottleneck's means [B, Z], or the encoding without a bottleneck.
        """
        encoding, _ = self.body(inputs, extra)
        if self.bottleneck is None:
            return self.estimate(encoding).squeeze(1), encoding
        means = self.bottleneck(encoding)
        seen = means if noise is None else means + noise * self.sigma
        return self.estimate(seen).squeeze(1), means


class GAIL(NetworkSignal[Discriminator]):
    """Rewards steps that the discriminator mistakes for the expert's.

    Args:
        name: the signal's key in the YAML.
        settings: the signal's block in the YAML.
        context: the trainer's context.
        seed: seed of the signal's random draws.
        demonstrations: the expert's steps; None to load them from `demo_path`.

    Raises:
        StageError: if there are no demonstrations, or they can't be read or don't fit.
    """

    def __init__(
        self,
        name: str,
        settings: GAILSettings,
        context: TrainerContext,
        seed: int,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        if demonstrations is None:
            demonstrations = load_demonstrations(settings.demo_path, context.spec, context.folder)
        super().__init__(name, settings, context, seed)
        self._use_actions = settings.use_actions
        self._beta = 0.0
        self._steps = len(demonstrations)
        observed = ObservationLayout(context.spec).encode(demonstrations.observations)
        ends = np.cumsum(demonstrations.lengths)[demonstrations.terminated] - 1
        terminated = torch.zeros(self._steps, device=context.device)
        terminated[torch.from_numpy(ends)] = 1.0
        nothing = torch.empty(self._steps, 0, device=context.device)
        self._expert = Transitions(
            inputs=Inputs.from_encoded(observed, context.device),
            next_inputs=Inputs(nothing),  # the discriminator sees neither these nor rewards
            continuous=torch.tensor(demonstrations.continuous, device=context.device),
            choices=torch.tensor(demonstrations.choices, device=context.device),
            rewards=torch.zeros_like(terminated),
            terminated=terminated,
        )
        if self.normalizer is not None:
            # The demonstrations never change, so one update covers all of them, and the normaliser never shifts.
            self.normalizer.update(observed.vectors)

    def build(self, settings: GAILSettings) -> Discriminator:
        """Make the discriminator."""
        actions = self.design.spec.actions
        extra = actions.continuous_size + actions.mask_size + 1 if settings.use_actions else 0
        return Discriminator(self.design, extra, settings.use_vail)

    def compute(self, transitions: Transitions) -> Tensor:
        """Return −ln(1 − D·(1 − 1e-7)), computed without the bottleneck's noise."""
        return imitation_rewards(self.network.module(*self._seen(transitions))[0])

    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return discrimination loss + 10 · gradient penalty, plus β · (divergence − 0.5) with a bottleneck."""
        rows = len(transitions.rewards)
        index = torch.from_numpy(self.random.integers(self._steps, size=rows)).to(self.device)
        expert, policy = self._seen(self._expert.rows(index)), self._seen(transitions)
        expert_x, expert_means = self.network.module(*expert, self._noise(rows))
        policy_x, policy_means = self.network.module(*policy, self._noise(rows))
        discrimination = discrimination_loss(expert_x, policy_x)
        penalty = PENALTY_WEIGHT * self._penalty(expert, policy)
        reported = {
            "Losses/GAIL Loss": discrimination,
            "Policy/GAIL Policy Estimate": torch.sigmoid(policy_x).mean(),
            "Policy/GAIL Expert Estimate": torch.sigmoid(expert_x).mean(),
            "Policy/GAIL Grad Mag Loss": penalty,
        }
        loss = discrimination + penalty
        if self.network.module.bottleneck is not None:
            divergence = bottleneck_divergence(expert_means, policy_means, self.network.module.sigma)
            loss = loss + self._beta * (divergence - KL_TARGET)
            reported["Losses/GAIL KL Loss"] = divergence
        return loss, reported

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """Take a gradient step on these and equally many demonstrated steps; return losses, keyed by statistic name.

        Raises:
            NotFiniteError: if a loss or gradient is NaN or infinite; network and β are then unchanged.
        """
        reported = dict(super().learn(transitions))
        if self.network.module.bottleneck is not None:
            self._beta = next_beta(self._beta, reported["Losses/GAIL KL Loss"])
            reported["Policy/GAIL Beta"] = self._beta
        return reported

    def observe(self, vectors: Array) -> None:
        """Do nothing, because the normaliser uses only the demonstrations."""

    def state_dict(self) -> dict[str, Any]:
        """Return network, optimizer, normaliser, random state and β."""
        return {**super().state_dict(), "beta": self._beta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        super().load_state_dict(state)
        self._beta = float(state["beta"])

    def _seen(self, transitions: Transitions) -> _Seen:
        """Return the normalised observations, and the other inputs [B, extra], if any.

        These are actions, and 1 if the step ended the episode, else 0.
        """
        extra = None
        if self._use_actions:
            features = action_inputs(self.design.spec.actions, transitions.continuous, transitions.choices)
            extra = torch.cat([features, transitions.terminated.float().unsqueeze(1)], dim=1)
        return self.normalized(transitions.inputs), extra

    def _penalty(self, expert: _Seen, policy: _Seen) -> Tensor:
        """Return the gradient penalty between pairs of rows, over all of the network's inputs."""
        (ours, our_extra), (theirs, their_extra) = expert, policy
        share = torch.from_numpy(self.random.random(len(theirs.vectors), np.float32)).to(self.device)
        between = Inputs(
            blend(ours.vectors, theirs.vectors, share).requires_grad_(),
            tuple(blend(a, b, share).requires_grad_() for a, b in zip(ours.others, theirs.others, strict=True)),
        )
        watched = [tensor for tensor in (between.vectors, *between.others) if tensor.numel()]
        extra = None
        if our_extra is not None and their_extra is not None:
            extra = blend(our_extra, their_extra, share).requires_grad_()
            watched.append(extra)
        # Without the bottleneck's noise, as for rewards: the function that computes rewards must be smooth.
        return gradient_penalty(torch.sigmoid(self.network.module(between, extra)[0]), watched)

    def _noise(self, rows: int) -> Tensor | None:
        """Return noise [rows, Z] for the bottleneck; None without a bottleneck."""
        if self.network.module.bottleneck is None:
            return None
        return torch.from_numpy(self.random.standard_normal((rows, BOTTLENECK_SIZE), np.float32)).to(self.device)


def imitation_rewards(x: Tensor) -> Tensor:
    """Return −ln(1 − D·(1 − 1e-7)) for D = sigmoid(x), [B], which is between 0 and 16.1.

    It is computed as −ln((1 − D) + 1e-7·D), which is precise even for D near 1.
    """
    return -torch.log(torch.sigmoid(-x) + _EPSILON * torch.sigmoid(x))


def discrimination_loss(expert_x: Tensor, own_x: Tensor) -> Tensor:
    """Return −mean(ln(D + 1e-7) of demonstrated steps + ln(1 − D + 1e-7) of the agent's), with D = sigmoid(x).

    This is equation 17 of Ho & Ermon (2016), with its sign reversed for gradient descent.
    """
    return -(torch.log(torch.sigmoid(expert_x) + _EPSILON) + torch.log(torch.sigmoid(-own_x) + _EPSILON)).mean()


def blend(expert: Tensor, policy: Tensor, share: Tensor) -> Tensor:
    """Return points [B, …] on the lines between pairs of rows; `share` [B] is the weight of the expert's rows.

    Gulrajani et al. (2017), "Improved Training of Wasserstein GANs", algorithm 1. Bytes, as in images, are first scaled
    to the range from 0 to 1, as in encoders, so intermediate values exist.
    """
    a, b = pixels(expert, share.dtype), pixels(policy, share.dtype)
    return torch.lerp(b, a, share.view(-1, *[1] * (a.ndim - 1)))


def gradient_penalty(outputs: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return (‖gradient‖ − 1)², averaged over rows. The result is differentiable.

    Args:
        outputs: [B] outputs, each of which depends only on its own row of the inputs.
        inputs: [B, …] float tensors; the norm is that of the gradient with respect to all of them together.
    """
    # allow_unused: a custom network need not use every observation.
    gradients = torch.autograd.grad(outputs.sum(), inputs, create_graph=True, allow_unused=True)
    squares = sum(
        (gradient.flatten(1).square().sum(dim=1) for gradient in gradients if gradient is not None), torch.zeros(())
    )
    # A square root of exactly 0 would have an infinite gradient.
    return (torch.sqrt(squares + _EPSILON) - 1.0).square().mean()


def bottleneck_divergence(expert_means: Tensor, own_means: Tensor, sigma: Tensor) -> Tensor:
    """Return the KL divergences of N(means, σ²) from N(0, 1), expert's plus agent's, averaged over rows.

    Peng et al. (2018), "Variational Discriminator Bottleneck", use the mean of the two; ML-Agents uses their sum, for
    which `KL_TARGET` is defined.

    Args:
        expert_means: [B, Z] the bottleneck's means for the expert's rows.
        own_means: [B, Z] the bottleneck's means for the agent's rows.
        sigma: [Z] standard deviations.
    """
    variance = sigma.square()
    inside = 1.0 + variance.log() - 0.5 * expert_means.square() - 0.5 * own_means.square() - variance
    return -inside.sum(dim=1).mean()


def next_beta(beta: float, divergence: float) -> float:
    """Return β, the divergence's weight, after a step of dual gradient ascent (Peng et al. 2018); it is at least 0."""
    return max(0.0, beta + BETA_STEP * (divergence - KL_TARGET))
