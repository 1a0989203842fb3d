"""The table of built-in games, and a function that makes a game from the `environment` section."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from headrace.config import RunConfig
from headrace.config.errors import suggest
from headrace.config.section_checks import without_behavior
from headrace.stages.environments import factory
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import StageError

BUILTIN_GAMES: Mapping[str, str] = {
    "Volley": "headrace.stages.games.volley:VolleyGroup",
    "Pursuit": "headrace.stages.games.pursuit:PursuitGroup",
    "ConnectFour": "headrace.stages.games.connect_four:ConnectFourGroup",
    "RockPaperScissors": "headrace.stages.games.rock_paper_scissors:RockPaperScissorsGroup",
}
"""`module:class` of the games that come with this package, keyed by `environment.id`."""


def make_game_group(request: factory.EnvironmentRequest) -> EnvironmentGroup:
    """Make a built-in game's group; raise the same errors as `factory.make_group`."""
    settings = request.settings
    make, name = _find_game(request.config), f"built-in game {settings.id!r}"
    offered = {"num_envs": settings.num_envs, "behavior": settings.behavior or ""}
    group: EnvironmentGroup = factory.call(
        partial(make, **factory.arguments_for(make, settings.options, offered, name)), name
    )
    return group


def named_game(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield a function that imports and returns the game's class.

    The function raises a StageError if there is no such game, or its agents have no behaviour.
    """
    yield partial(_find_game, config)


def _find_game(config: RunConfig) -> Callable[..., Any]:
    game, settings = config.builtin_game, config.environment
    assert settings is not None, "the schema asks for it"
    assert game is not None, "as above"
    if game not in BUILTIN_GAMES:
        hint = suggest(game.replace("_", ""), BUILTIN_GAMES) or f"; available: {', '.join(BUILTIN_GAMES)}"
        raise StageError(f"environment.id: {game!r} is not a built-in game{hint}", key=("environment", "id"))
    module, _, name = BUILTIN_GAMES[game].partition(":")
    make: Callable[..., Any] = getattr(importlib.import_module(module), name)
    if settings.behavior is None and "behavior" in factory.parameter_names(make):  # other games name their behaviours
        raise StageError(f"environment: {without_behavior(config, game)}", key=("environment",))
    return make
