"""Recording what flows over an edge, and replaying it in place of the stages that made it."""

from headrace.stages.replay.recorder import Recorder
from headrace.stages.replay.source import ReplaySource

__all__ = ["Recorder", "ReplaySource"]
