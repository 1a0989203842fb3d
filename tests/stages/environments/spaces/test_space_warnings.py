"""What is a guess about observations is said, with the key that says otherwise; what is clear, or said, is not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces

from headrace.config import ObservationSettings
from headrace.stages.environments.spaces.columns import SpaceColumns, space_warnings
from headrace.stages.environments.spaces.observations import observation_parts
from headrace.stages.environments.spaces.own_space import own_space


def said_of(space, **settings):
    own, known = own_space(space), {"observation": ObservationSettings(**settings)} if settings else None
    return list(space_warnings(own, tuple(part.spec for part in observation_parts(own, "Env", known)), known))


def box(*shape, low=0.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


def pixels(*shape):
    return box(*shape, high=255, dtype=np.uint8)


@pytest.mark.parametrize(
    "space",
    [
        pixels(84, 84, 3), pixels(8, 8, 111), pixels(111, 8, 8), pixels(210, 160, 3), pixels(4, 84, 84), pixels(84, 84),
        pixels(4, 84, 84, 3), pixels(7, 7, 3), pixels(12, 12), pixels(128),
        box(84, 84, 3), box(84, 84, 3, low=-1), box(8, 8, 111, dtype=bool), box(15, 40), box(4, 376), box(376), box(5, 3, 3, 3),
        box(20, 20, 3, low=-np.inf, high=np.inf), spaces.Discrete(3), spaces.Sequence(spaces.Discrete(2)),
        spaces.Dict({"a": pixels(84, 84, 3), "b": spaces.MultiBinary((20, 20))}),
    ],
)  # fmt: skip
def test_clear_spaces_cause_no_warning(space):
    assert said_of(space) == []


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            pixels(8, 8, 8),
            r"shape \(8, 8, 8\), which does not tell where its channels are; they are assumed to come first",
        ),
        (pixels(64, 3, 64), "does not tell .* come last. If not, .*observation to {channels: first}"),
        (pixels(64, 3, 60), "does not tell where .* come last"),
        (
            box(24, 24, 3, high=255),
            "Box.* only bytes are scaled to the range 0 to 1, .* Make its dtype uint8, or scale it",
        ),
        (box(8, 8, 12, high=1, dtype=np.uint8), "bytes are divided by 255, so the network receives 0 to 0.0039"),
        (
            box(84, 84),
            r"treated as a vector of 7056 numbers. If it is an image, set .* to image, with 2 to 4 dimensions",
        ),
        (pixels(10, 84), "treated as a vector of 840 numbers"),
        (pixels(84 * 84), "treated as a vector of 7056 numbers. If it is an image"),
    ],
)
def test_a_guess_about_a_space_is_warned_of(space, words):

    (doubt,) = said_of(space)
    assert re.search(words, doubt)
    (nested,) = space_warnings(
        own := own_space(spaces.Dict({"eye": space})), tuple(p.spec for p in observation_parts(own, "Env")), None
    )
    assert "'eye'" in nested


@pytest.mark.parametrize("key", ["action_mask", "valid_action_masks"])
def test_a_nested_mask_is_warned_of(key):
    inner = spaces.Dict({"board": box(9), key: spaces.MultiBinary(9)})
    (doubt,) = said_of(spaces.Dict({"state": inner, "mask": box(9)}))
    assert doubt.startswith(f"the observation 'state.{key}' is used like any other; if it is an action mask")


@pytest.mark.parametrize(
    ("space", "settings"),
    [
        (pixels(8, 8, 8), {"channels": "first"}),
        (box(84, 84), {"kind": "image"}),
        (box(24, 24, 3, high=255), {"kind": "vector"}),
    ],
)
def test_settings_prevent_the_warning(space, settings):
    assert said_of(space, **settings) == []


def test_warnings_name_the_environment(caplog):
    SpaceColumns(pixels(8, 8, 8), spaces.Discrete(2), "Board", None)
    (message,) = caplog.messages
    assert message.startswith("Board: the observation 'observation' is an image of shape (8, 8, 8)")
