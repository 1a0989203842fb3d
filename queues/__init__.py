"""Messages and the queues that carry them: specs, columns, queues within and between processes, stream files."""

from queues.agent_manager_queue import AgentManagerQueue, Producer
from queues.columns import Column
from queues.ends import Inlet, Outlet, Overflow, QueueStatistics
from queues.errors import QueueClosed, QueueEmpty, QueueError, QueueFull, ShapeError, SpecError, StreamError
from queues.messages import Assignment, Barrier, Matchup, PolicyUpdate, StepBatch, TrajectoryBatch
from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

__all__ = [
    "ActionSpec",
    "AgentManagerQueue",
    "Assignment",
    "Barrier",
    "BehaviorSpec",
    "Column",
    "Inlet",
    "Matchup",
    "ObservationSpec",
    "Outlet",
    "Overflow",
    "PolicyUpdate",
    "Producer",
    "QueueClosed",
    "QueueEmpty",
    "QueueError",
    "QueueFull",
    "QueueStatistics",
    "ShapeError",
    "SpecError",
    "StepBatch",
    "StreamError",
    "TrajectoryBatch",
]
