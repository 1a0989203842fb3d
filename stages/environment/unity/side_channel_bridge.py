"""What a Unity is told and tells beside agents' steps: engine settings, environment parameters, statistics."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from config import EngineSettings
from config.environment_parameters import ParameterValue
from stages.environment.parameters import EpisodeParameters
from stages.environment.protocol import Measured
from stages.unity.side_channels import (
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


class Telling:
    """The side channels of one connection with a Unity, and what of the run's settings was sent over them.

    Args:
        engine: settings that are sent with the first order.
        parameters: the run's environment parameters; None if there are none.
        worker_id: counts the Unity programs of the run.
        seed: of samplers that have no seed of their own.
        channels: further side channels, the user's.
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
        """Of the parameters that it was told last."""
        self.parameters = parameters
        self._worker_id = worker_id
        self._seed = seed
        self._told: dict[str, ParameterValue] = {}
        self._for_parameters = EnvironmentParametersChannel()
        self._stats = StatsSideChannel()
        for_engine = EngineConfigurationChannel()
        for_engine.set_configuration_parameters(
            width=engine.width,
            height=engine.height,
            quality_level=engine.quality_level,
            time_scale=engine.time_scale,
            target_frame_rate=engine.target_frame_rate,
            capture_frame_rate=engine.capture_frame_rate,
        )
        self.all: tuple[SideChannel, ...] = (for_engine, self._for_parameters, self._stats, *channels)
        """Each channel."""
        self.channels = SideChannels(self.all, f"Unity worker {worker_id}")
        """All of them, as the bytes of orders and answers."""

    def update(self) -> None:
        """See that the parameters as they are now leave with the next order; what has not changed is not sent again.

        A sampler that were sent again would begin its numbers anew.
        """
        parameters = self.parameters
        if parameters is None or (self._told and parameters.generation == self.generation):
            return
        self.generation = parameters.generation
        for name, value in parameters.values.items():
            if self._told.get(name) != value:
                self._told[name] = value
                self._for_parameters.set_parameter(name, value, self._sampler_seed(name))

    def heard(self) -> Mapping[str, Measured]:
        """The statistics that came since the last call."""
        found: dict[str, Measured] = {}
        for name, values in self._stats.get_and_reset_stats().items():
            how = _HOW[values[-1][1]]
            # The newest of several programs' values is nobody's: the first one's is shown, as in ML-Agents.
            if how != "last" or self._worker_id == 0:
                found[name] = Measured(tuple(value for value, _ in values), how)
        return found

    def _sampler_seed(self, name: str) -> int:
        """Differs between parameters and between the Unity programs of a run."""
        entropy = [self._seed, zlib.crc32(name.encode()), self._worker_id]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF


def joined(heard: Iterable[Mapping[str, Measured]]) -> dict[str, Measured]:
    """The statistics of several Unity programs at one tick."""
    found: dict[str, Measured] = {}
    for one in heard:
        for name, measured in one.items():
            before = found.get(name)
            found[name] = measured if before is None else Measured(before.values + measured.values, before.how)
    return found
