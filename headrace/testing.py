"""Headrace's built-in stages, and a way to run a single stage between plain queues (docs/testing-stages.md)."""

from __future__ import annotations

from headrace.queues import AgentManagerQueue, Barrier
from headrace.queues.stream_file import StreamHeader, StreamWriter
from headrace.stages.actor import Actor, ActorPort, CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.evaluation import EvaluationStage
from headrace.stages.evaluation.opponents import NewestOpponents
from headrace.stages.ghost import GhostController, GhostPolicies, GhostStage
from headrace.stages.loop import StageHooks, StageRunner
from headrace.stages.publisher import PolicyPublisher, PublisherPort
from headrace.stages.replay import Recorder, ReplaySource
from headrace.stages.trainer.report import TrainerPort
from headrace.stages.trainer.stage import TrainerStage

__all__ = [
    "Actor",
    "ActorPort",
    "AgentManagerQueue",
    "AgentProcessor",
    "Barrier",
    "CreditGate",
    "EnvironmentRequest",
    "EnvironmentStage",
    "EvaluationStage",
    "GhostController",
    "GhostPolicies",
    "GhostStage",
    "NewestOpponents",
    "PolicyMappings",
    "PolicyPublisher",
    "PublisherPort",
    "Recorder",
    "ReplaySource",
    "StageHooks",
    "StageRunner",
    "StreamHeader",
    "StreamWriter",
    "TrainerPort",
    "TrainerStage",
    "make_group",
]
