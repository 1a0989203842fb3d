"""Unity for scripts: ML-Agents' low-level API, side channels, and environments for other libraries' trainers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.stages.environments.engines.unity.environment import UnityEnvironment as UnityEnvironment
from headrace.stages.environments.engines.unity.errors import UnityActionException as UnityActionException
from headrace.stages.environments.engines.unity.errors import UnityCommunicationException as UnityCommunicationException
from headrace.stages.environments.engines.unity.errors import (
    UnityCommunicatorStoppedException as UnityCommunicatorStoppedException,
)
from headrace.stages.environments.engines.unity.errors import UnityEnvironmentException as UnityEnvironmentException
from headrace.stages.environments.engines.unity.errors import UnityException as UnityException
from headrace.stages.environments.engines.unity.errors import UnityObservationException as UnityObservationException
from headrace.stages.environments.engines.unity.errors import UnitySideChannelException as UnitySideChannelException
from headrace.stages.environments.engines.unity.errors import UnityTimeOutException as UnityTimeOutException
from headrace.stages.environments.engines.unity.errors import UnityWorkerInUseException as UnityWorkerInUseException
from headrace.stages.environments.engines.unity.side_channels import (
    EngineConfigurationChannel as EngineConfigurationChannel,
)
from headrace.stages.environments.engines.unity.side_channels import (
    EnvironmentParametersChannel as EnvironmentParametersChannel,
)
from headrace.stages.environments.engines.unity.side_channels import FloatPropertiesChannel as FloatPropertiesChannel
from headrace.stages.environments.engines.unity.side_channels import IncomingMessage as IncomingMessage
from headrace.stages.environments.engines.unity.side_channels import OutgoingMessage as OutgoingMessage
from headrace.stages.environments.engines.unity.side_channels import RawBytesChannel as RawBytesChannel
from headrace.stages.environments.engines.unity.side_channels import SideChannel as SideChannel
from headrace.stages.environments.engines.unity.side_channels import StatsAggregationMethod as StatsAggregationMethod
from headrace.stages.environments.engines.unity.side_channels import StatsSideChannel as StatsSideChannel
from headrace.stages.environments.engines.unity.specs import ActionSpec as ActionSpec
from headrace.stages.environments.engines.unity.specs import ActionTuple as ActionTuple
from headrace.stages.environments.engines.unity.specs import BehaviorSpec as BehaviorSpec
from headrace.stages.environments.engines.unity.specs import DecisionStep as DecisionStep
from headrace.stages.environments.engines.unity.specs import DecisionSteps as DecisionSteps
from headrace.stages.environments.engines.unity.specs import DimensionProperty as DimensionProperty
from headrace.stages.environments.engines.unity.specs import ObservationSpec as ObservationSpec
from headrace.stages.environments.engines.unity.specs import ObservationType as ObservationType
from headrace.stages.environments.engines.unity.specs import TerminalStep as TerminalStep
from headrace.stages.environments.engines.unity.specs import TerminalSteps as TerminalSteps

if TYPE_CHECKING:
    from headrace.stages.environments.engines.unity.wrappers.gymnasium_env import UnityGymException as UnityGymException
    from headrace.stages.environments.engines.unity.wrappers.gymnasium_env import UnityToGymWrapper as UnityToGymWrapper
    from headrace.stages.environments.engines.unity.wrappers.pettingzoo_env import UnityAECEnv as UnityAECEnv
    from headrace.stages.environments.engines.unity.wrappers.pettingzoo_env import UnityParallelEnv as UnityParallelEnv

_WRAPPERS = "headrace.stages.environments.engines.unity.wrappers"
_LATE = {
    "UnityAECEnv": f"{_WRAPPERS}.pettingzoo_env",
    "UnityGymException": f"{_WRAPPERS}.gymnasium_env",
    "UnityParallelEnv": f"{_WRAPPERS}.pettingzoo_env",
    "UnityToGymWrapper": f"{_WRAPPERS}.gymnasium_env",
}
"""Maps a name to the module that defines it. These names are imported on first use, because they need Gymnasium or
PettingZoo."""

__all__ = sorted({name for name in dir() if name[0].isupper()} - {"Any", "TYPE_CHECKING"} | {*_LATE})


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pettingzoo":
            raise
        raise ImportError(f'{name} needs PettingZoo: python -m pip install "headrace[pettingzoo]"') from error
