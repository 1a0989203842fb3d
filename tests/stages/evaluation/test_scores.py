"""Scores: which episodes and games count, and what is told of them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.evaluation.scores import EpisodeResults, Score, ScoreKeeper, ScoreSums, score_table


def tick(ended=(), deciding=(), rewards=None, games=None, behavior_id="A", terminated=True, **more):
    """A tick of agents who live in the instance of their number; `rewards` by row, 1 if not given."""
    ids = np.array([*ended, *deciding], np.int64)
    steps = AgentSteps(
        ids,
        ids.astype(np.int32),
        np.zeros(len(ids), np.int64),
        (),
        np.ones(len(ids), np.float32) if rewards is None else np.array(rewards, np.float32),
        len(ended),
        np.full(len(ended), terminated),
        np.full(len(ended), not terminated),
    )
    return StepResult({behavior_id: steps}, games, **more)


def won_by(team, *env_ids):
    outcomes = np.zeros((len(env_ids), 2), np.float32)
    outcomes[:, team] = 1
    return GameResults(np.array(env_ids, np.int32), outcomes)


def keeper(wanted=None, replica=0, replicas=1, competes=False, ended=lambda: None):
    return ScoreKeeper(wanted, replica, replicas, lambda name: competes, ended)


def test_the_first_episodes_to_begin_count_not_the_first_to_end():
    told = []
    kept = keeper(2, ended=lambda: told.append(1))
    kept.begin(2, tick(deciding=(0, 1), rewards=(0, 0)))
    for _ in range(3):  # instance 0 plays many short episodes meanwhile, of which the first counts
        kept.add(tick(ended=(0,), deciding=(0, 1), rewards=(5, 0, 1)))
        assert not kept.complete
    kept.add(tick(ended=(1,), deciding=(0, 1), rewards=(1, 0, 0)))
    assert kept.drain() == {"A": EpisodeResults([5.0, 4.0], [1, 4], (0, 0, 0))}
    assert (kept.complete, told) == (True, [1])


@pytest.mark.parametrize(("wanted", "shares"), [(7, [2, 2, 2, 1]), (2, [1, 1, 0, 0])])
def test_instances_of_all_actors_have_equal_shares_the_first_ones_the_larger(wanted, shares):
    found = []
    for replica in range(2):
        kept = keeper(wanted, replica, 2)
        kept.begin(2, tick(deciding=(0, 1)))
        while not kept.complete:
            kept.add(tick(ended=(0, 1), deciding=(0, 1), rewards=(10, 20, 0, 0)))
        returns = [*kept.drain()["A"].returns]
        found += [sum(10 <= each < 15 for each in returns), sum(each >= 20 for each in returns)]
    assert found == shares


def test_an_interrupted_episode_is_repeated_and_counts_once():
    kept = keeper(1)
    kept.begin(1, tick(deciding=(0,), rewards=(0,)))
    kept.add(tick(deciding=(0,), rewards=(100,)))
    kept.add(tick(deciding=(0,), rewards=(0,), lost=np.array([0], np.int32)))  # the first row of another episode
    kept.begin(1, tick(deciding=(0,), rewards=(0,)))  # and the whole group is built again
    kept.add(tick(ended=(0,), deciding=(0,), rewards=(3, 0)))
    assert kept.drain()["A"] == EpisodeResults([3.0], [1], (0, 0, 0))


def test_games_count_that_episodes_count_in_and_each_side_has_its_own_results():
    kept = keeper(2)
    sides = tick(deciding=(0, 1)).steps["A"]
    begin = StepResult({"A?team=0": sides, "A?team=1": sides}, won_by(0))
    kept.begin(2, begin)
    over = tick(ended=(0, 1), deciding=(0, 1)).steps["A"]
    outcomes = GameResults(np.array([0, 1], np.int32), np.array([[1, 0], [0.5, 0.5]], np.float32))
    for _ in range(3):  # later games are of episodes that do not count
        kept.add(StepResult({"A?team=0": over, "A?team=1": over}, outcomes))
    drained = kept.drain()
    assert drained["A?team=0"].results == (1, 1, 0)
    assert drained["A?team=1"].results == (0, 1, 1)


def test_the_evaluation_waits_for_a_game_that_outlasts_the_counted_episodes():
    kept = keeper(1)
    kept.begin(1, tick(deciding=(0,), games=won_by(0)))
    kept.add(tick(ended=(0,)))
    assert not kept.complete
    kept.add(tick(games=won_by(0, 0)))
    assert kept.complete
    assert kept.drain()["A"].results == (1, 0, 0)


def test_a_game_without_a_result_is_not_waited_for_beyond_the_next_one():
    kept = keeper(1)
    kept.begin(1, tick(deciding=(0,), games=won_by(0)))
    kept.add(tick(ended=(0,)))
    kept.add(tick(deciding=(0,)))
    assert kept.complete
    assert kept.drain()["A"].results == (0, 0, 0)


def test_without_declared_games_the_last_reward_is_the_result():
    kept = keeper(competes=True)
    kept.begin(1, tick(deciding=(0,)))
    for reward in (1, -2, 0, 3):
        kept.add(tick(ended=(0,), deciding=(0,), rewards=(reward, 0)))
    kept.add(tick(ended=(0,), deciding=(0,), terminated=False))
    assert kept.drain()["A"].results == (2, 1, 1), "what was cut has none"


def test_sums_of_parts_are_those_of_the_whole():
    values = np.random.default_rng(1).normal(50, 7, 40)
    lengths = [*range(1, 41)]
    whole, parts = ScoreSums(keep=True), ScoreSums(keep=True)
    whole.add(EpisodeResults([*values], lengths, (3, 2, 1)))
    for part in (slice(0, 1), slice(1, 30), slice(30, 30), slice(30, 40)):
        other = ScoreSums(keep=True)
        other.add(EpisodeResults([*values[part]], lengths[part], (0, 0, 0)))
        parts.join(other)
    score, expected = parts.score(None), whole.score(1300.0)
    assert score is not None
    assert expected is not None
    assert (score.mean, score.deviation) == pytest.approx((values.mean(), values.std()))
    assert (score.lowest, score.highest) == (values.min(), values.max())
    assert (score.length, score.shortest, score.longest) == (20.5, 1, 40)
    assert score.returns == expected.returns
    assert (expected.won, expected.drawn, expected.lost, expected.rating) == (3, 2, 1, 1300.0)
    assert ScoreSums(keep=True).score(None) is None


def test_the_table_has_games_and_ratings_if_there_are_any():
    plain = Score(2, 1.5, 0.5, 1.0, 2.0, 10.0, 9, 11)
    assert score_table({"Pole": plain}).splitlines() == [
        "behaviour  episodes  mean return ± SD    min    max  length (min to max)",
        "Pole              2     1.500 ± 0.500  1.000  2.000       10.0 (9 to 11)",
    ]
    played = Score(4, 0.0, 1.0, -1.0, 1.0, 10.0, 9, 11, 3, 0, 1, 1234.4)
    heading, line, _ = score_table({"Ball?team=0": played, "Pole": plain}).splitlines()
    assert heading.endswith("won    drawn      lost   ELO")
    assert line.endswith("3 (75 %)  0 (0 %)  1 (25 %)  1234")
