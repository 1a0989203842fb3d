"""Environment parameters on their way to a game: as arguments of a build's start, later by calls of its methods."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.stages.environment.parameters import EpisodeParameters

log = logging.getLogger(__name__)


class ParameterCalls:
    """What one game knows of the environment parameters.

    The addon can't pass values to a running game, but call methods of its agents. So the settings may name a method for
    the values of a parameter, such as `set_lesson_{value}`.

    Args:
        instance: number of the game in its group.
        parameters: the run's; None without any.
        calls: `environment.calls`: the method for each parameter.
        name: of the game, for messages.

    Attributes:
        generation: of the parameters that the game knows.
    """

    def __init__(
        self, instance: int, parameters: EpisodeParameters | None, calls: Mapping[str, str], name: str
    ) -> None:
        self.generation = 0
        self._instance = instance
        self._parameters = parameters
        self._calls = calls
        self._name = name
        self._known: dict[str, float] = {}
        self._warned: set[str] = set()

    def at_start(self) -> Mapping[str, float]:
        """The values that a game starts with."""
        if self._parameters is None:
            return {}
        self.generation = self._parameters.generation
        self._known = self._parameters.options(self._instance)
        return self._known

    def calls(self) -> list[str]:
        """The methods that tell the game of values that have changed since it was told last."""
        if self._parameters is None or self._parameters.generation == self.generation:
            return []
        self.generation = self._parameters.generation
        before, self._known = self._known, self._parameters.options(self._instance)
        methods = []
        for name, value in self._known.items():
            if value == before.get(name):
                continue
            if name in self._calls:
                methods.append(
                    self._calls[name].replace("{value}", f"{value:g}".replace(".", "_").replace("-", "minus_"))
                )
            elif name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "%s: the environment parameter %r is %g from now on, but the game keeps the value that it has got "
                    "at its start, as environment.calls names no method for it",
                    *(self._name, name, value),
                )
        return methods
