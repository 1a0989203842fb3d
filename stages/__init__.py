"""Stages: the base class, and one folder per pipeline stage. A custom stage needs only the names exported here.

This package imports neither torch nor an environment library, so importing it is fast. Trainers are in
`stages/trainer/`, policies in `headrace.stages.policy`, environments in `headrace.stages.environments`.
"""

from headrace.queues.messages import TrajectoryBatch
from headrace.stages.errors import BrokenEnvironmentError, LoadError, NotFiniteError, StageError
from headrace.stages.loop import StageHooks, StageRunner, run_source
from headrace.stages.stage import NoStatistics, Source, Stage, StageContext, Statistics, Yielded

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

if __name__ != "headrace.stages":  # a checkout is on `sys.path`, and the caller wants another project's `stages`
    raise ModuleNotFoundError("No module named 'stages'; Headrace's own is headrace.stages", name=__name__)
