"""Which games have ended, and how: told once per match, by the generation of the mapping that played it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update

from headrace.queues.messages import Assignment
from headrace.stages.actor.game_tracker import GameTracker
from headrace.stages.actor.policy_mapping import PolicyMapping, PolicyMappings
from headrace.stages.environments.protocol import GameResults, StepResult
from headrace.stages.errors import StageError

HOME, AWAY, THIRD = "Ball?team=0", "Ball?team=1", "Ball?team=2"


def watching(*behavior_ids, learning_team=0, num_envs=2):
    """Games under generation 1, and what watches them."""
    ids = behavior_ids or (HOME, AWAY)
    mappings = PolicyMappings(EchoPolicy, lambda name: name != "Walker")
    for behavior_id in ids:
        mappings.add_behavior(counting_spec(behavior_id))
        mappings.update(policy_update(behavior_id, 0))
    mappings.assign(Assignment(1, learning_team, {i: (-1, 0) for i in ids if i != "Walker"}))
    mappings.begin_games(num_envs)
    return mappings, GameTracker(mappings)


def swap(mappings, generation, team=0):
    named = {i: (-1, 0) for i in mappings.current.players if mappings.has_self_play(i)}
    mappings.assign(Assignment(generation, team, named))


def rows(*endings, deciding=()):
    """A behaviour id's tick: endings are (agent, env, reward[, truncated]), decisions (agent, env)."""
    agents = [e[0] for e in endings] + [agent for agent, _ in deciding]
    truncated = np.array([len(e) > 3 for e in endings], np.bool_)
    return SimpleNamespace(
        agent_ids=np.array(agents, np.int64),
        env_ids=np.array([e[1] for e in endings] + [env for _, env in deciding], np.int32),
        rewards=np.array([e[2] for e in endings] + [0.0] * len(deciding), np.float32),
        ended=len(endings),
        terminated=~truncated,
        truncated=truncated,
        group_rewards=None,
    )


def told(found, column="game_outcome"):
    return {behavior_id: columns[column].tolist() for behavior_id, columns in found.items()}


def result(games=None, **steps):
    names = {"home": HOME, "away": AWAY, "third": THIRD, "walker": "Walker"}
    return StepResult({names[name]: step for name, step in steps.items()}, games)


def over(env_ids, *outcomes):
    return GameResults(np.array(env_ids, np.int32), np.array(outcomes, np.float32))


def finish(watch, ticked):
    return watch.finish(ticked, "Arena")


PLAYING = {"home": rows(deciding=[(0, 0), (2, 1)]), "away": rows(deciding=[(1, 0), (3, 1)])}


# Declared. -----------------------------------------------------------------------------------------------------------


def test_a_declared_game_is_reported_by_the_learning_team_s_outcome():
    mappings, watch = watching(learning_team=1)
    found = finish(watch, result(over([1], [1.0, 0.0]), **PLAYING))
    assert {name: column.tolist() for name, column in found[AWAY].items()} == {
        "game_generation": [1],
        "game_team": [1],
        "game_opponent": [-1],
        "game_outcome": [0.0],
    }
    assert found.keys() == {AWAY}


def test_a_game_is_reported_with_the_mapping_that_played_it():
    mappings, watch = watching()
    swap(mappings, 2)
    assert told(finish(watch, result(over([0], [1.0, 0.0]), **PLAYING)), "game_generation") == {HOME: [1]}
    assert [game.generation for game in mappings.games] == [2, 1]
    found = finish(watch, result(over([0, 1], [0.0, 1.0], [0.5, 0.5]), **PLAYING))
    assert told(found, "game_generation") == {HOME: [2, 1]}
    assert told(found) == {HOME: [0.0, 0.5]}


def test_the_outcome_of_each_of_three_teams_is_reported():
    mappings, watch = watching(HOME, AWAY, THIRD)
    found = finish(watch, result(over([0], [0.5, 1.0, 0.0]), third=rows(deciding=[(9, 0)]), **PLAYING))
    assert told(found) == {HOME: [0.5]}
    assert told(found, "game_outcomes") == {HOME: [[0.5, 1.0, 0.0]]}


def test_a_ranking_of_three_teams_is_reported_as_the_share_of_beaten_opponents():
    _, watch = watching(HOME, AWAY, THIRD)
    places = over([0, 1], [70, 90, 5], [100, 0, 100])
    found = finish(watch, result(places, third=rows(deciding=[(9, 0)]), **PLAYING))
    assert told(found) == {HOME: [0.5, 0.75]}
    assert told(found, "game_outcomes") == {HOME: [[70, 90, 5], [100, 0, 100]]}


