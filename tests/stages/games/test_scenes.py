"""Built-in games on a screen: scenes that can be sent as they are, and keys that do what they say."""

import json

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.stages.exhibition.people import action_of, check_keys
from headrace.stages.games.connect_four import ConnectFourGroup
from headrace.stages.games.pursuit import PursuitGroup
from headrace.stages.games.scene import SupportsScenes
from headrace.stages.games.volley import VolleyGroup

GAMES = [VolleyGroup, PursuitGroup, ConnectFourGroup]


def acted(group, pressed):
    """A step in which the agents of some behaviour ids do what keys say, and the others rest."""
    display = group.display
    return group.step(
        {
            behavior_id: repeated(
                action_of(display.keys[behavior_id], pressed.get(behavior_id, ()), spec, None), agents(group, spec)
            )
            for behavior_id, spec in group.behavior_specs.items()
        }
    )


def agents(group, spec):
    return len(group.reset().steps[spec.behavior_id].agent_ids)


def repeated(action, rows):
    return ActionBatch(action.continuous.repeat(rows, 0), action.discrete.repeat(rows, 0))


@pytest.mark.parametrize("make", GAMES)
def test_a_scene_is_plain_data_within_the_view(make):
    group = make(2)
    group.reset(1)
    ids = set(group.behavior_specs)
    assert isinstance(group, SupportsScenes)
    display, scene = group.display, group.scene(1)
    shapes = json.loads(json.dumps([*display.backdrop, *scene.shapes]))
    left, bottom, width, height = display.view
    for kind, *rest in shapes:
        points = [rest[:2]] if kind == "disc" else rest[0]
        assert all(left - 0.1 <= x <= left + width + 0.1 for x, _ in points), kind
        assert all(bottom - 0.1 <= y <= bottom + height + 0.1 for _, y in points), kind
    assert set(display.sides) == set(display.keys) == ids


@pytest.mark.parametrize("make", GAMES)
def test_the_keys_of_a_game_fit_its_actions(make):
    group = make(1)
    for behavior_id, spec in group.behavior_specs.items():
        check_keys(group.display.keys[behavior_id], spec.actions, "keys")


@pytest.mark.parametrize("make", [VolleyGroup, PursuitGroup])
def test_each_tick_has_a_scene(make):
    group, ticks = make(1), []
    group.reset(1)
    group.on_tick = lambda: ticks.append(group.scene().shapes)
    acted(group, {behavior_id: {"ArrowUp"} for behavior_id in group.behavior_specs})
    assert len(ticks) == (6 if make is VolleyGroup else 3)
    assert ticks[0] != ticks[-1]


@pytest.mark.parametrize("side", [0, 1])
def test_the_arrows_of_volley_move_a_player_as_it_is_seen(side):
    for key, sign in (("ArrowLeft", -1), ("ArrowRight", 1)):
        group = VolleyGroup(1)
        group.reset(1)
        acted(group, {group.behavior_ids[side]: {key}})
        moved = (float(group.courts.players[0, side, 0]) + 1.5) * (1 - 2 * side)
        assert np.sign(moved) == sign
    group.reset(1)
    acted(group, {group.behavior_ids[side]: {"ArrowUp"}})
    assert group.courts.players[1, side, 0] > group.courts.players[1, 1 - side, 0]


@pytest.mark.parametrize(("keys", "way"), [({"ArrowUp"}, (0, 1)), ({"ArrowLeft", "ArrowDown"}, (-1, -1)), ({}, (0, 0))])
def test_the_arrows_of_pursuit_are_directions_and_two_are_the_one_between(keys, way):
    group = PursuitGroup(1)
    group.reset(1)
    acted(group, {group.evader_id: keys})
    assert np.sign(group.arenas.speeds[0, 2].round(3)).tolist() == list(way)


def test_the_score_of_volley_stands_in_its_scene():
    group = VolleyGroup(1)
    group.reset(1)
    group.score[1, 0] = 3
    assert group.scene().score == {"Volley?team=0": 0, "Volley?team=1": 3}


def test_a_point_is_shown_before_the_next_serve():
    group, seen = VolleyGroup(1, points_to_win=1), []
    group.reset(1)
    group.on_tick = lambda: seen.append(max(group.scene().score.values()))
    idle = ActionBatch(np.zeros((1, 0), np.float32), np.array([[1, 0]], np.int32))
    for _ in range(100):
        result = group.step(dict.fromkeys(group.behavior_ids, idle))
        if result.games is not None and len(result.games.env_ids):
            break
    assert seen[-1] == 1
    assert set(seen[:-1]) == {0}
    assert max(group.scene().score.values()) == 0


def test_a_stone_is_seen_before_the_board_is_cleared():
    group, seen = ConnectFourGroup(1), []
    group.reset(1)
    group.on_tick = lambda: seen.append(len(group.scene().shapes))
    for column in (0, 1, 0, 1, 0, 1, 0):
        mover = group.behavior_ids[int(group.to_move[0])]
        group.step({mover: ActionBatch(np.zeros((1, 0), np.float32), np.array([[column]], np.int32))})
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert group.scene().shapes == []
