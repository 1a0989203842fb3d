"""Agents' parts of messages become columns, and actions JSON; what does not fit is named by agent, key and place."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.godot.messages import (
    AgentColumns,
    AgentSpaces,
    WrongColumn,
    action_message,
    behavior_spec,
)

MIXED = {
    "turn": {"size": 2, "action_type": "continuous"},
    "gear": {"size": 3, "action_type": "discrete"},
    "zünd": {"size": 1, "action_type": "continuous"},
}
SEEN = {"obs": {"space": "box", "size": [2]}, "phase": {"space": "discrete", "size": 3}}
CAMERA = {"cam_2d": {"space": "box", "size": [3, 2, 1]}}


def columns(observations=SEEN, actions=MIXED, agents=(0, 1)):
    spaces = AgentSpaces("B", observations, actions)
    return AgentColumns(behavior_spec("B", spaces, True, "auto", "game"), np.array(agents))


def test_observations_are_joined_by_key():
    box, phase = columns().observations([{"phase": 2.0, "obs": [1, -0.5]}, {"obs": [0, 3], "phase": 0}])
    np.testing.assert_array_equal(box, np.array([[1, -0.5], [0, 3]], np.float32))
    np.testing.assert_array_equal(phase, [[0, 0, 1], [1, 0, 0]])
    assert box.dtype == phase.dtype == np.float32


def test_only_the_agents_of_the_behaviour_are_read():
    observed = [{"obs": [9, 9], "phase": 0}, {"strange": 1}, {"obs": [1, 2], "phase": 1}]
    box, _ = columns(agents=(2, 0)).observations(observed)
    np.testing.assert_array_equal(box, [[1, 2], [9, 9]])
    assert columns(agents=(2, 0)).rewards([1, None, 3]).tolist() == [3, 1]
    assert columns(agents=(2, 0)).done([True, 1, 0]).tolist() == [False, True]


def test_nested_lists_are_flattened():
    (numbers,) = columns({"rays": {"space": "box", "size": [2, 2]}}).observations([{"rays": [[1, 2], [3, 4]]}] * 2)
    np.testing.assert_array_equal(numbers, [[1, 2, 3, 4]] * 2)


def test_pictures_are_bytes_in_hexadecimal_digits():
    (pictures,) = columns(CAMERA).observations([{"cam_2d": "0102030a0B0c"}, {"cam_2d": "ff" * 6}])
    np.testing.assert_array_equal(pictures, [[[[1, 2, 3]], [[10, 11, 12]]], [[[255] * 3], [[255] * 3]]])


@pytest.mark.parametrize(
    ("announced", "sent", "read"),
    [
        (3, "010203ff0a0b0c00", [[[1, 2, 3]], [[10, 11, 12]]]),
        (4, "0102030a0b0c", [[[1, 2, 3, 255]], [[10, 11, 12, 255]]]),
    ],
)
def test_transparency_may_be_sent_unannounced_or_be_left_out(announced, sent, read):
    camera = {"cam_2d": {"space": "box", "size": [announced, 2, 1]}}
    (pictures,) = columns(camera).observations([{"cam_2d": sent}] * 2)
    np.testing.assert_array_equal(pictures, [read] * 2)


def test_actions_are_written_by_key_in_the_games_order_in_ascii():
    batch = ActionBatch(np.array([[0.5, -1, 0.25], [0, 1, -0.125]], np.float32), np.array([[2], [0]], np.int32))
    message = action_message(columns().actions(batch))
    assert message.isascii()
    assert json.loads(message) == {
        "type": "action",
        "action": [
            {"turn": [0.5, -1.0], "gear": 2, "zünd": [0.25]},
            {"turn": [0.0, 1.0], "gear": 0, "zünd": [-0.125]},
        ],
    }
    assert [*json.loads(message)["action"][0]] == list(MIXED)
    assert b'"gear":2,' in message  # a bare number


@pytest.mark.parametrize(
    ("observations", "second", "problem"),
    [
        (SEEN, {"obs": [1, 2]}, "agent 1 lacks the observation 'phase'.*has: obs"),
        (
            SEEN,
            {},
            "agent 1 lacks the observation 'obs' .it has no observations: look for .* an error in its "
            "get_obs.*export-debug",
        ),
        (SEEN, {"obs": [1], "phase": 0}, "agent 1 has 1 numbers.*'obs'.*the 2 numbers"),
        (SEEN, {"obs": [1, None], "phase": 0}, "agent 1 has null.*NaN.*index 1.*'obs'.*get_obs"),
        (SEEN, {"obs": ["-nan", 1], "phase": 0}, "agent 1 has .*nan.* at index 0"),
        (
            SEEN,
            {"obs": ["(1.0, 2.0)", 1], "phase": 0},
            r"agent 1 has '\(1.0, 2.0\)' at index 0 .*numbers; Godot sends vec.*\.x, \.y",
        ),
        (SEEN, {"obs": ["left", 1], "phase": 0}, "agent 1 has 'left' at index 0 .*and only numbers$"),
        (SEEN, {"obs": "(1.0, 2.0)", "phase": 0}, r"agent 1 has '\(1.0, 2.0\)' as the observation 'obs'.*\.x, \.y"),
        (SEEN, {"obs": [1, -(10**39)], "phase": 0}, "agent 1 has -1000.* at index 1"),
        (SEEN, {"obs": [1, 2], "phase": 3}, "agent 1 has 3 as the observation 'phase'.*from 0 to 2"),
        (CAMERA, {"cam_2d": None}, "agent 1 has None as the image.*xvfb-run"),
        (CAMERA, {"cam_2d": "00" * 5}, "agent 1 has an image 'cam_2d' of 5 bytes; expected 6"),
    ],
)
def test_observations_that_do_not_fit_their_space_are_named(observations, second, problem):
    first = {"cam_2d": "00" * 6} if observations is CAMERA else {"obs": [1, 2], "phase": 0}
    with pytest.raises(WrongColumn, match=problem):
        columns(observations).observations([first, second])


@pytest.mark.parametrize("reward", [None, "nan", "-inf", [1], float("inf"), "word", 1e39, -(10**400)])
def test_a_reward_that_is_not_a_finite_number_is_named(reward):
    with pytest.raises(WrongColumn, match="agent 1 has reward"):
        columns().rewards([0.5, reward])
