"""A game that a host shows on the live page: frames and the state of the game go out; requests and keys come in.

The host is the exhibition's own, or the actor with the run's only instance if people play in it (`PlayInRun`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace.config import RunConfig
from headrace.config.brains import PLAYER, brains_of_team
from headrace.config.environment import KeyMapSettings
from headrace.config.section_checks import persons_in
from headrace.pipeline.control import ControlEnd, ControlMessage, DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.exhibition.film import FilmedGroup, make_shown_group
from headrace.stages.exhibition.people import HumanBrain, HumanControllers, buttons, keys_of
from headrace.stages.exhibition.show import PacedGroup, ShownFrame

log = logging.getLogger(__name__)


class GameNotes(NamedTuple):
    """What a host adds to the state of its game."""

    recorded: int = 0
    """Number of steps in the recording in progress."""
    saved: str = ""
    """What became of the last recording."""
    trouble: str = ""
    """Why a chosen player is not playing."""


class HostedGame:
    """The game that a host shows: makes it, and exchanges messages with the live page over the control channel.

    Args:
        config: the run's configuration.
        control: the host's end of the control channel.
        must_play: returns True for a behaviour id that only a person controls. None if people may take over an agent of
            any behaviour id.
        choices: returns the names of a behaviour id's players.
        notes: returns what the host adds to the state.
    """

    def __init__(
        self,
        config: RunConfig,
        control: ControlEnd,
        must_play: Callable[[BehaviorSpec], bool] | None = None,
        choices: Callable[[BehaviorSpec], Sequence[str]] = lambda spec: (),
        notes: Callable[[], GameNotes] = GameNotes,
    ) -> None:
        self._config = config
        self._control = control
        self._may_play = must_play or (lambda spec: True)
        self._choices = choices
        self._notes = notes
        self._group: PacedGroup | None = None
        self._film: FilmedGroup | None = None
        self._announced: Mapping[str, Any] = {}
        self._agents: Mapping[str, Sequence[str]] = {}
        self._missing: list[str] = []
        self._number = 0
        self.people = HumanControllers(
            lambda spec: keys_for(config, self._film, spec), time.monotonic, must_play or (lambda spec: False)
        )

    def make(self, request: EnvironmentRequest) -> PacedGroup:
        """Make the game's environment; called again after it breaks.

        Raises:
            StageError: if the game can't be shown, or the YAML's keys don't fit its actions.
            BrokenEnvironmentError: if creating the game failed.
        """
        group, self._film = make_shown_group(request)
        self._group = PacedGroup(group, self._film, self.people, self._show, self._tell)
        return self._group

    def receive(self, message: ControlMessage) -> bool:
        """Handle a message from the page; return True if a person has begun to play."""
        if isinstance(message, KeysHeld):
            self.people.receive_keys(message.behavior_id, message.number, message.keys)
        elif isinstance(message, DirectShow):
            taken = [behavior_id for behavior_id, (_, person) in message.parts.items() if person]
            return self.people.direct(taken, message.paused, message.speed)
        return False

    def announce(self) -> None:
        """Send the game's state to the page if it has changed."""
        group, film, notes = self._group, self._film, self._notes()
        assert group is not None, "it was made first"
        assert film is not None, "it was made first"
        specs = group.behavior_specs
        sides = [
            described_side(self._config, film, spec, self._choices(spec), self._may_play(spec))
            for spec in specs.values()
        ]
        whose = " and ".join(side["name"] for side in sides if side["id"] in self._missing)
        display = film.display
        drawn = None  # the constant parts of the frames
        if display is not None:
            drawn = {"view": [*display.view], "sky": [*display.sky], "backdrop": display.backdrop, "aim": display.aim}
        values = {
            "sides": sides,
            "display": drawn,
            "saved": notes.saved,
            "trouble": notes.trouble or unknown_names(self._config, film, specs),
            "waits": f"The run is waiting for a person to play for {whose}." if whose else "",
        }
        if values != self._announced:
            self._announced = values
            self._control.send(ShowAnnounced(values))

    async def _show(self, frame: ShownFrame) -> None:
        """Send a frame, with everything that the page shows next to it."""
        group, film = self._group, self._film
        assert group is not None, "it shows this"
        assert film is not None, "it shows this"
        if film.agents != self._agents or len(self._announced.get("sides", ())) < len(group.behavior_specs):
            self._agents = film.agents
            self.announce()
        self._number += 1
        picture, standings = frame.picture, group.standings
        values = {
            "number": self._number,
            "shapes": picture.shapes,
            "score": dict(picture.score),
            "heads": dict(picture.heads),
            "note": frame.note,
            "about": frame.about,
            "games": standings.games,
            "wins": standings.wins,
            "returns": standings.returns,
            "recorded": self._notes().recorded,
        }
        self._control.send(PictureTaken(values, picture.image))
        await self._control.drain()

    def _tell(self, missing: list[str]) -> None:
        self._missing = missing
        self.announce()
        if missing:
            log.info("%s Open the live page.", self._announced["waits"])


