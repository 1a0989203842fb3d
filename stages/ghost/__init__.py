"""The ghost stage: self-play. One team learns at a time, against frozen policies of the others (docs/self-play.md)."""

from headrace.stages.ghost.controller import GhostController, GhostPolicies, GhostStage
from headrace.stages.ghost.policy_history import (
    NEWEST,
    Candidate,
    OpponentSampler,
    PolicyHistory,
    PrioritisedOpponents,
    UniformOpponents,
)
from headrace.stages.ghost.rating import BrainLeague

__all__ = [
    "NEWEST",
    "BrainLeague",
    "Candidate",
    "GhostController",
    "GhostPolicies",
    "GhostStage",
    "OpponentSampler",
    "PolicyHistory",
    "PrioritisedOpponents",
    "UniformOpponents",
]
