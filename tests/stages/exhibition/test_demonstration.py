"""What a person plays is a demonstration: steps of one agent, as cloning reads them."""

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch, TrajectoryBatch
from headrace.queues.stream_file import StreamReader
from headrace.stages.exhibition.demonstration import Demonstration
from headrace.stages.games.volley import VolleyGroup
from headrace.stages.trainer.imitation.loading import load_demonstrations

LEFT, RIGHT = "Volley?team=0", "Volley?team=1"


def play(group, result, demonstration, ticks, agent=0):
    """Jump at every third tick, and record it; the result of the last tick."""
    for tick in range(ticks):
        actions = ActionBatch(np.zeros((1, 0), np.float32), np.array([[1 + tick % 2, tick % 3 == 0]], np.int32))
        if demonstration is not None:
            demonstration.add(result.steps[LEFT], actions, agent)
        result = group.step({LEFT: actions, RIGHT: actions})
    return result


def batches(demonstration):
    found = [frame.message for frame in StreamReader(demonstration.path)]
    assert all(isinstance(each, TrajectoryBatch) for each in found)
    return [each for each in found if isinstance(each, TrajectoryBatch)]


@pytest.fixture
def recorded(tmp_path):
    group = VolleyGroup(1, points_to_win=1)
    return group, group.reset(2), Demonstration(tmp_path / "a.stream", group.behavior_specs[LEFT], "run", {})


def test_each_step_is_recorded_with_its_action_and_the_result(recorded):
    group, result, demonstration = recorded
    seen = result.steps[LEFT].observations[0][0].copy()
    play(group, result, demonstration, 60)
    demonstration.close()
    found = load_demonstrations(str(demonstration.path), "Volley")
    assert len(found) == demonstration.steps - 1 == 59  # what comes of the last decision is not known
    assert len(found.episode_lengths) > 1
    first = batches(demonstration)[0]
    np.testing.assert_array_equal(first.rows["obs_0"][0], seen)
    assert found.choices[:3].tolist() == [[1, 1], [2, 0], [1, 0]]


def test_steps_of_other_players_in_between_are_omitted(recorded):
    group, result, demonstration = recorded
    result = play(group, result, demonstration, 5)
    demonstration.cut()
    result = play(group, result, None, 20)
    play(group, result, demonstration, 5)
    demonstration.close()
    lengths = [length for batch in batches(demonstration) for length in batch.lengths.tolist()]
    assert lengths == [4, 4]


def test_other_agents_steps_are_omitted(recorded):
    group, result, demonstration = recorded
    play(group, result, demonstration, 5, agent=7)
    assert demonstration.steps == 0
    demonstration.close()


@pytest.mark.lengthy
def test_a_long_game_is_written_in_parts_as_one_episode(tmp_path):
    group = VolleyGroup(1, points_to_win=1000)
    demonstration = Demonstration(tmp_path / "a.stream", group.behavior_specs[LEFT], "run", {})
    play(group, group.reset(2), demonstration, 200)
    assert sum(batch.num_rows for batch in batches(demonstration)) == 192  # as if the process had been killed
    demonstration.close()
    found = load_demonstrations(str(demonstration.path), "Volley")
    assert found.episode_lengths.tolist() == [199]
