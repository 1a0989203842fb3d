"""Observations, masks and actions of one behaviour as columns."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from headrace.config import ObservationSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import BehaviorSpaces
from headrace.stages.environments.pettingzoo.instances import TimeStep
from headrace.stages.environments.spaces.observations import check_names

BOARD = spaces.Box(0, 1, (3, 3, 2), np.int8)


def step(observation, info=None):
    return TimeStep("a", observation, 0.0, info or {}, False, False)


def who(row):
    return "Zoo" if row is None else f"Zoo, {'ab'[row]}"


def behavior_spaces(observation, action, settings=None):
    return BehaviorSpaces("Four", observation, action, settings or {}, "Zoo")


def masked(width, action, inner=BOARD):
    return spaces.Dict({"observation": inner, "action_mask": spaces.Box(0, 1, (width,), np.int8)}), action


def test_the_mask_next_to_the_observation_is_used():
    observation, action = masked(9, spaces.Discrete(9))
    four = behavior_spaces(observation, action, {"observation": ObservationSettings(kind="vector")})
    spec = four.spec("Four?team=1")

    assert (spec.behavior_id, spec.actions.masked, spec.actions.discrete_branches) == ("Four?team=1", True, (9,))
    assert [(o.name, o.shape, o.dtype) for o in spec.observations] == [("observation", (18,), "int8")]
    assert spec.spaces is not None
    assert [name for name, _ in spec.spaces["observation"]["parts"]] == ["observation"]
    assert spec.spaces["action"] == {"kind": "Discrete", "dtype": "int64", "sizes": 9, "start": 0}
    board, mask = np.ones((3, 3, 2), np.int8), np.array([1, 0, 0, 0, 1, 0, 0, 0, 1], np.int8)
    seen = [{"observation": board * n, "action_mask": mask} for n in range(2)]
    (values,) = four.observations(seen, str)
    np.testing.assert_array_equal(values, np.repeat([[0], [1]], 18, axis=1))
    np.testing.assert_array_equal(four.masks_of([step(each) for each in seen], who), np.stack([mask == 1] * 2))


def test_masks_of_several_branches_stand_side_by_side_or_one_by_one():
    both = behavior_spaces(*masked(5, spaces.MultiDiscrete([2, 3])))
    flat = np.array([1, 0, 1, 1, 0])
    apart = (np.array([1, 0]), np.array([1, 1, 0]))

    masks = both.masks_of([step({"action_mask": flat}), step({"action_mask": apart})], who)

    np.testing.assert_array_equal(masks, np.array([[1, 0, 1, 1, 0]] * 2, np.bool_))


def test_an_agent_without_a_mask_may_choose_everything():
    plain = behavior_spaces(BOARD, spaces.Discrete(3))
    plain.masks.expect({"action_mask": [1, 1, 1]})
    seen = np.zeros((3, 3, 2), np.int8)

    masks = plain.masks_of([step(seen, {"action_mask": [0, 1, 0]}), step(seen)], who)

    np.testing.assert_array_equal(masks, [[False, True, False], [True, True, True]])


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
