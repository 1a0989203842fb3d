"""Headrace's built-in stages, and a way to run a single stage between plain queues (docs/testing-stages.md)."""

from __future__ import annotations

from headrace.queues import AgentManagerQueue as AgentManagerQueue
from headrace.queues import Barrier as Barrier
from headrace.queues.stream_file import StreamHeader as StreamHeader
from headrace.queues.stream_file import StreamWriter as StreamWriter
from headrace.stages.actor import Actor as Actor
from headrace.stages.actor import ActorPort as ActorPort
from headrace.stages.actor import CreditGate as CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage as EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings as PolicyMappings
from headrace.stages.agent import AgentProcessor as AgentProcessor
from headrace.stages.environments.factory import EnvironmentRequest as EnvironmentRequest
from headrace.stages.environments.factory import make_group as make_group
from headrace.stages.evaluation import EvaluationStage as EvaluationStage
from headrace.stages.evaluation.opponents import NewestOpponents as NewestOpponents
from headrace.stages.ghost import GhostController as GhostController
from headrace.stages.ghost import GhostPolicies as GhostPolicies
from headrace.stages.ghost import GhostStage as GhostStage
from headrace.stages.loop import StageHooks as StageHooks
from headrace.stages.loop import StageRunner as StageRunner
from headrace.stages.publisher import PolicyPublisher as PolicyPublisher
from headrace.stages.publisher import PublisherPort as PublisherPort
from headrace.stages.replay import Recorder as Recorder
from headrace.stages.replay import ReplaySource as ReplaySource
from headrace.stages.trainer.report import TrainerPort as TrainerPort
from headrace.stages.trainer.stage import TrainerStage as TrainerStage

__all__ = [name for name in dir() if name[0] != "_" and name != "annotations"]