@pytest.mark.parametrize(
    ("outcomes", "complaint"),
    [
        ([1.0, -1], r"outcomes of instance 1's game are \[1.0, -1.0\]; expected.* 0 to 1, numbers .* that add up to 1"),
        ([1, 1], r"are \[1.0, 1.0\]; expected"),
        ([0, np.inf, 1], r"are \[0.0, inf, 1.0\]; expected, for each team id from 0 to 2, finite numbers"),
    ],
)
def test_invalid_outcomes_are_refused(outcomes, complaint):
    _, watch = watching()
    right = [0.5, 0.5, 0.5][: len(outcomes)]
    games = GameResults(np.array([0, 1]), np.array([right, outcomes]))
    with pytest.raises(StageError, match=f"environment Arena: its GameResults.*{complaint}"):
        finish(watch, result(games, **PLAYING))


@pytest.mark.parametrize(
    ("env_ids", "outcomes", "complaint"),
    [
        ([2], [[1.0, 0]], r"env_ids is \[2\]; expected different numbers from 0 to 1"),
        ([1, 0, 1], [[1.0, 0]] * 3, r"env_ids is \[1, 0, 1\]; expected different numbers"),
        ([0, 1], [[1, 0]], r"has shape \[2\] and outcomes \[1, 2\]"),
    ],
)
def test_invalid_game_results_are_refused(env_ids, outcomes, complaint):
    _, watch = watching()
    games = GameResults(np.array(env_ids), np.array(outcomes))
    with pytest.raises(StageError, match=f"environment Arena: its GameResults.*{complaint}"):
        finish(watch, result(games, **PLAYING))


def test_outcomes_may_be_rounded_and_results_lists():
    _, watch = watching()
    lists: Any = GameResults  # as the users' own environments may fill it
    almost = lists([0, 1], [[0.49999997, 0.50000003], [1.0000001, 0]])
    assert told(finish(watch, result(almost, **PLAYING))) == {HOME: [0.5, 1.0]}
    assert finish(watch, result(lists([], []), **PLAYING)) == {}


def test_results_of_fewer_teams_than_there_are_are_refused():
    _, watch = watching(HOME, AWAY, THIRD)
    with pytest.raises(
        StageError,
        match="environment Arena: .* have columns for 2 teams, but team 2 plays; add a column for each team id",
    ):
        finish(watch, result(over([0], [0.0, 1.0]), **PLAYING))


def test_declared_games_replace_guesses():
    mappings, watch = watching()
    watch.begin(result(over([], *np.zeros((0, 2))), **PLAYING))
    swap(mappings, 2)
    leaves = rows((0, 0, 1.0), deciding=[(2, 1)])
    assert finish(watch, result(home=leaves, away=PLAYING["away"])) == {}
    assert [game.generation for game in mappings.games] == [1, 1]


def test_a_result_without_rows_of_the_learning_team_is_sent_with_another_batch_or_later():
    mappings, watch = watching()
    assert told(finish(watch, result(over([0], [0.0, 1.0]), away=PLAYING["away"]))) == {AWAY: [0.0]}
    assert finish(watch, result(over([1], [1.0, 0.0]))) == {}
    assert told(finish(watch, result(over([], *np.zeros((0, 2))), **PLAYING))) == {HOME: [1.0]}


# Guessed. ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reward", "outcome"), [(0.3, 1.0), (-2.0, 0.0), (0.0, 0.5)])
def test_the_sign_of_the_learner_s_last_reward_is_the_result(reward, outcome):
    mappings, watch = watching()
    watch.begin(result(**PLAYING))
    swap(mappings, 2)
    home = rows((0, 0, reward), deciding=[(0, 0), (2, 1)])
    away = rows((1, 0, -9.0), deciding=[(1, 0), (3, 1)])
    found = finish(watch, result(home=home, away=away))
    assert (told(found), told(found, "game_generation")) == ({HOME: [outcome]}, {HOME: [1]})
    assert [game.generation for game in mappings.games] == [2, 1]


def test_a_truncated_game_ends_without_a_result():
    mappings, watch = watching()
    watch.begin(result(**PLAYING))
    swap(mappings, 2)
    assert finish(watch, result(home=rows((0, 0, 1.0, "cut"), deciding=[(0, 0), (2, 1)]), away=PLAYING["away"])) == {}
    assert [game.generation for game in mappings.games] == [2, 1]


def test_a_team_s_match_is_over_once_and_only_when_its_last_agent_has_ended():
    mappings, watch = watching(num_envs=1)
    team = [(0, 0), (2, 0), (4, 0)]
    watch.begin(result(home=rows(deciding=team), away=rows(deciding=[(1, 0)])))
    swap(mappings, 2)
    assert finish(watch, result(home=rows((0, 0, -1.0), deciding=team[1:]), away=rows(deciding=[(1, 0)]))) == {}
    assert finish(watch, result(home=rows(deciding=team[1:]), away=rows(deciding=[(1, 0)]))) == {}
    assert [game.generation for game in mappings.games] == [1]
    last = rows((2, 0, 1.0), (4, 0, -1.0), deciding=team)
    assert told(finish(watch, result(home=last, away=rows(deciding=[(1, 0)])))) == {HOME: [1.0]}, "the first agent's"
    assert [game.generation for game in mappings.games] == [2]


