"""A counting group that takes environment parameters."""

from __future__ import annotations

from typing import Any

from fakes import CountingGroup

from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters


def told(length: Any, generation: int = 0, reset: bool = False) -> EnvironmentParameters:
    """The only parameter of a `TellableGroup`: how many decisions its episodes take."""
    return EnvironmentParameters(generation, {"length": length}, reset)


class TellableGroup(CountingGroup):
    """A counting group whose parameters set the length of its episodes."""

    parameters: EpisodeParameters | None = None

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        self.parameters = parameters

    def newborn(self, cast: Any, env: int, born: int) -> Any:
        agent = super().newborn(cast, env, born)
        if self.parameters is not None:
            agent.length = int(self.parameters.options(env)["length"])
        return agent
