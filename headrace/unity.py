"""Unity for scripts: ML-Agents' low-level interface, and the base class of side channels."""

from __future__ import annotations

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
    "UnityEnvironment",
]
