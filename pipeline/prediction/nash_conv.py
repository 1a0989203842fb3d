"""Measures how far policies are from an equilibrium of an OpenSpiel game, with OpenSpiel's evaluator.

Each information state of the game is visited once to get the policies' action probabilities. OpenSpiel's
`PolicyAggregator` turns a mixture into one equivalent policy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.prediction.policy import LoadedMixture, LoadedPolicy, load_policy
from headrace.stages.environments.open_spiel import OpenSpielGame, find_game
from headrace.stages.errors import StageError

Policy = LoadedPolicy | LoadedMixture | str | os.PathLike[str] | Any
_Probabilities = Mapping[str, Mapping[int, float]]
"""Probability of each action, keyed by information state."""
_States = Mapping[str, Any]
"""One game state for each of a player's information states, keyed by information state string."""


def nash_conv(
    policy: Policy | Sequence[Policy] | Mapping[int, Policy | Sequence[Policy]],
    game: str | Any,
    *,
    options: Mapping[str, Any] | None = None,
    weights: Sequence[float] | Mapping[int, Sequence[float]] | None = None,
    behavior: str | None = None,
    checkpoint: str | int | None = None,
    max_states: int = 1_000_000,
) -> float:
    """Return the NashConv of policies: the sum of what each player could gain by a best response.

        nash_conv("results/kuhn", "kuhn_poker")
        nash_conv([early, late], "kuhn_poker", weights=[1, 3])  # a mixture

    NashConv is 0 at an equilibrium. In a two-player game, exploitability is half of NashConv.

    Args:
        policy: a policy from `load_policy`, its argument (a run's folder or file), the result of `run`, or an OpenSpiel
            policy; it plays for all players. A list is a mixture, like that of a league: each player independently
            draws a policy before each game. A map gives a policy or a list for each player 0, 1, ….
        game: the game's name, as in `environment.game`, or an OpenSpiel game.
        options: the game's parameters, as in `environment.options`.
        weights: a mixture's relative weights; None for equal weights. A map gives the weights for each player.
        behavior: the behaviour to load from a run with several.
        checkpoint: "best", "last" or a step, if the policy is loaded from a run.
        max_states: maximum number of game states to visit, including chance nodes.

    Raises:
        RunError: if a policy can't be loaded or has no probabilities per state, if the weights do not fit, or if the
            game is missing or too large.
        PredictError: if a policy does not fit the game.
    """
    try:
        played = find_game(game, options or {}) if isinstance(game, str) else OpenSpielGame(game, f"the game {game}")
    except StageError as error:
        raise RunError(f"nash_conv: {error}") from error
    from open_spiel.python.algorithms import exploitability, policy_aggregator

    players, (policy, weights) = range(len(played.possible_agents)), _of_league(policy, weights)
    pools = [_of_player(policy, player, players, "policy") for player in players]
    shares = [_shares(_of_player(weights, player, players, "weights"), len(pool)) for player, pool in enumerate(pools)]
    distinct = {id(member): member for pool in pools for member in pool}
    loaded = {key: _loaded(member, behavior, checkpoint) for key, member in distinct.items()}
    states = _information_states(played, max_states)
    tables = [
        [_Tables({player: _probabilities(loaded[id(member)], played, player, states[player])}) for member in pool]
        for player, pool in enumerate(pools)
    ]
    if all(len(pool) == 1 for pool in tables):
        joint: Any = _Tables({player: table.by_player[player] for player, (table,) in enumerate(tables)})
    else:
        joint = policy_aggregator.PolicyAggregator(played.game).aggregate([*players], tables, shares)
    return float(exploitability.nash_conv(played.game, joint))


class _Tables:
    """Players' policies in OpenSpiel's form: the probability of each action, for each player and information state."""

    def __init__(self, by_player: Mapping[int, _Probabilities]) -> None:
        self.by_player = by_player

    def action_probabilities(self, state: Any, player_id: int | None = None) -> Mapping[int, float]:
        """Return a player's action probabilities in a state, by default those of the player to move."""
        player = state.current_player() if player_id is None else player_id
        return self.by_player[player][state.information_state_string(player)]


