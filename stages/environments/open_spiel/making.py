"""Makes a run's group from `environment.game`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace.config import ObservationSettings, RunConfig
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.open_spiel.game import OpenSpielGame, find_game
from headrace.stages.environments.open_spiel.instance import GameInstance
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instance import Instance
from headrace.stages.environments.pettingzoo.instances import LimitedInstance
from headrace.stages.environments.protocol import EnvironmentGroup

_VECTOR = {"observation": ObservationSettings(kind="vector")}
"""Settings that make every observation a vector, because boards are too small for an image encoder."""


def make_open_spiel_group(request: EnvironmentRequest) -> EnvironmentGroup:
    """Make the group that the settings describe. Raises the same errors as `factory.make_group`."""
    settings = request.settings
    game = _find(request.config)
    limit = settings.max_episode_steps
    instances: list[Instance] = [
        GameInstance(game, f"{game.name}, instance {number}" if settings.num_envs > 1 else game.name)
        for number in range(settings.num_envs)
    ]
    return PettingZooGroup(
        instances if limit is None else [LimitedInstance(instance, limit) for instance in instances],
        settings.behavior or "",
        game.name,
        settings.behaviors,
        {**_VECTOR, **settings.observations},
        settings.outcome,
        settings.rotate_sides,
        exact=request.exact,
    )


def named_in_openspiel(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield a function that makes the game; it raises the same errors as `find_game`."""
    yield partial(_find, config)


def _find(config: RunConfig) -> OpenSpielGame:
    settings = config.environment
    assert settings is not None, "the schema asks for it"
    assert settings.game is not None, "as above"
    return find_game(settings.game, settings.options, config.source_folder)
