"""Policies for acting. The trainable networks are in `headrace.stages.policy.network`, which imports torch."""

from headrace.stages.policy.design import (
    ActionDistributions,
    PolicyDesign,
    design_of,
    policy_layout,
    split_action_heads,
)
from headrace.stages.policy.numpy_policy import NumpyPolicy, make_policy
from headrace.stages.policy.observations import Normalizer, ObservationLayout
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall

__all__ = [
    "ActingPolicy",
    "ActionDistributions",
    "Decision",
    "Normalizer",
    "NumpyPolicy",
    "ObservationLayout",
    "PolicyDesign",
    "Recall",
    "design_of",
    "make_policy",
    "policy_layout",
    "split_action_heads",
]