@pytest.mark.parametrize("newcomer", [0, 7], ids=["the same agent", "another one"])
def test_agents_that_restart_one_by_one_have_a_game_each(newcomer):
    """An arena in which an agent that is out comes back at once has no end that all share."""
    mappings, watch = watching(num_envs=1)
    watch.begin(result(home=rows(deciding=[(0, 0), (2, 0)]), away=rows(deciding=[(1, 0)])))
    swap(mappings, 2)
    home = rows((0, 0, -1.0), deciding=[(newcomer, 0), (2, 0)])
    assert told(finish(watch, result(home=home, away=rows(deciding=[(1, 0)])))) == {HOME: [0.0]}
    assert [game.generation for game in mappings.games] == [2]


def test_an_opponent_s_ending_ends_no_match_while_the_learning_team_plays_on():
    mappings, watch = watching(num_envs=1)
    watch.begin(result(home=rows(deciding=[(0, 0)]), away=rows(deciding=[(1, 0)])))
    swap(mappings, 2)
    away = rows((1, 0, 1.0), deciding=[(1, 0)])
    assert finish(watch, result(home=rows(deciding=[(0, 0)]), away=away)) == {}
    assert [game.generation for game in mappings.games] == [1]


def test_a_lost_game_has_no_result():
    mappings, watch = watching(num_envs=1)
    watch.begin(result(home=rows(deciding=[(0, 0), (2, 0)]), away=rows(deciding=[(1, 0)])))
    watch.forget(np.array([0], np.int32))
    mappings.restart_games(np.array([0], np.int32))
    assert finish(watch, result(home=rows(deciding=[(4, 0)]), away=rows(deciding=[(1, 0)]))) == {}
    assert told(finish(watch, result(home=rows((4, 0, 1.0))))) == {HOME: [1.0]}


def test_behaviours_without_self_play_have_no_games():
    mappings, watch = watching(HOME, AWAY, "Walker", num_envs=1)
    watch.begin(result(walker=rows(deciding=[(5, 0)]), home=rows(deciding=[(0, 0)])))
    swap(mappings, 2)
    walker = rows((5, 0, 1.0), deciding=[(5, 0)])
    assert finish(watch, result(walker=walker, home=rows(deciding=[(0, 0)]))) == {}
    assert [game.generation for game in mappings.games] == [1]


def test_a_mate_that_need_not_decide_at_a_tick_plays_on():
    """Such as one whose action is held for several environment steps."""
    mappings, watch = watching()
    watch.begin(result(home=rows(deciding=[(0, 0), (2, 0)]), away=rows(deciding=[(1, 0)])))
    finish(watch, result(home=rows(deciding=[(0, 0)])))
    assert not finish(watch, result(home=rows((0, 0, -1.0))))
    assert told(finish(watch, result(home=rows((2, 0, 1.0)), away=rows((1, 0, -1.0))))) == {HOME: [1.0]}


class Named(PolicyMappings):
    """Mappings whose results say who has played, as in a league."""

    names_players = True


def test_league_games_carry_the_mean_undiscounted_return_of_each_team():
    mappings = Named(EchoPolicy, lambda name: True)
    for behavior_id in (HOME, AWAY):
        mappings.add_behavior(counting_spec(behavior_id))
        mappings.update(policy_update(behavior_id, 0))
    mappings.assign(Assignment(1, 0, {HOME: (-1, 0), AWAY: (-1, 0)}))
    mappings.begin_games(2)
    mappings.games = [PolicyMapping(1, -1, 0, game.players, game.learners, codes=(-1, 4)) for game in mappings.games]
    watch = GameTracker(mappings)

    def ticked(home, away, games=None):
        """Rewards of two home agents and one away agent in instance 1; the last tick ends their episodes."""
        steps = {
            HOME: rows(*((agent, 1, reward) for agent, reward in enumerate(home))),
            AWAY: rows(*((9, 1, reward) for reward in away)),
        }
        for each in steps.values():
            each.undiscounted = None
            if games is None:
                each.ended = 0
        return StepResult(steps, games)

    watch.begin(ticked([0, 0], [0]))
    assert finish(watch, ticked([1, 2], [-1])) == {}
    found = finish(watch, ticked([3, 0], [5], over([1], (1, 0))))
    (columns,) = found.values()
    assert columns["game_players"].tolist() == [[-1, 4]]
    assert columns["game_returns"].tolist() == [[3.0, 4.0]]
    assert columns["game_outcome"].tolist() == [1.0]
