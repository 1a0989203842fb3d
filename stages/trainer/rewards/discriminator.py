"""GAIL's discriminator of demonstrations and the agent's own steps; its gradient penalty and bottleneck."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.images import pixels
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.layers import linear

BOTTLENECK_SIZE = 128
KL_TARGET = 0.5
"""Information that may pass the bottleneck, in nats: both sides' divergences (see `bottleneck_divergence`)."""
BETA_STEP = 0.0005
_ESTIMATE_GAIN = 0.2
_BOTTLENECK_GAIN = 0.1
_EPSILON = 1e-7


class Discriminator(nn.Module):
    """Computes x, where sigmoid(x) is the probability that a step was demonstrated.

    Args:
        design: observations and sizes.
        extra: width of its inputs beside observations: actions and done flag, or 0.
        use_vail: true for a variational bottleneck behind all inputs.
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
        """Judge B rows.

        Args:
            inputs: observations.
            extra: [B, extra], or None.
            noise: [B, Z] standard normal noise of the bottleneck; None for none.

        Returns:
            x [B]; and the bottleneck's means [B, Z], or the encoding.
        """
        encoding, _ = self.body(inputs, extra)
        if self.bottleneck is None:
            return self.estimate(encoding).squeeze(1), encoding
        means = self.bottleneck(encoding)
        seen = means if noise is None else means + noise * self.sigma
        return self.estimate(seen).squeeze(1), means


def blend(expert: Tensor, own: Tensor, share: Tensor) -> Tensor:
    """Points [B, …] on the lines between pairs of rows; `share` [B] is the weight of the expert's.

    Gulrajani et al. (2017), "Improved Training of Wasserstein GANs", algorithm 1. Bytes (of images) become 0 to 1
    before, as in encoders, so that there are values in between.
    """
    a, b = pixels(expert), pixels(own)
    return torch.lerp(b, a, share.view(-1, *[1] * (a.ndim - 1)))


def gradient_penalty(outputs: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """(‖gradient‖ − 1)², averaged over rows; differentiable.

    Args:
        outputs: [B], each depends on its own row of inputs only.
        inputs: [B, …] float tensors; the gradient's norm is over all of them together.
    """
    # allow_unused: a network of the user's own need not use every observation.
    gradients = torch.autograd.grad(outputs.sum(), inputs, create_graph=True, allow_unused=True)
    squares = sum((each.flatten(1).square().sum(dim=1) for each in gradients if each is not None), torch.zeros(()))
    # The root of exactly 0 would have an infinite gradient.
    return (torch.sqrt(squares + _EPSILON) - 1.0).square().mean()


def bottleneck_divergence(expert_means: Tensor, own_means: Tensor, sigma: Tensor) -> Tensor:
    """KL divergences of N(means, σ²) from N(0, 1), the expert's and the agent's added, averaged over rows: a scalar.

    Peng et al. (2018), "Variational Discriminator Bottleneck", take the mean of the two; as in ML-Agents it is their
    sum, so that `KL_TARGET` means the same.

    Args:
        expert_means: [B, Z]
        own_means: [B, Z]
        sigma: [Z] standard deviations.
    """
    variance = sigma.square()
    inside = 1.0 + variance.log() - 0.5 * expert_means.square() - 0.5 * own_means.square() - variance
    return -inside.sum(dim=1).mean()


def next_beta(beta: float, divergence: float) -> float:
    """The weight of the bottleneck's divergence after a step: dual gradient ascent (Peng et al. 2018), ≥ 0."""
    return max(0.0, beta + BETA_STEP * (divergence - KL_TARGET))
