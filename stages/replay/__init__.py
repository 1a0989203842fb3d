"""Recording an edge's messages, and replaying them in place of the stages that produced them."""

from headrace.stages.replay.recorder import Recorder
from headrace.stages.replay.source import ReplaySource

__all__ = ["Recorder", "ReplaySource"]
