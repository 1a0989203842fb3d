"""Observations and actions of one behaviour as columns."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from headrace.config import ObservationSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import BehaviorSpaces
from headrace.stages.environments.spaces.observations import check_names

BOARD = spaces.Box(0, 1, (3, 3, 2), np.int8)


def behavior_spaces(observation, action, settings=None):
    return BehaviorSpaces("Four", observation, action, settings or {}, "Zoo")


def batch(continuous, discrete):
    return ActionBatch(np.array(continuous, np.float32), np.array(discrete, np.int32))


def test_actions_come_one_by_one():
    grid = behavior_spaces(BOARD, spaces.Discrete(3, start=1))
    several = behavior_spaces(BOARD, spaces.MultiDiscrete([2, 3]))
    arm = behavior_spaces(BOARD, spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)))
    pair = behavior_spaces(BOARD, spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))))

    assert [int(action) for action in grid.one_by_one(batch(np.zeros((2, 0)), [[0], [2]]), 2)] == [1, 3]
    assert [action.tolist() for action in several.one_by_one(batch(np.zeros((1, 0)), [[1, 2]]), 1)] == [[1, 2]]
    np.testing.assert_allclose(
        arm.one_by_one(batch([[0.5, 0.0], [-1, 1]], np.zeros((2, 0))), 2), [[1.0, 0.5], [-2.0, 1.0]]
    )
    ((choice, value),) = pair.one_by_one(batch([[0.25]], [[1]]), 1)
    assert (int(choice), float(value[0])) == (1, 0.25)


def test_settings_are_for_the_behaviours_that_have_such_observations():
    nested = spaces.Dict({"state": spaces.Dict({"place": BOARD}), "action_mask": spaces.MultiBinary(3)})
    said = {"state.place": ObservationSettings(kind="vector"), "observation": ObservationSettings(kind="image")}

    both = [behavior_spaces(space, spaces.Discrete(3), said) for space in (nested, BOARD)]
    check_names(said, [part for each in both for part in each.parts], "Zoo")

    (place,), (board,) = (each.spec("A").observations for each in both)
    assert [(o.name, o.kind) for o in (place, board)] == [("state.place", "vector"), ("observation", "image")]
