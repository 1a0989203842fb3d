"""Keys: what a person presses becomes an action that the environment takes."""

import numpy as np
import pytest

from headrace.config import KeyMapSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.exhibition.people import action_of, buttons, check_keys, default_keys, keys_of


def spec(continuous=0, branches=(), **more):
    return BehaviorSpec("Ball?team=1", (), ActionSpec(continuous, branches, **more))


def keys(press, **more):
    return KeyMapSettings.model_validate({"press": press, **more})


def test_a_pressed_key_chooses_and_the_rest_holds_otherwise():
    both = keys({"a": {"branch": 0, "value": 2}, "b": {"branch": 1, "value": 1}}, rest=(1, 0))
    ball = spec(branches=(3, 2))
    assert action_of(both, (), ball, None).discrete.tolist() == [[1, 0]]
    assert action_of(both, {"a"}, ball, None).discrete.tolist() == [[2, 0]]
    assert action_of(both, {"a", "b", "x"}, ball, None).discrete.tolist() == [[2, 1]]


def test_continuous_values_add_up_within_their_bounds():
    push = keys({"a": {"index": 0, "value": -1}, "d": {"index": 0, "value": 1}, "e": {"index": 0, "value": 0.5}})
    assert action_of(push, {"a", "d"}, spec(1), None).continuous.tolist() == [[0.0]]
    assert action_of(push, {"d", "e"}, spec(1), None).continuous.tolist() == [[1.0]]
    assert action_of(push, {"d", "e"}, spec(1, unbounded=(0,)), None).continuous.tolist() == [[1.5]]


def test_the_last_matching_key_of_a_branch_counts():
    ways = keys({"a": {"branch": 0, "value": 1}, "b": {"branch": 0, "value": 2}, "a+b": {"branch": 0, "value": 3}})
    assert action_of(ways, {"b", "a"}, spec(branches=(4,)), None).discrete.tolist() == [[3]]
    assert action_of(ways, {"b"}, spec(branches=(4,)), None).discrete.tolist() == [[2]]
    assert buttons(ways) == [["a"], ["b"]]
    assert buttons(keys({"a": {"branch": 0, "value": 1}, "a+b": {"branch": 0, "value": 2}})) == [["a"], ["b"]]


def test_a_forbidden_choice_is_not_made():
    one = keys({"a": {"branch": 0, "value": 1}})
    allowed = np.array([True, False, True])
    assert action_of(one, {"a"}, spec(branches=(3,)), allowed).discrete.tolist() == [[0]]
    assert action_of(one, {"a"}, spec(branches=(3,)), np.array([False, False, True])).discrete.tolist() == [[2]]


def test_a_game_that_waits_waits_for_a_key_that_is_allowed():
    board = keys({"1": {"branch": 0, "value": 0}, "2": {"branch": 0, "value": 1}}, wait=True)
    allowed = np.array([False, True])
    assert action_of(board, (), spec(branches=(2,)), allowed) is None
    assert action_of(board, {"1"}, spec(branches=(2,)), allowed) is None
    assert action_of(board, {"2"}, spec(branches=(2,)), allowed).discrete.tolist() == [[1]]


def test_a_masked_game_waits_if_each_choice_has_a_key():
    assert default_keys(ActionSpec(0, (7,)), masked=True).wait
    assert not default_keys(ActionSpec(0, (7,))).wait
    assert not default_keys(ActionSpec(0, (12,)), masked=True).wait
    assert not default_keys(ActionSpec(1, (7,)), masked=True).wait
    assert keys_of(spec(branches=(7,), masked=True), {}, {}).wait


def test_the_map_of_the_id_comes_before_that_of_the_name_and_the_games_own():
    mine, named, own = keys({"x": {"branch": 0, "value": 1}}), keys({"y": {"branch": 0, "value": 1}}), keys({})
    usual = {"Ball?team=1": own}
    ball = spec(branches=(2,))
    assert keys_of(ball, {"Ball": named, "Ball?team=1": mine}, usual) is mine
    assert keys_of(ball, {"Ball": named}, usual) is named
    assert keys_of(ball, {}, usual) is own
    assert list(keys_of(ball, {}, {}).press) == ["ArrowLeft", "ArrowRight"]


def test_without_a_map_there_are_arrows_and_digits_that_fit():
    for actions in (ActionSpec(3), ActionSpec(0, (2,)), ActionSpec(0, (12, 2)), ActionSpec(2, (3,)), ActionSpec(9)):
        made = default_keys(actions)
        assert made.press
        check_keys(made, actions, "keys")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"press": {"a": {"branch": 1, "value": 0}}}, "press.a: branch 1 has no choice 0: branch of 3 choices"),
        ({"press": {"a": {"branch": 0, "value": 3}}}, "branch 0 has no choice 3"),
        ({"press": {"a": {"index": 0, "value": 1}}}, "continuous action 0 does not exist"),
        ({"press": {}, "rest": [3]}, r"rest: \[3\] is not a choice for each branch"),
        ({"press": {}, "rest": [0, 0]}, "is not a choice for each branch"),
    ],
)
def test_keys_for_missing_actions_are_refused(given, words):
    with pytest.raises(StageError, match=words) as caught:
        keys_of(spec(branches=(3,)), {"Ball": KeyMapSettings.model_validate(given)}, {})
    assert caught.value.key[:3] == ("environment", "keys", "Ball")


def test_a_learned_repeat_needs_no_keys():
    ball = BehaviorSpec("Ball", (), ActionSpec(0, (2, 4)), action_repeat="learned")
    made = keys_of(ball, {}, {})
    assert action_of(made, {"ArrowRight"}, ball, None).discrete.tolist() == [[1, 0]]
