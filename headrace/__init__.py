"""Headrace's public API: the names that scripts, notebooks and user modules import.

Names are imported from their modules on first use, so `import headrace` is fast. Less common names are in separate
modules: `headrace.training` (parts for custom trainers), `headrace.testing` (running a single stage), `headrace.games`,
`headrace.unity`, `headrace.godot`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# A top-level package named `config` could clash with one of the user's packages, so Headrace's packages are subpackages
# (docs/decisions/001). In a checkout, they are next to this folder, and this folder contains links to them.
if not os.path.isdir(os.path.join(__path__[0], "config")):  # a checkout without links, as on Windows
    __path__.append(os.path.dirname(__path__[0]))
    sys.modules[f"{__name__}.{__name__}"] = None  # type: ignore[assignment]  # else this module would be there too

if TYPE_CHECKING:
    from headrace.config import ConfigError as ConfigError
    from headrace.config import EnvironmentSettings as EnvironmentSettings
    from headrace.config import NetworkSettings as NetworkSettings
    from headrace.config import RewardSignalSettings as RewardSignalSettings
    from headrace.config import RunConfig as RunConfig
    from headrace.config import SelfPlaySettings as SelfPlaySettings
    from headrace.config import load_config as load_config
    from headrace.config.environment_kinds import ENVIRONMENT_KINDS as ENVIRONMENT_KINDS
    from headrace.config.environment_kinds import EnvironmentKind as EnvironmentKind
    from headrace.pipeline.common.errors import PredictError as PredictError
    from headrace.pipeline.common.errors import RunError as RunError
    from headrace.pipeline.common.errors import RunFailed as RunFailed
    from headrace.pipeline.common.errors import RunFolderError as RunFolderError
    from headrace.pipeline.diagnosis.rules import Evidence as Evidence
    from headrace.pipeline.diagnosis.rules import Finding as Finding
    from headrace.pipeline.policies.export import read_export as read_export
    from headrace.pipeline.prediction.evaluate import EvaluatedPolicy as EvaluatedPolicy
    from headrace.pipeline.prediction.evaluate import evaluate as evaluate
    from headrace.pipeline.prediction.nash_conv import nash_conv as nash_conv
    from headrace.pipeline.prediction.policy import LoadedMixture as LoadedMixture
    from headrace.pipeline.prediction.policy import LoadedPolicy as LoadedPolicy
    from headrace.pipeline.prediction.policy import load_policy as load_policy
    from headrace.pipeline.reporting.statistics import StatisticsWriter as StatisticsWriter
    from headrace.pipeline.reporting.statistics import Summary as Summary
    from headrace.pipeline.run import RunResult as RunResult
    from headrace.pipeline.run import load as load
    from headrace.pipeline.run import run as run
    from headrace.pipeline.run import run_async as run_async
    from headrace.pipeline.run_folder.checkpoint import newest_checkpoint as newest_checkpoint
    from headrace.pipeline.run_handle import CheckpointWritten as CheckpointWritten
    from headrace.pipeline.run_handle import RunOptions as RunOptions
    from headrace.pipeline.run_handle import StopRequest as StopRequest
    from headrace.pipeline.run_handle import SummaryWritten as SummaryWritten
    from headrace.queues import ActionSpec as ActionSpec
    from headrace.queues import BehaviorSpec as BehaviorSpec
    from headrace.queues import ObservationSpec as ObservationSpec
    from headrace.queues import PolicyUpdate as PolicyUpdate
    from headrace.queues import StepBatch as StepBatch
    from headrace.queues import TrajectoryBatch as TrajectoryBatch
    from headrace.queues.messages import ActionBatch as ActionBatch
    from headrace.queues.stream_file import StreamReader as StreamReader
    from headrace.stages import Stage as Stage
    from headrace.stages import StageContext as StageContext
    from headrace.stages import StageError as StageError
    from headrace.stages.environments.protocol import AgentSteps as AgentSteps
    from headrace.stages.environments.protocol import EnvironmentGroup as EnvironmentGroup
    from headrace.stages.environments.protocol import StepResult as StepResult
    from headrace.stages.errors import NotFiniteError as NotFiniteError
    from headrace.stages.evaluation import EvaluationOpponents as EvaluationOpponents
    from headrace.stages.ghost import Candidate as Candidate
    from headrace.stages.ghost import OpponentSampler as OpponentSampler
    from headrace.stages.policy.onnx.model import onnx_model as onnx_model
    from headrace.stages.policy.protocol import ActingPolicy as ActingPolicy
    from headrace.stages.trainer.intake import Transitions as Transitions
    from headrace.stages.trainer.protocol import Trainer as Trainer
    from headrace.stages.trainer.protocol import TrainerContext as TrainerContext
    from headrace.stages.trainer.rewards.signal import RewardSignal as RewardSignal

_HOMES = {
    "headrace.config": (
        "ConfigError",
        "EnvironmentSettings",
        "NetworkSettings",
        "RewardSignalSettings",
        "RunConfig",
        "SelfPlaySettings",
        "load_config",
    ),
    "headrace.config.environment_kinds": ("ENVIRONMENT_KINDS", "EnvironmentKind"),
    "headrace.pipeline.common.errors": ("PredictError", "RunError", "RunFailed", "RunFolderError"),
    "headrace.pipeline.policies.export": ("read_export",),
    "headrace.pipeline.prediction.evaluate": ("EvaluatedPolicy", "evaluate"),
    "headrace.pipeline.prediction.nash_conv": ("nash_conv",),
    "headrace.pipeline.prediction.policy": ("LoadedMixture", "LoadedPolicy", "load_policy"),
    "headrace.pipeline.diagnosis.rules": ("Evidence", "Finding"),
    "headrace.pipeline.reporting.statistics": ("StatisticsWriter", "Summary"),
    "headrace.pipeline.run": ("RunResult", "load", "run", "run_async"),
    "headrace.pipeline.run_folder.checkpoint": ("newest_checkpoint",),
    "headrace.pipeline.run_handle": ("CheckpointWritten", "RunOptions", "StopRequest", "SummaryWritten"),
    "headrace.queues": (
        "ActionSpec",
        "BehaviorSpec",
        "ObservationSpec",
        "PolicyUpdate",
        "StepBatch",
        "TrajectoryBatch",
    ),
    "headrace.queues.messages": ("ActionBatch",),
    "headrace.queues.stream_file": ("StreamReader",),
    "headrace.stages": ("Stage", "StageContext", "StageError"),
    "headrace.stages.environments.protocol": ("AgentSteps", "EnvironmentGroup", "StepResult"),
    "headrace.stages.errors": ("NotFiniteError",),
    "headrace.stages.evaluation": ("EvaluationOpponents",),
    "headrace.stages.ghost": ("Candidate", "OpponentSampler"),
    "headrace.stages.policy.onnx.model": ("onnx_model",),
    "headrace.stages.policy.protocol": ("ActingPolicy",),
    "headrace.stages.trainer.intake": ("Transitions",),
    "headrace.stages.trainer.protocol": ("Trainer", "TrainerContext"),
    "headrace.stages.trainer.rewards.signal": ("RewardSignal",),
}
"""Maps each module to the public names that it defines."""
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
