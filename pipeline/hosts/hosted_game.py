"""The run's own game in its actor: joins the persons who play in it to the page, by the control channel."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.config import RunConfig
from headrace.config.brains import PLAYER, brains_of_team
from headrace.config.environment import KeyMapSettings
from headrace.pipeline.control.channel import ControlEnd
from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.keys import buttons, keys_of
from headrace.stages.exhibition.making import make_shown_group
from headrace.stages.exhibition.own_game import KEY, PAUSED, OwnGame
from headrace.stages.exhibition.projector import Shown
from headrace.stages.exhibition.seats import Seats
from headrace.stages.exhibition.standings import Standings
from headrace.stages.games.scene import Display

log = logging.getLogger(__name__)


class HostedGame:
    """Makes the game, and carries what is said between it and the page.

    Args:
        request: for the environments.
        control: the host's end of its channel.
    """

    def __init__(self, request: EnvironmentRequest, control: ControlEnd) -> None:
        self.seats = Seats(self._is_seat, self._keys, time.monotonic)
        self._request = request
        self._control = control
        self._game: OwnGame | None = None
        self._film: FilmedGroup | None = None
        self._announced: Mapping[str, Any] = {}
        self._waits = ""
        self._number = 0

    @property
    def _config(self) -> RunConfig:
        return self._request.config

    def make(self) -> EnvironmentGroup:
        """Make the game; called again when it has broken.

        Raises:
            StageError: if it can't be shown, or the keys of the YAML don't fit its actions.
            BrokenEnvironmentError: if making it failed.
        """
        group, self._film = make_shown_group(self._request)
        self._game = game = OwnGame(group, self._film, self.seats, self._show, self._tell, time.monotonic)
        return game

    def receive(self, message: DirectShow | KeysHeld) -> None:
        """Take what the page says."""
        if isinstance(message, KeysHeld):
            self.seats.hear(message.behavior_id, message.number, message.keys)
            return
        taken = [behavior_id for behavior_id, (_, person) in message.parts.items() if person]
        self.seats.direct(taken, message.paused, message.speed)

    def _is_seat(self, spec: BehaviorSpec) -> bool:
        settings = self._config.behaviors.get(spec.name, self._config.default_settings)  # none: that is said elsewhere
        brains = () if settings is None else brains_of_team(settings.brain, spec.team)
        return any(brain.use == PLAYER for brain in brains)

    def _keys(self, spec: BehaviorSpec) -> KeyMapSettings:
        assert self._config.environment is not None, "it is shown"
        display = None if self._film is None else self._film.display
        return keys_of(spec, self._config.environment.keys, {} if display is None else display.keys)

    async def _show(self, shown: Shown) -> None:
        assert self._game is not None, "it shows this"
        if len(self._announced.get("sides", ())) < len(self._game.behavior_specs):
            self._announce()
        self._number += 1
        self._control.send(picture_taken(self._number, shown, self._game.projector.standings))
        await self._control.drain()

    def _tell(self, why: str) -> None:
        self._waits = why if why not in (PAUSED, KEY) else ""
        if self._waits:
            log.info("The run waits until somebody plays for %s on the live page.", self._waits)
        self._announce()

    def _announce(self) -> None:
        """Say what there is to play, whenever it has changed."""
        assert self._game is not None, "it is played"
        assert self._film is not None, "it is shown"
        display = self._film.display
        sides = [
            described_side(spec, display, self._keys(spec), (), self._is_seat(spec))
            for spec in self._game.behavior_specs.values()
        ]
        names = {side["id"]: side["name"] for side in sides}
        whose = " and ".join(names[each] for each in self._waits.split(", ") if each in names)
        waits = f"The run waits until somebody plays for {whose}." if whose else ""
        values = described_show(sides, display, waits=waits)
        if values != self._announced:
            self._announced = values
            self._control.send(ShowAnnounced(values))


# What a host says to the page about a game that it shows: its sides, and each picture.


def picture_taken(number: int, shown: Shown, standings: Standings, recorded: int = 0) -> PictureTaken:
    """Return a picture with all that stands beside it.

    Args:
        number: rises with each picture.
        shown: the picture.
        standings: how games have ended so far.
        recorded: steps of the recording that is under way.
    """
    picture = shown.picture
    values = {
        "number": number,
        "shapes": picture.shapes,
        "score": dict(picture.score),
        "heads": dict(picture.heads),
        "note": shown.note,
        "about": shown.about,
        "games": standings.games,
        "wins": standings.wins,
        "returns": standings.returns,
        "recorded": recorded,
    }
    return PictureTaken(values, picture.image)


def described_side(
    spec: BehaviorSpec, display: Display | None, keys: KeyMapSettings, choices: Sequence[str], seat: bool = True
) -> dict[str, Any]:
    """Describe a behaviour id: who may play for it, by which keys, and whether a person may."""
    name = spec.name if spec.name == spec.behavior_id else f"{spec.name}, team {spec.team}"
    if display is not None:
        name = display.sides.get(spec.behavior_id, name)
    return {"id": spec.behavior_id, "name": name, "choices": list(choices), "keys": buttons(keys), "seat": seat}


def described_show(
    sides: Sequence[dict[str, Any]], display: Display | None, saved: str = "", trouble: str = "", waits: str = ""
) -> dict[str, Any]:
    """Describe what is shown: its sides, what does not change of its pictures, and what is to be said."""
    drawn = None
    if display is not None:
        drawn = {"view": list(display.view), "sky": list(display.sky), "backdrop": display.backdrop}
        drawn["aim"] = display.aim
    return {"sides": [*sides], "display": drawn, "saved": saved, "trouble": trouble, "waits": waits}
