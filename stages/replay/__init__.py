"""Recording the messages of an edge, and replaying them in place of the stages that made them."""

from headrace.stages.replay.recorder import Recorder
from headrace.stages.replay.source import ReplaySource

__all__ = ["Recorder", "ReplaySource"]
