"""OpenSpiel games: each game state acts as an instance in the group for PettingZoo's turn-based environments.

OpenSpiel's own conversion turns simultaneous games into turn-based ones, and hides a turn's moves until the turn is
over. `OpenSpielGame` is made from a name and parameters, and has the players' observations; `GameInstance` plays it.
`headrace.nash_conv` uses the game to evaluate policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import ObservationSettings, RunConfig
from headrace.config.errors import suggest
from headrace.stages.environments.checks import raise_broken
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import Agent, Instance, LimitedInstance, TimeStep
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import LoadError, StageError, blaming, type_of
from headrace.stages.loading import import_module

if TYPE_CHECKING:
    from gymnasium import spaces


_SEED = "rng_seed"
"""Name of the seed parameter in games that sample their own chance events."""
_GAME = ("environment", "game")
_OPTIONS = ("environment", "options")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a map"}


class OpenSpielGame:
    """A game in which one player moves at a time. Players are the agents `player_0`, `player_1`, ….

    Args:
        game: the OpenSpiel game.
        name: the game's name, used in messages.

    Attributes:
        game: the turn-based OpenSpiel game.
        name: as above.
        possible_agents: names of the players, in order.
        cooperative: True if all players have the same rewards.
        draws: True if the game samples its own chance events, from a seed.
        pays_at_the_end: True if players receive no rewards before the end of the game.

    Raises:
        StageError: if this kind of game is not supported.
    """

    def __init__(self, game: Any, name: str) -> None:
        import pyspiel
        from gymnasium import spaces

        kind = pyspiel.GameType
        if game.get_type().dynamics == kind.Dynamics.SIMULTANEOUS:
            game = pyspiel.convert_to_turn_based(game)
        of = game.get_type()
        if of.dynamics == kind.Dynamics.MEAN_FIELD:
            raise StageError(f"{name} is a mean field game, which has no individual players", key=_GAME)
        if not (of.provides_information_state_tensor or of.provides_observation_tensor):
            raise StageError(
                f"{name} has nothing for its players to observe: it has neither an information state tensor nor an "
                "observation tensor",
                key=_GAME,
            )
        self.game, self.name = game, name
        self.possible_agents = [f"player_{player}" for player in range(game.num_players())]
        self.cooperative = bool(of.utility == kind.Utility.IDENTICAL)
        self.pays_at_the_end = bool(of.reward_model == kind.RewardModel.TERMINAL)
        self._informed = bool(of.provides_information_state_tensor)
        self.draws = bool(of.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC)
        if self.draws and _SEED not in of.parameter_specification:
            raise StageError(
                f"{name} samples chance events itself, and has no {_SEED} to make them reproducible", key=_GAME
            )
        try:
            shape = game.information_state_tensor_shape() if self._informed else game.observation_tensor_shape()
            self._action_space = spaces.Discrete(game.num_distinct_actions())
            game.new_initial_state().legal_actions_mask(0)
        except pyspiel.SpielError as error:
            raise StageError(f"{name} has no numbered actions, or no observations: {error}", key=_GAME) from error
        self._observation_space = spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)

    def observation_space(self, agent: Any) -> spaces.Box:
        """Return the space of every player's observations."""
        return self._observation_space

    def action_space(self, agent: Any) -> spaces.Discrete:
        """Return the space of every player's actions. In each state, a mask forbids the illegal ones."""
        return self._action_space

    def new_state(self, seed: int | None) -> Any:
        """Return an initial state. The seed matters only in games that sample their own chance events."""
        if seed is None or not self.draws:
            return self.game.new_initial_state()
        import pyspiel

        parameters = {**self.game.get_parameters(), _SEED: seed}
        return pyspiel.load_game(self.game.get_type().short_name, parameters).new_initial_state()

    def seen(self, state: Any, player: int) -> NDArray[np.float32]:
        """Return a player's view of a state: the information state or, in games that have none, the observation."""
        tensor = state.information_state_tensor(player) if self._informed else state.observation_tensor(player)
        observation = np.array(tensor, np.float32)
        return (
            observation
            if len(self._observation_space.shape) == 1
            else observation.reshape(self._observation_space.shape)
        )


def find_game(reference: str, options: Mapping[str, Any], folder: Path | None = None) -> OpenSpielGame:
    """Make a game.

    Args:
        reference: the game's name in OpenSpiel (`leduc_poker`), with parameters if necessary
            (`leduc_poker(players=3)`), and with its module in front if the game is not part of OpenSpiel
            (`my_module:my_game`).
        options: the game's parameters.
        folder: the YAML file's folder, whose modules can be imported.

    Raises:
        LoadError: if the game does not exist, or OpenSpiel is not installed.
        StageError: if the game does not take the parameters, or this kind of game is not supported.
    """
    name = f"OpenSpiel's game {reference!r}"
    try:
        import pyspiel
    except ImportError as error:
        raise LoadError(
            f"{name} needs the package open_spiel, which is not installed; install it with: "
            'python -m pip install "headrace[openspiel]"'
        ) from error
    head, bracket, rest = reference.partition("(")
    module, _, short = head.rpartition(":")
    with blaming(*_GAME):
        if module or short.startswith("python_"):
            import_module(module or "open_spiel.python.games", folder, name)
        games = {registered.short_name: registered.parameter_specification for registered in pyspiel.registered_games()}
        if short not in games:
            raise LoadError(
                f"{name}: this game does not exist{suggest(short, games) or f'; available: {_listed(games)}'}"
            )
        try:
            written = pyspiel.game_parameters_from_string(short + bracket + rest)
        except (RuntimeError, ValueError) as error:
            raise LoadError(f"{name}: expected a name, or a call such as {short}(players=2): {error}") from error
    del written["name"]
    parameters = {key: _fitting(key, value, games[short], name) for key, value in options.items()}
    try:
        made = pyspiel.load_game(short, {**written, **parameters})
    except Exception as error:
        said = " ".join(str(error).split())
        why = said.partition(" ")[2] if said.startswith("/") else said  # without the source location in front
        takes = f"; its parameters: {_listed(games[short])}" if games[short] else ""
        raise StageError(f"{name} can't be created: {why}{takes}", key=_OPTIONS) from error
    return OpenSpielGame(made, name)


def _fitting(key: str, value: Any, defaults: Mapping[str, Any], name: str) -> Any:
    """Convert a parameter to the type that OpenSpiel expects."""
    where = f"environment.options: {name}"
    if key == _SEED:
        raise StageError(f"{where}: the run sets {_SEED} from its own seed; leave it out", key=(*_OPTIONS, key))
    if key not in defaults:
        hint = suggest(key, defaults) or f"; it accepts {_listed(defaults) or 'no parameters'}"
        raise StageError(f"{where} does not accept {key!r}{hint}", key=(*_OPTIONS, key))
    wanted = type(defaults[key])
    if wanted is float and type(value) is int:
        return float(value)
    if wanted in _WORDS and type(value) is not wanted:
        raise StageError(
            f"{where}: {key}: expected {_WORDS[wanted]}, got {type_of(value)}: {value!r}", key=(*_OPTIONS, key)
        )
    return value


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))


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
        self.first_infos = {time_step.agent: time_step.info for time_step in first}
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
        ended_agents, received = {time_step.agent for time_step in ended}, self._received()
        others = [player for player, agent in enumerate(self.env.possible_agents) if agent not in ended_agents]
        return ended + [self._time_step(player, received[player], {}, truncated=True) for player in others]

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
