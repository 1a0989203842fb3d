"""Side channels for other messages between Unity and Python: the standard channels, and a base class for others."""

from headrace.stages.environments.engines.unity.side_channels.channel import (
    IncomingMessage,
    OutgoingMessage,
    SideChannel,
    SideChannels,
)
from headrace.stages.environments.engines.unity.side_channels.standard import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    FloatPropertiesChannel,
    RawBytesChannel,
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
    "SideChannels",
    "StatsAggregationMethod",
    "StatsSideChannel",
]
