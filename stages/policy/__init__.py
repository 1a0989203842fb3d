"""Policies: what acts, in NumPy. What is trained is in `stages.policy.network`, which imports torch."""

from stages.policy.encoders import ObservationEncoder
from stages.policy.layout import policy_layout
from stages.policy.normalizer import Normalizer
from stages.policy.numpy_policy import NumpyPolicy
from stages.policy.protocol import ActingPolicy, Decision

__all__ = ["ActingPolicy", "Decision", "Normalizer", "NumpyPolicy", "ObservationEncoder", "policy_layout"]
