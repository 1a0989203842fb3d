"""Recordings of Godot's addon: flat actions are split by the game's spaces, and the last observation is left out."""

import json

import numpy as np
import pytest

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.godot.messages import AgentSpaces, behavior_spec
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.loading import load_demonstrations

JUMP = {"size": 3, "action_type": "discrete"}
MOVE = {"size": 2, "action_type": "continuous"}
SEEN = {"obs": {"space": "box", "size": [2]}}


def game(actions, observations=SEEN):
    return behavior_spec("Agent", AgentSpaces("Agent", observations, actions), True, "auto", "the game")


SPEC = game({"jump": JUMP, "move": MOVE})
EPISODES = [
    [[[1, 2], [3, 4], [90, 90]], [[2, 0.5, -0.25], [0, 1, 0]]],
    [[[5, 6], [91, 91]], [[1.0, -1, 0.125]]],
]


def written(folder, content, name="expert_demos.json"):
    text = content if isinstance(content, str) else json.dumps(content) + "\n"
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_steps_are_split_by_the_games_own_order_of_keys(tmp_path):
    found = load_demonstrations(written(tmp_path, EPISODES), SPEC)
    assert found.observations[0].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found.choices.tolist() == [[2], [0], [1]]
    assert found.continuous.tolist() == [[0.5, -0.25], [1, 0], [-1, 0.125]]
    assert found.lengths.tolist() == [2, 1]
    assert found.terminated.all()


def test_the_observation_after_the_last_action_is_not_learned_from(tmp_path):
    found = load_demonstrations(written(tmp_path, EPISODES), SPEC)
    assert not np.isin([90, 91], found.observations[0]).any()
    assert not np.isin([90, 91], found.final_observations[0]).any()


def test_actions_beyond_the_bounds_are_clipped_with_a_warning(tmp_path, caplog):
    path = written(tmp_path, [[[[1, 2], [3, 4]], [[0, 1.5, 0]]]])
    assert load_demonstrations(path, SPEC).continuous.tolist() == [[1, 0]]
    assert "actions outside [-1, 1], the largest 1.5" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[[[1,2]", "is not a recording made by Godot's addon: invalid JSON"),
        ({"some": "settings"}, "expected a list of episodes"),
        ([[[1, 2]]], "episode 1: expected a pair"),
        ([EPISODES[0], [[[1, 2]], [[0, 0, 0]]]], "episode 2 has 1 observations and 1 actions"),
        (
            [[[[1, 2, 3], [0, 0]], [[0, 0, 0]]]],
            "episode 1, step 1: its observation has 3 numbers, but the game declares 2",
        ),
        ([[[[1, 2], [0, 0]], [[0, 0]]]], "episode 1, step 1: its action has 2 numbers, but the game declares 3"),
        ([[[[1, 2], [0, 0]], [[0.5, 0, 0]]]], r"step 1: discrete_actions\[0\] is 0.5; expected an integer"),
        ([[[[1, 2], [0, 0]], [[3, 0, 0]]]], "step 1: discrete_actions.* is 3; expected a choice of 0 to 2"),
        ([[[[1, "two"], [0, 0]], [[0, 0, 0]]]], "episode 1: an observation contains something other than numbers"),
        ("[[[[1,nan],[0,0]],[[0,0,0]]]]", "step 1: obs.* is nan; demonstrations need finite numbers"),
        ([[[[1, None], [0, 0]], [[0, 0, 0]]]], "step 1: obs.* is nan; demonstrations need finite numbers"),
    ],
)
def test_an_invalid_recording_is_refused_with_the_place(tmp_path, content, message):
    with pytest.raises(StageError, match=message):
        load_demonstrations(written(tmp_path, content), SPEC)


def test_only_the_key_that_is_recorded_can_be_learned_from(tmp_path):
    both = game({"move": MOVE}, {**SEEN, "map": {"space": "box", "size": [4]}})
    with pytest.raises(StageError, match="Agent observes obs, map; Godot's addon only records the key 'obs'"):
        load_demonstrations(written(tmp_path, EPISODES), both)


def test_other_environments_and_none_are_refused(tmp_path):
    path = written(tmp_path, EPISODES)
    other = BehaviorSpec("Agent", (ObservationSpec("obs", (2,)),), ActionSpec(2, (3,)))
    with pytest.raises(StageError, match="environment.kind: godot"):
        load_demonstrations(path, other)
    with pytest.raises(StageError, match="environment.kind: godot"):
        load_demonstrations(path, "Agent")
