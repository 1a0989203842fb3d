"""What a game announces becomes specs; what can't be read is named by its key."""

from __future__ import annotations

import pytest

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.open_protocol.messages import read_hello

SEEN = [{"name": "place", "shape": [3]}]


def hello(**behavior):
    whole = {"observations": SEEN, "actions": {"continuous": 1}, **behavior}
    return {"type": "hello", "protocol": 1, "game": "ball", "behaviors": {"Ball": whole}}


def announced(**behavior):
    return read_hello(hello(**behavior)).specs["Ball"]


def test_vectors_sets_and_images_are_recognised_by_their_shapes():
    observations = [
        *SEEN,
        {"shape": [5, 4]},
        {"name": "camera", "shape": [36, 48, 3], "type": "uint8"},
        {"name": "planes", "shape": [2, 36, 48], "channels": "first"},
        {"name": "wish", "shape": [2], "goal": True},
    ]
    assert announced(observations=observations).observations == (
        ObservationSpec("place", (3,)),
        ObservationSpec("observation_1", (5, 4)),
        ObservationSpec("camera", (36, 48, 3), "uint8", channels_last=True),
        ObservationSpec("planes", (2, 36, 48)),
        ObservationSpec("wish", (2,), goal=True),
    )


def test_actions_are_numbers_or_names():
    assert announced(actions={"continuous": 2, "discrete": [3, 2], "masked": True}).actions == ActionSpec(
        2, (3, 2), masked=True
    )
    named = announced(actions={"continuous": ["steer"], "discrete": {"jump": 2}}).actions
    assert (named.continuous_heads, named.branch_heads) == (("steer",), ("jump",))


@pytest.mark.parametrize("change", [{"observations": [{"shape": [5]}]}, {"actions": {"continuous": 3}}])
def test_teams_that_announce_other_things_are_refused(change):
    message = hello()
    message["behaviors"]["Ball?team=1"] = {**message["behaviors"]["Ball"], **change}
    (what,) = change
    with pytest.raises(MessageError, match=f"announces different {what} in behaviors.Ball.team=1 and behaviors.Ball:"):
        read_hello(message)


def test_teams_and_groups_are_announced():
    message = hello(grouped=True)
    message["behaviors"]["Ball?team=1"] = message["behaviors"]["Ball"]
    specs = read_hello(message).specs
    assert [(spec.name, spec.team, spec.grouped) for spec in specs.values()] == [("Ball", 0, True), ("Ball", 1, True)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observations": []}, "announces no behaviors.Ball.observations"),
        ({"observations": [{"shape": [2, 0]}]}, r"observations\[0\].shape"),
        ({"observations": [{"name": "a", "shape": [2]}] * 2}, "two observations 'a' in behaviors.Ball"),
        ({"observations": [{"shape": [2], "type": "int32"}]}, "expected float32 or uint8"),
        ({"observations": [{"size": [2]}]}, r"announces unknown keys \('size'\) in behaviors.Ball.observations\[0\]"),
        ({"actions": {}}, "expected at least one action"),
        ({"actions": {"continuous": 1, "masked": True}}, "and only those can be masked"),
        ({"action": {}}, r"announces unknown keys \('action'\) in behaviors.Ball"),
    ],
)
def test_an_invalid_behaviour_is_named_by_its_key(change, words):
    with pytest.raises(MessageError, match=words):
        announced(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": 2}, "version 2 of the open protocol; expected 1"),
        ({"behaviors": {}}, "announces no behaviors"),
        ({"behaviours": {}}, r"announces unknown keys \('behaviours'\) in hello"),
        (
            {"behaviors": {"Ball?team=x": {"observations": SEEN, "actions": {"continuous": 1}}}},
            "expected a name, or a name with a team, such as Name.team=1",
        ),
    ],
)
def test_an_invalid_hello_is_named(change, words):
    with pytest.raises(MessageError, match=words):
        read_hello({**hello(), **change})
