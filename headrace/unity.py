"""Unity for scripts: ML-Agents' low-level API, side channels, and environments for other libraries' trainers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.stages.environments.engines.unity.environment import UnityEnvironment
from headrace.stages.environments.engines.unity.errors import (
    UnityActionException,
    UnityCommunicationException,
    UnityCommunicatorStoppedException,
    UnityEnvironmentException,
    UnityException,
    UnityObservationException,
    UnitySideChannelException,
    UnityTimeOutException,
    UnityWorkerInUseException,
)
from headrace.stages.environments.engines.unity.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    FloatPropertiesChannel,
    IncomingMessage,
    OutgoingMessage,
    RawBytesChannel,
    SideChannel,
    StatsAggregationMethod,
    StatsSideChannel,
)
from headrace.stages.environments.engines.unity.specs import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DecisionStep,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalStep,
    TerminalSteps,
)

if TYPE_CHECKING:
    from headrace.stages.environments.engines.unity.wrappers.gymnasium_env import UnityGymException, UnityToGymWrapper
    from headrace.stages.environments.engines.unity.wrappers.pettingzoo_env import UnityAECEnv, UnityParallelEnv

_WRAPPERS = "headrace.stages.environments.engines.unity.wrappers"
_LATE = {
    "UnityAECEnv": f"{_WRAPPERS}.pettingzoo_env",
    "UnityGymException": f"{_WRAPPERS}.gymnasium_env",
    "UnityParallelEnv": f"{_WRAPPERS}.pettingzoo_env",
    "UnityToGymWrapper": f"{_WRAPPERS}.gymnasium_env",
}
"""Maps a name to the module that defines it. These names are imported on first use, because they need Gymnasium or
PettingZoo."""

__all__ = [
    "ActionSpec",
    "ActionTuple",
    "BehaviorSpec",
    "DecisionStep",
    "DecisionSteps",
    "DimensionProperty",
    "EngineConfigurationChannel",
    "EnvironmentParametersChannel",
    "FloatPropertiesChannel",
    "IncomingMessage",
    "ObservationSpec",
    "ObservationType",
    "OutgoingMessage",
    "RawBytesChannel",
    "SideChannel",
    "StatsAggregationMethod",
    "StatsSideChannel",
    "TerminalStep",
    "TerminalSteps",
    "UnityAECEnv",
    "UnityActionException",
    "UnityCommunicationException",
    "UnityCommunicatorStoppedException",
    "UnityEnvironment",
    "UnityEnvironmentException",
    "UnityException",
    "UnityGymException",
    "UnityObservationException",
    "UnityParallelEnv",
    "UnitySideChannelException",
    "UnityTimeOutException",
    "UnityToGymWrapper",
    "UnityWorkerInUseException",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pettingzoo":
            raise
        raise ImportError(f'{name} needs PettingZoo: python -m pip install "headrace[pettingzoo]"') from error
