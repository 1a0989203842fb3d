"""Side channels: further messages between Unity and Python. The standard channels, and the base class of new ones."""

from headrace.stages.environments.unity.side_channels.channel import IncomingMessage, OutgoingMessage, SideChannel
from headrace.stages.environments.unity.side_channels.engine import EngineConfigurationChannel
from headrace.stages.environments.unity.side_channels.frames import SideChannels
from headrace.stages.environments.unity.side_channels.parameters import EnvironmentParametersChannel
from headrace.stages.environments.unity.side_channels.properties import FloatPropertiesChannel
from headrace.stages.environments.unity.side_channels.raw_bytes import RawBytesChannel
from headrace.stages.environments.unity.side_channels.stats import StatsAggregationMethod, StatsSideChannel

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