def keys_for(config: RunConfig, film: FilmedGroup | None, spec: BehaviorSpec) -> KeyMapSettings:
    """Return a person's keyboard controls for a behaviour id: from the YAML if set there, otherwise from the game."""
    assert config.environment is not None, "it is shown"
    display = None if film is None else film.display
    return keys_of(spec, config.environment.keys, {} if display is None else display.keys)


def described_side(
    config: RunConfig, film: FilmedGroup, spec: BehaviorSpec, choices: Sequence[str], playable: bool = True
) -> dict[str, Any]:
    """Describe a behaviour id for the page: its possible players, its keys, and whether a person may play."""
    assert config.environment is not None, "it is shown"
    name = spec.name if spec.name == spec.behavior_id else f"{spec.name}, team {spec.team}"
    agents = film.agents.get(spec.behavior_id, ())
    called = {**film.sides, **config.environment.sides}
    labels = [*dict.fromkeys(str(called[key]) for key in (*agents, spec.behavior_id, spec.name) if key in called)]
    if film.display is not None and labels:
        name = labels[0]
    elif labels or (agents and name != spec.name):
        name = f"{name}: {', '.join(labels or agents)}"
    keys = buttons(keys_for(config, film, spec))
    return {"id": spec.behavior_id, "name": name, "choices": list(choices), "keys": keys, "playable": playable}


def unknown_names(config: RunConfig, film: FilmedGroup, specs: Mapping[str, BehaviorSpec]) -> str:
    """Return a message about names in `environment.sides` or `environment.keys` that match no player, or ""."""
    environment = config.environment
    assert environment is not None, "it is shown"
    agents = [agent for names in film.agents.values() for agent in names]
    played = [*specs, *(spec.name for spec in specs.values())]
    for section, given, players in (
        ("sides", environment.sides, [*agents, *played]),
        ("keys", environment.keys, played),
    ):
        if lost := [key for key in given if key not in players]:
            available = ", ".join(dict.fromkeys(players))
            return f"environment.{section}: unknown player {', '.join(lost)}; available: {available}"
    return ""


class PlayInRun(ActorPart):
    """Makes the actor's environment a game on the live page, if the brain `player` decides in it."""

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self._game = HostedGame(request.config, host.control, must_play=self._must_play)
        if persons_in(request.config):
            self.person = partial(HumanBrain, self._game.people)
            self.make_group = partial(self._game.make, request)

    def receive(self, message: ControlMessage) -> None:
        """Handle the page's messages. Any message wakes a game that waits for people."""
        self._game.receive(message)
        self._game.people.changed.set()

    def _must_play(self, spec: BehaviorSpec) -> bool:
        settings = self.request.config.known_settings(spec.name)  # None is reported elsewhere
        brains = () if settings is None else brains_of_team(settings.brain, spec.team)
        return any(brain.use == PLAYER for brain in brains)
