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
    with pytest.raises(
        MessageError, match="announces different observations or actions in behaviors.Ball.team=1 and behaviors.Ball:"
    ):
        read_hello(message)


def test_teams_and_groups_are_announced():
    message = hello(grouped=True)
    message["behaviors"]["Ball?team=1"] = message["behaviors"]["Ball"]
    specs = read_hello(message).specs
    assert [(spec.name, spec.team, spec.grouped) for spec in specs.values()] == [("Ball", 0, True), ("Ball", 1, True)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observations": []}, "as behaviors.Ball.observations: List should have at least 1 item"),
        (
            {"observations": [{"shape": [2, 0]}]},
            r"sent a hello with 0 as behaviors.Ball.observations.0.shape.1: Input should be greater",
        ),
        (
            {"observations": [{"name": "a", "shape": [2]}] * 2},
            r"observations \['a', 'a'\] in behaviors.Ball: expected unique",
        ),
        (
            {"observations": [{"shape": [2], "type": "int32"}]},
            "observations.0.type: Input should be 'float32' or 'uint8'",
        ),
        ({"observations": [{"size": [2]}]}, "observations.0.shape: Field required"),
        ({"actions": {}}, "expected at least one action"),
        ({"actions": {"continuous": 1, "masked": True}}, "and only those can be masked"),
        ({"action": {}}, "as behaviors.Ball.action: Extra inputs are not permitted"),
    ],
)
def test_an_invalid_behaviour_is_named_by_its_key(change, words):
    with pytest.raises(MessageError, match=words):
        announced(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": 2}, "version 2 of the open protocol; expected 1"),
        ({"behaviors": {}}, "as behaviors: Dictionary should have at least 1 item"),
        ({"behaviours": {}}, "as behaviours: Extra inputs are not permitted"),
        (
            {"behaviors": {"Ball?team=x": {"observations": SEEN, "actions": {"continuous": 1}}}},
            r"String should match pattern '.*team=.*'",
        ),
    ],
)
def test_an_invalid_hello_is_named(change, words):
    with pytest.raises(MessageError, match=words):
        read_hello({**hello(), **change})
