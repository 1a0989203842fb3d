"""Which games have ended, and how: told once per match, by the generation of the lineup that played it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update

from queues.messages import Assignment
from stages.environment.games import GameWatch
from stages.environment.lineup import Lineups
from stages.environment.protocol import GameResults, StepResult
from stages.errors import BrokenEnvironmentError

HOME, AWAY, THIRD = "Ball?team=0", "Ball?team=1", "Ball?team=2"


def watching(*behavior_ids, learning_team=0, num_envs=2):
    """Games under generation 1, and what watches them."""
    ids = behavior_ids or (HOME, AWAY)
    lineups = Lineups(EchoPolicy, lambda name: name != "Walker")
    for behavior_id in ids:
        lineups.add_behavior(counting_spec(behavior_id))
        lineups.update(policy_update(behavior_id, 0))
    lineups.assign(Assignment(1, learning_team, {i: (-1, 0) for i in ids if i != "Walker"}))
    lineups.open_games(num_envs)
    return lineups, GameWatch(lineups)


def swap(lineups, generation, team=0):
    named = {i: (-1, 0) for i in lineups.current.players if lineups.plays(i)}
    lineups.assign(Assignment(generation, team, named))


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


PLAYING = {"home": rows(deciding=[(0, 0), (2, 1)]), "away": rows(deciding=[(1, 0), (3, 1)])}


# Declared. -----------------------------------------------------------------------------------------------------------


def test_a_declared_game_is_told_by_the_learning_team_s_outcome():
    lineups, watch = watching(learning_team=1)
    found = watch.finish(result(over([1], [1.0, 0.0]), **PLAYING))
    assert {name: column.tolist() for name, column in found[AWAY].items()} == {
        "game_generation": [1],
        "game_team": [1],
        "game_opponent": [-1],
        "game_outcome": [0.0],
    }
    assert found.keys() == {AWAY}


def test_a_game_is_told_of_the_lineup_that_played_it_and_the_next_one_has_the_current_lineup():
    lineups, watch = watching()
    swap(lineups, 2)
    assert told(watch.finish(result(over([0], [1.0, 0.0]), **PLAYING)), "game_generation") == {HOME: [1]}
    assert [game.generation for game in lineups.games] == [2, 1]
    found = watch.finish(result(over([0, 1], [0.0, 1.0], [0.5, 0.5]), **PLAYING))
    assert told(found, "game_generation") == {HOME: [2, 1]}
    assert told(found) == {HOME: [0.0, 0.5]}


def test_a_game_of_the_turn_before_is_told_for_the_team_that_learned_then():
    lineups, watch = watching()
    swap(lineups, 2, team=1)
    found = watch.finish(result(over([0], [1.0, 0.0]), **PLAYING))
    assert (told(found), told(found, "game_team")) == ({HOME: [1.0]}, {HOME: [0]})


def test_of_more_than_two_teams_each_one_s_outcome_is_told():
    lineups, watch = watching(HOME, AWAY, THIRD)
    found = watch.finish(result(over([0], [0.5, 1.0, 0.0]), third=rows(deciding=[(9, 0)]), **PLAYING))
    assert told(found) == {HOME: [0.5]}
    assert told(found, "game_outcomes") == {HOME: [[0.5, 1.0, 0.0]]}


def test_an_environment_that_tells_of_fewer_teams_than_there_are_is_told_so():
    _, watch = watching(HOME, AWAY, THIRD)
    with pytest.raises(BrokenEnvironmentError, match="about 2 teams, but team 2 plays; give a column for each team id"):
        watch.finish(result(over([0], [0.0, 1.0]), **PLAYING))


def test_where_games_are_declared_nothing_is_guessed():
    lineups, watch = watching()
    watch.begin(result(over([], *np.zeros((0, 2))), **PLAYING))
    swap(lineups, 2)
    leaves = rows((0, 0, 1.0), deciding=[(2, 1)])
    assert watch.finish(result(home=leaves, away=PLAYING["away"])) == {}
    assert [game.generation for game in lineups.games] == [1, 1]


def test_a_result_that_nobody_of_the_learning_team_is_there_to_carry_goes_with_another_s_batch_or_waits():
    lineups, watch = watching()
    assert told(watch.finish(result(over([0], [0.0, 1.0]), away=PLAYING["away"]))) == {AWAY: [0.0]}
    assert watch.finish(result(over([1], [1.0, 0.0]))) == {}
    assert told(watch.finish(result(over([], *np.zeros((0, 2))), **PLAYING))) == {HOME: [1.0]}


# Guessed. ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reward", "outcome"), [(0.3, 1.0), (-2.0, 0.0), (0.0, 0.5)])
def test_the_sign_of_the_learner_s_last_reward_is_the_result(reward, outcome):
    lineups, watch = watching()
    watch.begin(result(**PLAYING))
    swap(lineups, 2)
    home = rows((0, 0, reward), deciding=[(0, 0), (2, 1)])
    away = rows((1, 0, -9.0), deciding=[(1, 0), (3, 1)])
    found = watch.finish(result(home=home, away=away))
    assert (told(found), told(found, "game_generation")) == ({HOME: [outcome]}, {HOME: [1]})
    assert [game.generation for game in lineups.games] == [2, 1]


def test_what_was_cut_short_has_no_result_but_ends():
    lineups, watch = watching()
    watch.begin(result(**PLAYING))
    swap(lineups, 2)
    assert watch.finish(result(home=rows((0, 0, 1.0, "cut"), deciding=[(0, 0), (2, 1)]), away=PLAYING["away"])) == {}
    assert [game.generation for game in lineups.games] == [2, 1]


def test_the_group_s_last_reward_counts_too():
    _, watch = watching()
    watch.begin(result(**PLAYING))
    home = rows((0, 0, -1.0), deciding=[(0, 0)])
    home.group_rewards = np.array([3.0, 0.0], np.float32)
    assert told(watch.finish(result(home=home))) == {HOME: [1.0]}


def test_a_team_s_match_is_over_once_and_only_when_its_last_agent_has_ended():
    lineups, watch = watching(num_envs=1)
    team = [(0, 0), (2, 0), (4, 0)]
    watch.begin(result(home=rows(deciding=team), away=rows(deciding=[(1, 0)])))
    swap(lineups, 2)
    assert watch.finish(result(home=rows((0, 0, -1.0), deciding=team[1:]), away=rows(deciding=[(1, 0)]))) == {}
    assert watch.finish(result(home=rows(deciding=team[1:]), away=rows(deciding=[(1, 0)]))) == {}
    assert [game.generation for game in lineups.games] == [1]
    last = rows((2, 0, 1.0), (4, 0, -1.0), deciding=team)
    assert told(watch.finish(result(home=last, away=rows(deciding=[(1, 0)])))) == {HOME: [1.0]}, "the first agent's"
    assert [game.generation for game in lineups.games] == [2]


@pytest.mark.parametrize("newcomer", [0, 7], ids=["the same agent", "another one"])
def test_agents_that_begin_anew_one_by_one_have_a_game_each(newcomer):
    """An arena in which whoever is out comes back at once has no end that all share."""
    lineups, watch = watching(num_envs=1)
    watch.begin(result(home=rows(deciding=[(0, 0), (2, 0)]), away=rows(deciding=[(1, 0)])))
    swap(lineups, 2)
    home = rows((0, 0, -1.0), deciding=[(newcomer, 0), (2, 0)])
    assert told(watch.finish(result(home=home, away=rows(deciding=[(1, 0)])))) == {HOME: [0.0]}
    assert [game.generation for game in lineups.games] == [2]


def test_an_opponent_s_ending_ends_no_match_while_the_learning_team_plays_on():
    lineups, watch = watching(num_envs=1)
    watch.begin(result(home=rows(deciding=[(0, 0)]), away=rows(deciding=[(1, 0)])))
    swap(lineups, 2)
    away = rows((1, 0, 1.0), deciding=[(1, 0)])
    assert watch.finish(result(home=rows(deciding=[(0, 0)]), away=away)) == {}
    assert [game.generation for game in lineups.games] == [1]


def test_a_tick_that_is_about_some_instances_leaves_the_others_games_alone():
    lineups, watch = watching()
    away = rows(deciding=[(1, 0), (11, 1)])
    watch.begin(result(home=rows(deciding=[(0, 0), (2, 0), (10, 1), (12, 1)]), away=away))
    swap(lineups, 2)
    assert watch.finish(result(home=rows(deciding=[(0, 0), (2, 0)]), away=rows(deciding=[(1, 0)]))) == {}
    assert watch.finish(result(home=rows((10, 1, -1.0), deciding=[(12, 1)]), away=rows(deciding=[(11, 1)]))) == {}
    assert [game.generation for game in lineups.games] == [1, 1]
    assert told(watch.finish(result(home=rows((12, 1, 1.0))))) == {HOME: [1.0]}
    assert [game.generation for game in lineups.games] == [1, 2]


def test_of_a_game_that_was_lost_nothing_is_told_nor_mixed_up_with_the_next():
    lineups, watch = watching(num_envs=1)
    watch.begin(result(home=rows(deciding=[(0, 0), (2, 0)]), away=rows(deciding=[(1, 0)])))
    watch.forget(np.array([0], np.int32))
    lineups.restart(np.array([0], np.int32))
    assert watch.finish(result(home=rows(deciding=[(4, 0)]), away=rows(deciding=[(1, 0)]))) == {}
    assert told(watch.finish(result(home=rows((4, 0, 1.0))))) == {HOME: [1.0]}


def test_where_nobody_of_the_learning_team_is_left_an_opponent_s_ending_ends_the_match():
    lineups, watch = watching(num_envs=1)
    watch.begin(result(away=rows(deciding=[(1, 0)])))
    swap(lineups, 2)
    assert watch.finish(result(away=rows((1, 0, 1.0), deciding=[(1, 0)]))) == {}
    assert [game.generation for game in lineups.games] == [2]


def test_behaviours_without_self_play_have_no_games():
    lineups, watch = watching(HOME, AWAY, "Walker", num_envs=1)
    watch.begin(result(walker=rows(deciding=[(5, 0)]), home=rows(deciding=[(0, 0)])))
    swap(lineups, 2)
    walker = rows((5, 0, 1.0), deciding=[(5, 0)])
    assert watch.finish(result(walker=walker, home=rows(deciding=[(0, 0)]))) == {}
    assert [game.generation for game in lineups.games] == [1]
