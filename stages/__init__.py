"""Stages: the base class, and one folder per stage of the pipeline. A custom stage needs no more than these names.

Light on purpose: neither torch nor an environment library is imported here. Trainers are in `stages.trainer`, policies
in `stages.policy`, environments in `stages.environment`.
"""

from queues.messages import TrajectoryBatch
from stages.errors import BrokenEnvironmentError, LoadError, NotFiniteError, StageError
from stages.loop import StageHooks, StageRunner, run_source
from stages.stage import NoStatistics, Source, Stage, StageContext, Statistics, Yielded

__all__ = [
    "BrokenEnvironmentError",
    "LoadError",
    "NoStatistics",
    "NotFiniteError",
    "Source",
    "Stage",
    "StageContext",
    "StageError",
    "StageHooks",
    "StageRunner",
    "Statistics",
    "TrajectoryBatch",
    "Yielded",
    "run_source",
]
