"""Messages and the queues that carry them: specs, columns, queues within and between processes, and stream files."""

from headrace.queues.agent_manager_queue import AgentManagerQueue, Overflow, Producer, QueueStatistics
from headrace.queues.columns import Column
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed, QueueEmpty, QueueError, QueueFull, ShapeError, SpecError, StreamError
from headrace.queues.messages import Assignment, Barrier, Matchup, PolicyUpdate, StepBatch, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

__all__ = [
    "ActionSpec",
    "AgentManagerQueue",
    "Assignment",
    "Barrier",
    "BehaviorSpec",
    "Column",
    "Matchup",
    "ObservationSpec",
    "Overflow",
    "PolicyUpdate",
    "Producer",
    "QueueClosed",
    "QueueEmpty",
    "QueueError",
    "QueueFull",
    "QueueStatistics",
    "Receiver",
    "Sender",
    "ShapeError",
    "SpecError",
    "StepBatch",
    "StreamError",
    "TrajectoryBatch",
]

if __name__ != "headrace.queues":  # a checkout is on `sys.path`, and the caller wants a different `queues` package
    raise ModuleNotFoundError("No module named 'queues'; Headrace's own is headrace.queues", name=__name__)
