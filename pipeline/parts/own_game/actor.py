"""The run's own game in its actor: connects the people who play to the live page, over the control channel."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.config import RunConfig
from headrace.config.brains import PLAYER, brains_of_team
from headrace.pipeline.control.messages import ControlMessage, DirectShow, KeysHeld, ShowAnnounced
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.announcing import described_show, described_side, keys_for, picture_taken, unknown_names
from headrace.pipeline.roles.runtime import Host
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.making import make_shown_group
from headrace.stages.exhibition.own_game import KEY, PAUSED, OwnGame, Seats
from headrace.stages.exhibition.projector import Shown

log = logging.getLogger(__name__)


class HostedGame(ActorPart):
    """Creates the game, and carries messages between the game and the page."""

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self.seats = Seats(self._is_seat, lambda spec: keys_for(self._config, self._film, spec), time.monotonic)
        self.person, self.make_group = self.seats.sit, self.make
        self._control = host.control
        self._game: OwnGame | None = None
        self._film: FilmedGroup | None = None
        self._announced: Mapping[str, Any] = {}
        self._agents: Mapping[str, Sequence[str]] = {}
        self._waits = ""
        self._number = 0

    @property
    def _config(self) -> RunConfig:
        return self.request.config

    def make(self) -> EnvironmentGroup:
        """Create the game; called again after the game breaks.

        Raises:
            StageError: if the game can't be shown, or the YAML's keys don't fit its actions.
            BrokenEnvironmentError: if creating the game failed.
        """
        group, self._film = make_shown_group(self.request)
        self._game = game = OwnGame(group, self._film, self.seats, self._show, self._tell, time.monotonic)
        return game

    def receive(self, message: ControlMessage) -> None:
        """Handle the page's messages. Any message wakes a game that waits for people."""
        match message:
            case KeysHeld():
                self.seats.hear(message.behavior_id, message.number, message.keys)
            case DirectShow():
                taken = [behavior_id for behavior_id, (_, person) in message.parts.items() if person]
                self.seats.direct(taken, message.paused, message.speed)
        self.seats.changed.set()

    def _is_seat(self, spec: BehaviorSpec) -> bool:
        settings = self._config.known_settings(spec.name)  # None is reported elsewhere
        brains = () if settings is None else brains_of_team(settings.brain, spec.team)
        return any(brain.use == PLAYER for brain in brains)

    async def _show(self, shown: Shown) -> None:
        assert self._game is not None, "it shows this"
        agents = {} if self._film is None else self._film.agents
        if agents != self._agents or len(self._announced.get("sides", ())) < len(self._game.behavior_specs):
            self._agents = agents
            self._announce()
        self._number += 1
        self._control.send(picture_taken(self._number, shown, self._game.projector.standings))
        await self._control.drain()

    def _tell(self, why: str) -> None:
        self._waits = why if why not in (PAUSED, KEY) else ""
        if self._waits:
            log.info("The run is waiting for a person to play for %s on the live page.", self._waits)
        self._announce()

    def _announce(self) -> None:
        """Send the game's state if it has changed."""
        assert self._game is not None, "it is played"
        assert self._film is not None, "it is shown"
        sides = [
            described_side(self._config, self._film, spec, (), self._is_seat(spec))
            for spec in self._game.behavior_specs.values()
        ]
        names = {side["id"]: side["name"] for side in sides}
        whose = " and ".join(names[each] for each in self._waits.split(", ") if each in names)
        waits = f"The run is waiting for a person to play for {whose}." if whose else ""
        trouble = unknown_names(self._config, self._film, self._game.behavior_specs)
        values = described_show(sides, self._film.display, trouble=trouble, waits=waits)
        if values != self._announced:
            self._announced = values
            self._control.send(ShowAnnounced(values))
