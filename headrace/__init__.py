"""The public surface of Headrace: what scripts and notebooks import.

Names are imported from their homes when they are first used, so that `import headrace` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from config import ConfigError as ConfigError
    from config import load_config as load_config
    from pipeline.common.errors import PredictError as PredictError
    from pipeline.common.errors import RunError as RunError
    from pipeline.common.errors import RunFailed as RunFailed
    from pipeline.common.errors import RunFolderError as RunFolderError
    from pipeline.prediction.loading import load_policy as load_policy
    from pipeline.prediction.policy import LoadedPolicy as LoadedPolicy
    from pipeline.run import RunOptions as RunOptions
    from pipeline.run import RunResult as RunResult
    from pipeline.run import run as run
    from pipeline.run import run_async as run_async
    from pipeline.taking_part import CheckpointWritten as CheckpointWritten
    from pipeline.taking_part import StopRequest as StopRequest
    from pipeline.taking_part import SummaryWritten as SummaryWritten

_HOMES = {
    "CheckpointWritten": "pipeline.taking_part",
    "ConfigError": "config",
    "LoadedPolicy": "pipeline.prediction.policy",
    "PredictError": "pipeline.common.errors",
    "RunError": "pipeline.common.errors",
    "RunFailed": "pipeline.common.errors",
    "RunFolderError": "pipeline.common.errors",
    "RunOptions": "pipeline.run",
    "RunResult": "pipeline.run",
    "StopRequest": "pipeline.taking_part",
    "SummaryWritten": "pipeline.taking_part",
    "load_config": "config",
    "load_policy": "pipeline.prediction.loading",
    "run": "pipeline.run",
    "run_async": "pipeline.run",
}
"""Every public name, and the module that it is imported from."""

__all__ = [
    "CheckpointWritten",
    "ConfigError",
    "LoadedPolicy",
    "PredictError",
    "RunError",
    "RunFailed",
    "RunFolderError",
    "RunOptions",
    "RunResult",
    "StopRequest",
    "SummaryWritten",
    "load_config",
    "load_policy",
    "run",
    "run_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
