"""The ghost stage: self-play. One team learns at a time, against frozen policies of the others (docs/self-play.md)."""

from headrace.stages.ghost.controller import GhostController
from headrace.stages.ghost.opponents import Candidate, OpponentSampler, PrioritisedOpponents, UniformOpponents
from headrace.stages.ghost.policy_history import NEWEST, PolicyHistory
from headrace.stages.ghost.snapshot_ratings import BrainLeague
from headrace.stages.ghost.stage import GhostPolicies, GhostStage

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
