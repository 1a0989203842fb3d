"""The bridge between a run and Unity's side channels: engine settings, environment parameters, statistics."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from headrace.config import EngineSettings
from headrace.config.environment_parameters import ParameterValue
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import Measured
from headrace.stages.environments.unity.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    SideChannel,
    SideChannels,
    StatsAggregationMethod,
    StatsSideChannel,
)

_HOW = {
    StatsAggregationMethod.AVERAGE: "mean",
    StatsAggregationMethod.MOST_RECENT: "last",
    StatsAggregationMethod.SUM: "sum",
    StatsAggregationMethod.HISTOGRAM: "histogram",
}


class SideChannelBridge:
    """The side channels of one connection with Unity, and the settings that were sent over them.

    Args:
        engine: settings to send with the first message.
        parameters: the run's environment parameters; None if there are none.
        worker_id: counts the Unity programs of the run.
        seed: of samplers that have no seed of their own.
        channels: the user's side channels.
    """

    def __init__(
        self,
        engine: EngineSettings,
        parameters: EpisodeParameters | None,
        worker_id: int,
        seed: int,
        channels: Iterable[Any] = (),
    ) -> None:
        self.generation = 0
        """Generation of the parameters sent last."""
        self.parameters = parameters
        self._worker_id = worker_id
        self._seed = seed
        self._sent: dict[str, ParameterValue] = {}
        self._parameters_channel = EnvironmentParametersChannel()
        self._stats = StatsSideChannel()
        engine_channel = EngineConfigurationChannel()
        engine_channel.set_configuration_parameters(
            width=engine.width,
            height=engine.height,
            quality_level=engine.quality_level,
            time_scale=engine.time_scale,
            target_frame_rate=engine.target_frame_rate,
            capture_frame_rate=engine.capture_frame_rate,
        )
        self.all: tuple[SideChannel, ...] = (engine_channel, self._parameters_channel, self._stats, *channels)
        """Each channel."""
        self.channels = SideChannels(self.all, f"Unity worker {worker_id}")
        """All of them, as bytes in messages."""

    def update(self) -> None:
        """Queue changed parameters for the next message; a sampler that is sent again would restart its numbers."""
        parameters = self.parameters
        if parameters is None or (self._sent and parameters.generation == self.generation):
            return
        self.generation = parameters.generation
        for name, value in parameters.values.items():
            if self._sent.get(name) != value:
                self._sent[name] = value
                self._parameters_channel.set_parameter(name, value, self._sampler_seed(name))

    def statistics(self) -> Mapping[str, Measured]:
        """The statistics received since the last call."""
        found: dict[str, Measured] = {}
        for name, values in self._stats.get_and_reset_stats().items():
            how = _HOW[values[-1][1]]
            # Programs have no common newest value; the first one's is shown, as in ML-Agents.
            if how != "last" or self._worker_id == 0:
                found[name] = Measured(tuple(value for value, _ in values), how)
        return found

    def _sampler_seed(self, name: str) -> int:
        """A seed of its own for each parameter and each Unity program of a run."""
        entropy = [self._seed, zlib.crc32(name.encode()), self._worker_id]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
