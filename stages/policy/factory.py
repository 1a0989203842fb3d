"""Makes the acting policy of a design."""

from __future__ import annotations

from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.protocol import ActingPolicy

TORCH_POLICY = "headrace.stages.policy.network.torch_policy:TorchPolicy"
"""The class for designs that are not plain; a string, so that torch is imported only where a design needs it."""


def make_policy(design: PolicyDesign, device: str = "cpu") -> ActingPolicy:
    """An acting policy; its weights come with the first update.

    Args:
        design: what it is like.
        device: the torch device on which it computes.

    Raises:
        StageError: if the design can't be built: an observation or a network that does not fit.
    """
    if design.plain and device == "cpu":
        return NumpyPolicy(design)
    policy: ActingPolicy = load_attribute(TORCH_POLICY, None, "policy")(design, device)
    return policy
