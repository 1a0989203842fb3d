"""Policies: they act. The networks that learn are in `headrace.stages.policy.network`, which imports torch."""

from headrace.stages.policy.design import PolicyDesign, design_of
from headrace.stages.policy.extra_columns import ActionDistributions, split_action_heads
from headrace.stages.policy.factory import make_policy
from headrace.stages.policy.layout import policy_layout
from headrace.stages.policy.normalizer import Normalizer
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.observations import ObservationLayout
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
