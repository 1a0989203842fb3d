"""Games of OpenSpiel as an environment group, beside states that are stepped by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import environment_requests
import numpy as np
import pytest

from headrace.config import EnvironmentSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.open_spiel import GameInstance, OpenSpielGame, find_game
from headrace.stages.environments.pettingzoo.group import PettingZooGroup

pyspiel = pytest.importorskip("pyspiel", reason="python -m pip install 'headrace[openspiel]'")

TITLES = [
    "kuhn_poker(players=3)",
    "leduc_poker",
    "tic_tac_toe",
    "connect_four",
    "backgammon",
    "goofspiel(num_cards=4,imp_info=True)",
    "matrix_rps",
    "hanabi",
    "coop_box_pushing(horizon=12)",
    "negotiation",
]


def group_of(game, num_envs=2, behavior="All", **settings):
    section = EnvironmentSettings.model_validate({"kind": "open_spiel", "game": game, **settings})
    return environment_requests.group_of(section, behavior, num_envs)


def at_random(result, random):
    """An action that is allowed for everybody who is asked."""
    batches = {}
    for behavior_id, steps in result.steps.items():
        if steps.action_masks is not None and len(steps.action_masks):
            chosen = (random.random(steps.action_masks.shape) * steps.action_masks).argmax(axis=1)
            batches[behavior_id] = ActionBatch(np.zeros((len(chosen), 0), np.float32), chosen[:, None].astype(np.int32))
    return batches


@dataclass
class Watched:
    """A game whose states are kept, so that what happened in them can be told."""

    game: OpenSpielGame
    begun: list = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.game, name)

    def new_state(self, seed):
        self.begun.append((seed, self.game.new_state(seed)))
        return self.begun[-1][1]


def by_hand(game, seed, history):
    """The rows of a game that is stepped anew: (player, mask or None at the end, reward, what is seen)."""
    state = game.new_state(seed)
    tensor = "information" if state.get_game().get_type().provides_information_state_tensor else "observation"
    see = getattr(state, f"{tensor}_state_tensor" if tensor == "information" else "observation_tensor")
    owed, rows, acted = np.zeros(state.num_players()), [], set()

    def row(player, mask):
        rows.append((player, mask, owed[player] if player in acted else 0.0, see(player)))
        owed[player] = 0.0

    for each in history:
        if not state.is_chance_node():
            owed += state.rewards()
            player = state.current_player()
            assert player == each.player
            row(player, state.legal_actions_mask(player))
            acted.add(player)
        state.apply_action(each.action)
    assert state.is_terminal()
    owed += state.rewards()
    for player in sorted(acted):
        row(player, None)
    return rows


def told(results, group, players):
    """The rows of each instance in their order, by the group; of a tick the endings come first."""
    rows = [[] for _ in range(group.num_envs)]
    for result in results:
        of_tick = []
        for steps in result.steps.values():
            for at, agent in enumerate(steps.agent_ids):
                ended = at < steps.ended
                assert not ended or steps.terminated[at]
                mask = None if ended else steps.action_masks[at - steps.ended].astype(int).tolist()
                player = int(agent) // group.num_envs // players
                of_tick.append(
                    (not ended, player, int(steps.env_ids[at]), mask, steps.rewards[at], steps.observations[0][at])
                )
        for _, player, env, mask, reward, seen in sorted(of_tick, key=lambda each: each[:2]):
            rows[env].append((player, mask, float(reward), seen.ravel().tolist()))
    return rows


@pytest.mark.parametrize("title", TITLES)
def test_random_games_equal_games_stepped_by_hand(title):
    game = find_game(title, {})
    watched = [Watched(game), Watched(game)]
    instances = [GameInstance(cast("OpenSpielGame", each), title) for each in watched]
    group = PettingZooGroup(instances, "All", title)
    random, results = np.random.default_rng(1), [group.reset(5)]
    while len(results) < 120:
        results.append(group.step(at_random(results[-1], random)))
    teams = 1 if game.cooperative else len(game.possible_agents)
    assert len(group.behavior_specs) == teams
    for found, each in zip(told(results, group, teams), watched, strict=True):
        ended = [(seed, state.full_history()) for seed, state in each.begun if state.is_terminal()]
        expected = [row for seed, history in ended for row in by_hand(game, seed, history)]
        assert ended
        for (player, mask, reward, seen), row in zip(found, expected, strict=False):
            assert (player, mask, seen) == (row[0], row[1], pytest.approx(row[3], abs=1e-5))
            assert reward == pytest.approx(row[2], abs=1e-5)
        assert len(found) >= len(expected)


def test_players_are_teams_of_one_behaviour_that_change_sides():
    group = group_of("kuhn_poker", num_envs=1)
    result, random = group.reset(0), np.random.default_rng(0)
    assert list(group.behavior_specs) == ["All?team=0", "All?team=1"]
    spec = group.behavior_specs["All?team=0"]
    assert (spec.observations[0].shape, spec.actions.discrete_branches, spec.actions.masked) == ((11,), (2,), True)
    begins, outcomes = set(), []
    for _ in range(30):
        result = group.step(at_random(result, random))
        if result.games is not None and len(result.games.env_ids):
            outcomes.append(result.games.outcomes[0].tolist())
            begins |= {name for name, steps in result.steps.items() if len(steps.agent_ids) > steps.ended}
    assert begins == {"All?team=0", "All?team=1"}
    assert {tuple(each) for each in outcomes} == {(0.0, 1.0), (1.0, 0.0)}


def test_players_of_common_rewards_are_one_team_and_roles_say_otherwise():
    shared = group_of("tiny_hanabi")
    shared.reset(0)
    assert list(shared.behavior_specs) == ["All"]
    apart = group_of("kuhn_poker", behavior="", behaviors={"player_0": "First", "*": "Second"})
    apart.reset(0)
    assert list(apart.behavior_specs) == ["First?team=0", "Second?team=1"]


@pytest.mark.parametrize("title", ["leduc_poker", "negotiation"])
def test_the_seed_determines_chance(title):
    def play(seed):
        group, random = group_of(title), np.random.default_rng(7)
        results = [group.reset(seed)]
        while len(results) < 40:
            results.append(group.step(at_random(results[-1], random)))
        return [steps.observations[0].tobytes() for result in results for steps in result.steps.values()]

    assert play(3) == play(3)
    assert play(3) != play(4)


def test_a_limit_truncates_all_players_with_what_they_see():
    group = group_of("tic_tac_toe", num_envs=1, max_episode_steps=2)
    result, random, ended = group.reset(0), np.random.default_rng(0), []
    while not ended:
        result = group.step(at_random(result, random))
        ended = [steps for steps in result.steps.values() if steps.ended]
    assert [bool(steps.truncated[0]) for steps in ended] == [True, True]
    board = {steps.observations[0][0].tobytes() for steps in ended}
    assert len(board) == 1, "both see the board as it is"


def test_boards_are_vectors_unless_pictures_are_requested():
    flat = group_of("connect_four")
    flat.reset(0)
    assert flat.behavior_specs["All?team=0"].observations[0].shape == (126,)
    shaped = group_of("connect_four", observations={"observation": {"kind": "image", "channels": "first"}})
    shaped.reset(0)
    assert sorted(shaped.behavior_specs["All?team=0"].observations[0].shape) == [3, 6, 7]
