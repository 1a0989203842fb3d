"""Unity for scripts: ML-Agents' low-level interface, side channels, and environments for other people's trainers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.stages.environments.unity.environment import UnityEnvironment
from headrace.stages.environments.unity.side_channels import (
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

if TYPE_CHECKING:
    from headrace.stages.environments.unity.wrappers.gymnasium_env import UnityGymException, UnityToGymWrapper
    from headrace.stages.environments.unity.wrappers.pettingzoo_env import UnityAECEnv, UnityParallelEnv

_WRAPPERS = "headrace.stages.environments.unity.wrappers"
_LATE = {
    "UnityAECEnv": f"{_WRAPPERS}.pettingzoo_env",
    "UnityGymException": f"{_WRAPPERS}.gymnasium_env",
    "UnityParallelEnv": f"{_WRAPPERS}.pettingzoo_env",
    "UnityToGymWrapper": f"{_WRAPPERS}.gymnasium_env",
}
"""Homes of what is imported when it is first used, with Gymnasium or PettingZoo."""

__all__ = [
    "EngineConfigurationChannel",
    "EnvironmentParametersChannel",
    "FloatPropertiesChannel",
    "IncomingMessage",
    "OutgoingMessage",
    "RawBytesChannel",
    "SideChannel",
    "StatsAggregationMethod",
    "StatsSideChannel",
    "UnityAECEnv",
    "UnityEnvironment",
    "UnityGymException",
    "UnityParallelEnv",
    "UnityToGymWrapper",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pettingzoo":
            raise
        raise ImportError(f"{name} needs PettingZoo: python -m pip install 'headrace[pettingzoo]'") from error
