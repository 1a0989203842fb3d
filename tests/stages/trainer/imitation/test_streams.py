"""Recordings as demonstrations: whose steps, in which order, and what their actions mean."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from imitation_spec import SPEC

from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.loading import read_stream


def test_an_episode_in_pieces_is_put_together_whatever_else_was_recorded_in_between(record, expert):
    batches = [
        expert([2, 1], seed=1, agent_ids=[7, 5], episode_ids=[0, 0], terminated=[False] * 2, truncated=[False] * 2),
        expert([3, 2], seed=2, agent_ids=[5, 7], episode_ids=[0, 0], terminated=[False, True], truncated=[False] * 2),
        expert([1, 4], seed=3, agent_ids=[7, 5], episode_ids=[1, 0], terminated=[False, True], truncated=[False] * 2),
    ]
    found = read_stream(record(batches), "Test")
    assert found.lengths.tolist() == [1, 3, 4, 2, 2, 1]  # agent 5's only episode, then agent 7's two
    assert found.starts_episode.tolist() == [True, False, False, True, False, True]
    assert found.episode_lengths.tolist() == [8, 4, 1]
    assert found.episode_starts.tolist() == [0, 8, 12]
    observed = [batch.rows["obs_0"] for batch in batches]
    expected = [observed[0][2:], observed[1][:3], observed[2][1:], observed[0][:2], observed[1][3:], observed[2][:1]]
    np.testing.assert_array_equal(found.observations[0], np.concatenate(expected))
    assert found.terminated.tolist() == [False, False, True, False, True, False]


def test_an_episode_ends_at_its_end_even_if_the_next_has_the_same_number(record, expert):
    batch = expert([2, 3], agent_ids=[4, 4], episode_ids=[0, 0], terminated=[False, False], truncated=[True, False])
    assert read_stream(record([batch]), "Test").starts_episode.tolist() == [True, True]


def test_only_what_the_learning_team_played_is_demonstrated(record, expert):
    batch = expert(
        [2, 3, 4, 5],
        agent_ids=[1, 1, 1, 2],
        episode_ids=[0, 0, 0, 0],
        terminated=[False] * 4,
        truncated=[False] * 4,
        learning=[True, False, True, False],
    )
    found = read_stream(record([batch]), "Test")
    assert found.lengths.tolist() == [2, 4]
    assert found.starts_episode.tolist() == [True, True]  # somebody else played in between
    np.testing.assert_array_equal(found.observations[0], batch.rows["obs_0"][[0, 1, 5, 6, 7, 8]])


SCRIPT = [{"use": "my_players:Lean", "weight": 1.0, "teams": None}]


def by(brain, **more):
    return {"behaviors": {"Test": {"trainer_type": "ppo", "brain": brain, "broadcast": True, **more}}}


@pytest.mark.parametrize("brain", [SCRIPT, "random", {"use": "random"}, [{"use": "a:B", "weight": 0.5}] * 2])
def test_brains_that_play_all_games_are_the_experts(record, expert, brain):
    batches = [
        expert([2, 3], agent_ids=[1, 2], terminated=[False] * 2, truncated=[False] * 2, learning=[False] * 2),
        expert([4], agent_ids=[1], terminated=[True], truncated=[False], learning=[False]),
    ]
    found = read_stream(record(batches, edge="agent_processor", config=by(brain)), "Test")
    assert found.lengths.tolist() == [2, 4, 3]
    assert found.episode_lengths.tolist() == [6, 3]


@pytest.mark.parametrize("brain", [[], "learning", [{"use": "a:B", "weight": 0.5}], [{"use": "a:B", "teams": [1]}], 7])
def test_brains_that_play_only_some_games_are_no_experts(record, expert, brain):
    batch = expert([2, 3], agent_ids=[1, 2], learning=[True, False])
    path = record([batch], edge="agent_processor", config=by(brain))
    assert read_stream(path, "Test").lengths.tolist() == [2]


def test_a_students_input_is_demonstrated_even_if_its_teacher_is_a_script(record, expert):
    student = replace(SPEC, behavior_id="Student")
    config = by(SCRIPT)
    config["behaviors"]["Student"] = {"trainer_type": "bc", "hyperparameters": {"teacher": "Test"}}
    path = record([expert([2, 3], student, learning=[False, False])], spec=student, config=config)
    assert read_stream(path, "Student").lengths.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("behaviors", "given"),
    [({"Test": {"trainer_type": "sac"}}, [0.6, -0.9]), ({"Test": {"trainer_type": "ppo"}}, [0.2, -0.3])],
)
def test_actions_are_converted_to_the_environments_units_by_the_headers_trainer(record, expert, behaviors, given):
    batch = expert([1], continuous_actions=np.array([[0.6, -0.9]], np.float32))
    found = read_stream(record([batch], config={"behaviors": behaviors}), "Test")
    np.testing.assert_allclose(found.continuous, [given], rtol=1e-6)


def test_masks_are_included_if_there_are_any(record, expert):
    spec = replace(SPEC, actions=replace(SPEC.actions, masked=True))
    masks = np.array([[True, False, True], [False, True, True]])
    batch = expert([2], spec, action_masks=masks)
    np.testing.assert_array_equal(read_stream(record([batch], spec=spec), "Test").masks, masks)
    assert read_stream(record([expert([2])], "without.stream"), "Test").masks is None


def test_of_several_behaviours_the_one_of_that_name_is_taken_and_a_single_one_whatever_its_name(record, expert):
    other = replace(SPEC, behavior_id="Other?team=1")
    both = [expert([2]), expert([3], other, seed=5)]
    path = record(both, specs=(SPEC, other))
    assert len(read_stream(path, "Test")) == 2
    assert len(read_stream(path, "Other")) == 3
    with pytest.raises(
        StageError, match=r"it contains no steps of Third, only of Other, Test; expected a stream of that behaviour"
    ):
        read_stream(path, "Third")
    assert len(read_stream(record([expert([4], other)], "one.stream", spec=other), "Third")) == 4


def test_a_stream_that_was_cut_is_read_up_to_its_last_whole_frame(record, expert, caplog):
    path = record([expert([2]), expert([3], seed=1)])
    path.write_bytes(path.read_bytes()[:-600])
    with caplog.at_level(logging.WARNING):
        assert len(read_stream(path, "Test")) == 2
    assert "demonstrations up to the last complete message" in caplog.text


@pytest.mark.parametrize(("axis", "name"), [("rows", "rewards"), ("trajectories", "learning")])
def test_a_column_that_can_not_be_learned_from_is_named(record, expert, axis, name):
    batch = expert([2, 1], seed=1, agent_ids=[7, 5], episode_ids=[0, 0], terminated=[False] * 2, truncated=[False] * 2)
    strange = np.zeros((3 if axis == "rows" else 2, 4), np.float32)
    path = record([replace(batch, **{axis: {**getattr(batch, axis), name: strange}})])
    with pytest.raises(
        StageError, match=rf"is not usable as demonstrations: expected {axis} {name} of .*, got float32\[4\]"
    ):
        read_stream(path, "Test")
