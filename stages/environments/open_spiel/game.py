"""An OpenSpiel game, made from its name and parameters, and its players' observations.

OpenSpiel's own conversion turns simultaneous games into turn-based ones, and hides a turn's moves until the turn is
over. `instance` plays a game, `making` makes a run's group, and `headrace.nash_conv` evaluates policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.errors import suggest
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
        found = np.array(tensor, np.float32)
        return found if len(self._observation_space.shape) == 1 else found.reshape(self._observation_space.shape)


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
        known = {each.short_name: each.parameter_specification for each in pyspiel.registered_games()}
        if short not in known:
            raise LoadError(
                f"{name}: this game does not exist{suggest(short, known) or f'; available: {_listed(known)}'}"
            )
        try:
            written = pyspiel.game_parameters_from_string(short + bracket + rest)
        except (RuntimeError, ValueError) as error:
            raise LoadError(f"{name}: expected a name, or a call such as {short}(players=2): {error}") from error
    del written["name"]
    parameters = {key: _fitting(key, value, known[short], name) for key, value in options.items()}
    try:
        made = pyspiel.load_game(short, {**written, **parameters})
    except Exception as error:
        said = " ".join(str(error).split())
        why = said.partition(" ")[2] if said.startswith("/") else said  # without the source location in front
        takes = f"; its parameters: {_listed(known[short])}" if known[short] else ""
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
