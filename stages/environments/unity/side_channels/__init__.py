"""Side channels: further messages between Unity and Python. The standard channels, and the base class of new ones."""

from headrace.stages.environments.unity.side_channels.channel import (
    IncomingMessage,
    OutgoingMessage,
    SideChannel,
    SideChannels,
)
from headrace.stages.environments.unity.side_channels.standard import (
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
