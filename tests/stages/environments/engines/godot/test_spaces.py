"""What a game announces becomes the specs of behaviours, in every generation; what is not supported is named."""

from __future__ import annotations

import pytest

from headrace.queues.specs import GODOT, ObservationSpec
from headrace.stages.environments.engines.errors import GameRefused, MessageError
from headrace.stages.environments.engines.godot.messages import (
    SHARED_POLICY,
    assign_agents,
    behavior_spec,
    read_announcement,
)

BOX = {"obs": {"space": "box", "size": [8]}}
MOVE = {"move": {"size": 2, "action_type": "continuous"}}


def spec_of(observations, actions=MOVE, pictures="auto"):
    announcement = read_announcement({"observation_space": observations, "action_space": actions, "n_agents": 1})
    return behavior_spec("B", announcement.agents[0], announcement.ordered, pictures, "Godot worker 0")


@pytest.mark.parametrize(
    "message",
    [
        {"obs_size": 8, "action_space": MOVE, "n_agents": 2},
        {"observation_space": BOX, "action_space": MOVE, "n_agents": 2},
        {"observation_space": [BOX, BOX], "action_space": [MOVE, MOVE], "n_agents": 2.0},
    ],
)
def test_agents_without_names_share_a_policy_and_have_the_spaces_in_any_form(message):
    announcement = read_announcement(message)
    assert [agent.policy for agent in announcement.agents] == [SHARED_POLICY] * 2
    for agent in announcement.agents:
        spec = behavior_spec("B", agent, announcement.ordered, "auto", "")
        assert spec.observations == (ObservationSpec("obs", (8,)),)
        assert spec.actions.continuous_size == 2
    assert not announcement.ordered


def test_agents_may_differ_in_names_and_spaces():
    prey = {"obs": {"space": "box", "size": [3]}}
    announcement = read_announcement(
        {
            "observation_space": [BOX, prey],
            "action_space": [MOVE, MOVE],
            "n_agents": 2,
            "agent_policy_names": ["hunter", "prey"],
        }
    )
    assert [agent.policy for agent in announcement.agents] == ["hunter", "prey"]
    assert announcement.agents[1].observations == prey
    assert announcement.ordered


def test_mixed_actions_of_any_number_keep_the_games_order():
    actions = {
        "turn": {"size": 1, "action_type": "continuous"},
        "gear": {"size": 5.0, "action_type": "discrete"},
        "aim": {"size": 2, "action_type": "continuous"},
        "fire": {"size": 2, "action_type": "discrete"},
    }
    spec = spec_of(BOX, actions)
    assert spec.actions.continuous_names == ("turn", "aim.0", "aim.1")
    assert spec.actions.discrete_branches == (5, 2)
    assert spec.actions.branch_names == ("gear", "fire")
    assert [action["name"] for action in spec.spaces[GODOT]["actions"]] == list(actions)


def test_several_observations_are_kept_apart_and_choices_become_one_hot():
    spec = spec_of({"rays": {"space": "box", "size": [2, 4]}, "phase": {"space": "discrete", "size": 3}})
    assert spec.observations == (ObservationSpec("rays", (8,)), ObservationSpec("phase", (3,)))


@pytest.mark.parametrize(
    ("size", "pictures", "shape", "last"),
    [
        ([3, 36, 48], "auto", (36, 48, 3), True),  # what cameras announce; their bytes come pixel by pixel
        ([3, 36, 48], "planar", (3, 36, 48), False),
        ([36, 48, 4], "auto", (36, 48, 4), True),  # Godot 3's cameras
        ([1, 36, 48], "auto", (1, 36, 48), False),  # not the engine's
        ([1, 36, 48], "interleaved", (36, 48, 1), True),
    ],
)
def test_images_are_recognised_by_their_keys(size, pictures, shape, last):
    spec = spec_of({"camera_2d": {"space": "box", "size": size}}, pictures=pictures)
    assert spec.observations == (ObservationSpec("camera_2d", shape, "uint8", last),)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"n_agents": 0}, "at least one agent"),
        ({"action_space": MOVE}, "None as observation_space"),
        (
            {"observation_space": [BOX], "action_space": MOVE, "n_agents": 2},
            "1 entries as observation_space: expected one dict for each of 2",
        ),
        (
            {"observation_space": BOX, "action_space": MOVE, "agent_policy_names": [3]},
            "3 as the agent_policy_names of agent 0",
        ),
    ],
)
def test_an_announcement_that_can_not_be_read_is_described(message, problem):
    with pytest.raises(MessageError, match=problem):
        read_announcement(message)


@pytest.mark.parametrize(
    ("observations", "actions", "problem"),
    [
        ({}, MOVE, "no observations.*get_obs"),
        (BOX, {}, "no actions.*get_action_space"),
        (
            {"bullets": {"space": "repeated", "subspace": "box", "size": 3, "max_length": 9}},
            MOVE,
            "bullets.*fixed number",
        ),
        ({"obs": {"space": "box", "size": [0]}}, MOVE, "get_obs.. returns an empty list as 'obs'; append the numbers"),
        ({"obs": {"space": "box", "size": 3}}, MOVE, "'size': \\[n\\]"),
        ({"cam2d": {"space": "box", "size": [36, 36]}}, MOVE, "channels, height, width"),
        (BOX, {"fly": {"size": 0, "action_type": "continuous"}}, "'fly'.*at least 1"),
    ],
)
def test_spaces_that_are_not_supported_are_refused_with_what_is_expected(observations, actions, problem):
    with pytest.raises(GameRefused, match=problem):
        spec_of(observations, actions)


TURN = {"turn": {"size": 2, "action_type": "continuous"}}


@pytest.mark.parametrize(
    ("spaces", "problem"),
    [
        ({"action_space": [MOVE, MOVE | {"move": {"size": 3, "action_type": "continuous"}}]}, "the action 'move' as "),
        ({"action_space": [MOVE, MOVE | TURN]}, "the action 'turn' as nothing and "),
        (
            {"observation_space": [BOX, {"obs": {"space": "box", "size": [9]}}]},
            "the observation 'obs' as .*8.* and .*9",
        ),
    ],
)
def test_agents_of_one_behaviour_with_different_spaces_are_refused_by_field(spaces, problem):
    with pytest.raises(GameRefused, match=f"agents 0 and 1 share one behaviour, 'B', but announce {problem}"):
        of_two(**spaces)


@pytest.mark.parametrize(
    ("spaces", "problem"),
    [
        ({"action_space": [MOVE, {"move": {"size": 2, "action_type": "multi"}}]}, "the action 'move' as .*'multi'"),
        ({"observation_space": [BOX, {}]}, "no observations"),
    ],
)
def test_a_wrong_field_of_one_agent_is_named_with_that_agent(spaces, problem):
    with pytest.raises(GameRefused, match=f"behaviour 'B', agent 1: announces {problem}") as refused:
        of_two(**spaces)
    assert "agents 0 and 1" not in str(refused.value)


def of_two(**spaces):
    message = {"observation_space": [BOX, BOX], "action_space": [MOVE, MOVE], "n_agents": 2, **spaces}
    return assign_agents(read_announcement(message), [("B", 0)] * 2, "auto", "Godot worker 0")


def test_an_image_is_refused_if_a_model_for_the_game_is_wanted():
    camera = {"cam2d": {"space": "box", "size": [3, 36, 36]}}
    with pytest.raises(GameRefused, match="the image 'cam2d', which the addon can't pass.*remove --onnx_export_path"):
        spec_of(camera, pictures="refuse")
    assert spec_of(BOX, pictures="refuse").observations == spec_of(BOX).observations
