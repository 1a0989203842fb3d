"""Recording what flows over an edge, and replaying it in place of the stages that made it."""

from stages.replay.recorder import Recorder
from stages.replay.source import ReplaySource

__all__ = ["Recorder", "ReplaySource"]
