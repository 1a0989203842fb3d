"""Generative adversarial imitation learning (GAIL): a reward for steps that resemble the demonstrations.

Ho & Ermon (2016), "Generative Adversarial Imitation Learning". A discriminator learns to distinguish demonstrated steps
from the agent's; the agent is rewarded for steps that the discriminator mistakes for the expert's. All rewards are
positive; docs/rewards.md explains the effect on episodes without a fixed length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import GAILSettings
from headrace.queues.messages import Array
from headrace.stages.errors import StageError
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


class GAIL(NetworkSignal):
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
        if not len(demonstrations):
            raise StageError(f"{self.where}: the demonstrations ({settings.demo_path}) contain no steps; record some")
        self._use_actions = settings.use_actions
        self._beta = 0.0
        self._steps = len(demonstrations)
        observed = ObservationLayout(context.spec).encode(demonstrations.observations)
        self._expert = Inputs.from_encoded(observed, context.device)
        self._expert_extra = self._extra(
            torch.tensor(demonstrations.continuous, device=context.device),
            torch.tensor(demonstrations.choices, device=context.device),
            torch.tensor(_terminated_rows(demonstrations), device=context.device),
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
        return imitation_rewards(self._module(self.normalized(transitions.inputs), self._own_extra(transitions))[0])

    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return discrimination loss + 10 · gradient penalty, plus β · (divergence − 0.5) with a bottleneck."""
        rows = len(transitions.rewards)
        policy, policy_extra = self.normalized(transitions.inputs), self._own_extra(transitions)
        expert, expert_extra = self._expert_batch(rows)
        expert_x, expert_seen = self._module(expert, expert_extra, self._noise(rows))
        policy_x, policy_seen = self._module(policy, policy_extra, self._noise(rows))
        discrimination = discrimination_loss(expert_x, policy_x)
        penalty = PENALTY_WEIGHT * self._penalty(expert, expert_extra, policy, policy_extra)
        reported = {
            "Losses/GAIL Loss": discrimination,
            "Policy/GAIL Policy Estimate": torch.sigmoid(policy_x).mean(),
            "Policy/GAIL Expert Estimate": torch.sigmoid(expert_x).mean(),
            "Policy/GAIL Grad Mag Loss": penalty,
        }
        loss = discrimination + penalty
        if self._module.bottleneck is not None:
            divergence = bottleneck_divergence(expert_seen, policy_seen, self._module.sigma)
            loss = loss + self._beta * (divergence - KL_TARGET)
            reported["Losses/GAIL KL Loss"] = divergence
        return loss, reported

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """Take a gradient step on these and equally many demonstrated steps; return losses, keyed by statistic name.

        Raises:
            NotFiniteError: if a loss or gradient is NaN or infinite; network and β are then unchanged.
        """
        reported = dict(super().learn(transitions))
        if self._module.bottleneck is not None:
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

    def _expert_batch(self, rows: int) -> tuple[Inputs, Tensor | None]:
        index = torch.from_numpy(self.random.integers(self._steps, size=rows)).to(self.device)
        extra = None if self._expert_extra is None else self._expert_extra[index]
        return self.normalized(self._expert.rows(index)), extra

    def _penalty(
        self, expert: Inputs, expert_extra: Tensor | None, policy: Inputs, policy_extra: Tensor | None
    ) -> Tensor:
        """Return the gradient penalty between pairs of rows, over all of the network's inputs."""
        share = self._drawn(self.random.random(len(policy.vectors), np.float32))
        between = Inputs(
            blend(expert.vectors, policy.vectors, share).requires_grad_(),
            tuple(blend(a, b, share).requires_grad_() for a, b in zip(expert.others, policy.others, strict=True)),
        )
        watched = [tensor for tensor in (between.vectors, *between.others) if tensor.numel()]
        extra = None
        if expert_extra is not None and policy_extra is not None:
            extra = blend(expert_extra, policy_extra, share).requires_grad_()
            watched.append(extra)
        # Without the bottleneck's noise, as for rewards: the function that computes rewards must be smooth.
        return gradient_penalty(torch.sigmoid(self._module(between, extra)[0]), watched)

    def _own_extra(self, transitions: Transitions) -> Tensor | None:
        return self._extra(transitions.continuous, transitions.choices, transitions.terminated)

    def _extra(self, continuous: Tensor, choices: Tensor, terminated: Tensor) -> Tensor | None:
        """Return the inputs other than observations, if any.

        These are actions, and 1 if the step ended the episode, else 0.
        """
        if not self._use_actions:
            return None
        features = action_inputs(self.design.spec.actions, continuous, choices)
        return torch.cat([features, terminated.float().unsqueeze(1)], dim=1)

    def _noise(self, rows: int) -> Tensor | None:
        """Return noise [rows, Z] for the bottleneck; None without a bottleneck."""
        if self._module.bottleneck is None:
            return None
        return self._drawn(self.random.standard_normal((rows, BOTTLENECK_SIZE), np.float32))

    def _drawn(self, numbers: np.ndarray[Any, np.dtype[np.float32]]) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)

    @property
    def _module(self) -> Discriminator:
        return cast("Discriminator", self.network.module)


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


def _terminated_rows(demonstrations: Demonstrations) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return an array [N]: 1 for the last row of each trajectory that terminated by the task's own rules, else 0."""
    rows = np.zeros(len(demonstrations), np.float32)
    rows[np.cumsum(demonstrations.lengths)[demonstrations.terminated] - 1] = 1.0
    return rows


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