def _of_league(policy: Any, weights: Any) -> tuple[Any, Any]:
    """Return the policy and weights arguments, with league mixtures replaced by their members and probabilities."""
    if isinstance(policy, Mapping) and any(isinstance(entry, LoadedMixture) for entry in policy.values()):
        given = weights if isinstance(weights, Mapping) else dict.fromkeys(policy, weights)
        parts = {player: _of_league(entry, given.get(player)) for player, entry in policy.items()}
        return {player: part[0] for player, part in parts.items()}, {player: part[1] for player, part in parts.items()}
    if not isinstance(policy, LoadedMixture):
        return policy, weights
    if weights is not None:
        raise RunError("nash_conv: weights: the mixture of a league has its own weights; omit this argument")
    return policy.members, policy.probabilities


def _of_player(given: Any, player: int, players: Sequence[int], what: str) -> Any:
    """Return a player's part of an argument that is for all players or keyed by player; policies become a list."""
    if isinstance(given, Mapping):
        if set(given) != {*players}:
            raise RunError(f"nash_conv: {what}: expected the players {[*players]} as keys, got {[*given]}")
        given = given[player]
    if what == "policy" and not isinstance(given, list | tuple):
        return [given]
    return given


def _shares(weights: Any, count: int) -> list[float]:
    """Return a mixture's weights, normalised to sum to 1."""
    if count == 0:
        raise RunError("nash_conv: policy: the list is empty; expected at least one")
    if weights is None:
        return [1 / count] * count
    values = [float(value) for value in weights]
    if len(values) != count or not all(math.isfinite(value) and value >= 0 for value in values) or not sum(values):
        raise RunError(
            f"nash_conv: weights: expected one non-negative weight for each of {count} policies, not all 0; got "
            f"{values}"
        )
    return [value / sum(values) for value in values]


def _information_states(played: OpenSpielGame, most: int) -> list[_States]:
    """Return each player's information states."""
    if played.draws or not played.game.get_type().provides_information_state_string:
        why = "samples its chance events itself" if played.draws else "does not provide information states"
        raise RunError(f"nash_conv: {played.name} {why}, so best responses can't be found")
    by_player: list[dict[str, Any]] = [{} for _ in played.possible_agents]
    waiting, visited = [played.game.new_initial_state()], 0
    while waiting:
        state, visited = waiting.pop(), visited + 1
        if visited > most:
            raise RunError(
                f"nash_conv: {played.name} has more than {most} states, and nash_conv must visit all of them; use a "
                "smaller version of the game, or raise max_states"
            )
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            player = state.current_player()
            by_player[player].setdefault(state.information_state_string(player), state)
        waiting += [state.child(action) for action in state.legal_actions()]
    return [*by_player]


def _loaded(policy: Any, behavior: str | None, checkpoint: str | int | None) -> Any:
    if callable(getattr(policy, "action_probabilities", None)):
        return policy
    if not isinstance(policy, LoadedPolicy):
        policy = load_policy(getattr(policy, "folder", policy), behavior, checkpoint)
    elif behavior is not None or checkpoint is not None:
        raise RunError(
            "nash_conv: behavior and checkpoint choose a policy from a run, but this policy is already loaded; omit "
            "them"
        )
    if policy.state_size:
        raise RunError(f"nash_conv: {policy.file} has a memory, so its action does not depend on the state alone")
    if policy.action_repeat not in (None, 1):
        raise RunError(
            f"nash_conv: {policy.file} holds each action for several steps, so its action does not depend on the "
            "state alone"
        )
    return policy


def _probabilities(policy: Any, played: OpenSpielGame, player: int, states: _States) -> _Probabilities:
    """Return the probability of each legal action in each of a player's information states."""
    if not isinstance(policy, LoadedPolicy):
        return {key: dict(policy.action_probabilities(state, player)) for key, state in states.items()}
    if not states:
        return {}
    seen = np.stack([played.seen(state, player) for state in states.values()])
    masks = np.array([state.legal_actions_mask(player) for state in states.values()], np.bool_)
    branches = policy.distribution(seen, mask=masks).probabilities
    if len(branches) != 1 or branches[0].shape != masks.shape:
        raise RunError(
            f"nash_conv: {policy.file} does not choose from the {masks.shape[1]} actions of {played.name}; expected "
            "a policy that was trained in this game"
        )
    exact = branches[0].astype(np.float64)
    exact /= exact.sum(axis=1, keepdims=True)
    rows = zip(states, exact, masks, strict=True)
    return {key: {int(action): float(row[action]) for action in np.flatnonzero(mask)} for key, row, mask in rows}
