"""Policies: they act. The networks that learn are in `stages.policy.network`, which imports torch."""

from stages.policy.design import PolicyDesign, design_of
from stages.policy.extra_columns import ActionDistributions, split_action_heads
from stages.policy.factory import make_policy
from stages.policy.layout import policy_layout
from stages.policy.normalizer import Normalizer
from stages.policy.numpy_policy import NumpyPolicy
from stages.policy.observations import ObservationLayout
from stages.policy.protocol import ActingPolicy, Decision, Recall

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
