"""Makes a run's group from `environment.game`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from headrace.config import ObservationSettings, RunConfig
from headrace.stages.environments.checks import raise_broken
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.open_spiel.game import OpenSpielGame, find_game
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instance import Agent, Instance, TimeStep
from headrace.stages.environments.pettingzoo.instances import LimitedInstance
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import StageError


class GameInstance(Instance):
    """A game that is played repeatedly. Each episode's seed determines its chance events.

    Args:
        game: the game; instances may share it.
        name: the instance's name, used in messages.
    """

    by_turns = True

    def __init__(self, game: OpenSpielGame, name: str) -> None:
        super().__init__(game, name)
        self.apart = not game.cooperative
        self._game = game
        self._state: Any = None
        self._random = Random()
        self._paid: list[float] = []
        """Each player's return up to the player's last time step."""

    def reset(self, seed: int | None, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode."""
        if options:
            raise StageError(
                f"environment_parameters: {self._game.name} accepts none, because its parameters are fixed "
                f"(environment.options); leave {', '.join(options)} out"
            )
        self._random.seed(seed)
        self._paid = [0.0] * len(self._game.possible_agents)
        try:
            self._state = self._game.new_state(seed)
            first = self._up_to_next_move()
        except Exception as error:
            raise_broken(error, self._name, "reset")
        self.first_infos = {each.agent: each.info for each in first}
        return first

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Make the move of the player whose turn it is."""
        (action,) = actions.values()
        try:
            self._state.apply_action(int(action))
            return self._up_to_next_move()
        except Exception as error:
            raise_broken(error, self._name, "step")

    def waiting(self) -> Mapping[Agent, float]:
        """Return each player's reward since the player's last time step."""
        if self.over:
            return {}
        received = self._received()
        return {agent: received[player] - self._paid[player] for player, agent in enumerate(self.env.possible_agents)}

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episode for all players."""
        ended = super().truncate(deciding)
        known, received = {each.agent for each in ended}, self._received()
        others = [each for each in enumerate(self.env.possible_agents) if each[1] not in known]
        return ended + [self._time_step(player, received[player], {}, truncated=True) for player, _ in others]

    def _up_to_next_move(self) -> list[TimeStep]:
        state = self._state
        while state.is_chance_node():
            state.apply_action(_drawn(state.chance_outcomes(), self._random.random()))
        self.over = bool(state.is_terminal())
        if self.over:
            returns = state.returns()
            return [self._time_step(player, received, {}, True) for player, received in enumerate(returns)]
        player = state.current_player()
        mask = {MASK: np.array(state.legal_actions_mask(player), np.bool_)}
        return [self._time_step(player, self._received()[player], mask)]

    def _received(self) -> list[float]:
        """Return each player's rewards since the episode began."""
        return self._paid if self._game.pays_at_the_end and not self.over else self._state.returns()

    def _time_step(
        self, player: int, received: float, info: Mapping[str, Any], terminated: bool = False, truncated: bool = False
    ) -> TimeStep:
        reward, self._paid[player] = received - self._paid[player], received
        seen = self._game.seen(self._state, player)
        return TimeStep(self._game.possible_agents[player], seen, reward, info, terminated, truncated)


def _drawn(outcomes: Sequence[tuple[int, float]], share: float) -> int:
    """Return a distribution's outcome at the quantile `share`, from 0 to 1."""
    for outcome, probability in outcomes:
        share -= probability
        if share < 0:
            return outcome
    return outcomes[-1][0]  # rounding may leave a remainder


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
