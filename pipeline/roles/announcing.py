"""A host's messages to the live page about a game that it shows: the game's sides, and each frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.config import RunConfig
from headrace.config.environment import KeyMapSettings
from headrace.pipeline.control.messages import PictureTaken
from headrace.queues.specs import BehaviorSpec
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.keys import buttons, keys_of
from headrace.stages.exhibition.projector import Shown, Standings
from headrace.stages.games.scene import Display


def picture_taken(number: int, shown: Shown, standings: Standings, recorded: int = 0) -> PictureTaken:
    """Return the message for one frame, with everything that the page shows next to the frame.

    Args:
        number: the frame's number.
        shown: the frame.
        standings: results of the games so far.
        recorded: number of steps in the recording in progress.
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


def keys_for(config: RunConfig, film: FilmedGroup | None, spec: BehaviorSpec) -> KeyMapSettings:
    """Return a person's keyboard controls for a behaviour id: from the YAML if set there, otherwise from the game."""
    assert config.environment is not None, "it is shown"
    display = None if film is None else film.display
    return keys_of(spec, config.environment.keys, {} if display is None else display.keys)


def described_side(
    config: RunConfig, film: FilmedGroup | None, spec: BehaviorSpec, choices: Sequence[str], seat: bool = True
) -> dict[str, Any]:
    """Describe a behaviour id for the page: its possible players, its keys, and whether a person may play."""
    assert config.environment is not None, "it is shown"
    name = spec.name if spec.name == spec.behavior_id else f"{spec.name}, team {spec.team}"
    agents = () if film is None else film.agents.get(spec.behavior_id, ())
    called = {**({} if film is None else film.sides), **config.environment.sides}
    found = [*dict.fromkeys(str(called[key]) for key in (*agents, spec.behavior_id, spec.name) if key in called)]
    if film is not None and film.display is not None and found:
        name = found[0]
    elif found or (agents and name != spec.name):
        name = f"{name}: {', '.join(found or agents)}"
    keys = buttons(keys_for(config, film, spec))
    return {"id": spec.behavior_id, "name": name, "choices": list(choices), "keys": keys, "seat": seat}


def unknown_names(config: RunConfig, film: FilmedGroup | None, specs: Mapping[str, BehaviorSpec]) -> str:
    """Return a message about names in `environment.sides` or `environment.keys` that match no player, or ""."""
    environment = config.environment
    assert environment is not None, "it is shown"
    agents = () if film is None else [agent for each in film.agents.values() for agent in each]
    played = [*specs, *(spec.name for spec in specs.values())]
    for section, given, known in (("sides", environment.sides, [*agents, *played]), ("keys", environment.keys, played)):
        if lost := [key for key in given if key not in known]:
            there = ", ".join(dict.fromkeys(known))
            return f"environment.{section}: unknown player {', '.join(lost)}; available: {there}"
    return ""


def described_show(
    sides: Sequence[dict[str, Any]], display: Display | None, saved: str = "", trouble: str = "", waits: str = ""
) -> dict[str, Any]:
    """Describe the shown game for the page: its sides, the constant parts of its frames, and notes."""
    drawn = None
    if display is not None:
        drawn = {"view": list(display.view), "sky": list(display.sky), "backdrop": display.backdrop}
        drawn["aim"] = display.aim
    return {"sides": [*sides], "display": drawn, "saved": saved, "trouble": trouble, "waits": waits}
