"""Specifications of requests as plain data: what is taken, and the words that refuse the rest."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from headrace.pipeline.serving.action_request import MOST_AGENTS, ActBody, ErrorKind, RequestRefused
from headrace.pipeline.web import checked
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

MASKED = ActionSpec(1, (3, 2), masked=True)
SPEC = BehaviorSpec("Ball", (ObservationSpec("place", (2,)), ObservationSpec("eye", (1, 2, 2), "uint8")), MASKED)
PLACES, EYES = [[1, 2.5], [3, 4]], [[[[0, 1], [2, 255]]], [[[4, 5], [6, 7]]]]
GOOD = {"place": PLACES, "eye": EYES}


def read(plain, spec=SPEC):
    return checked(plain, ActBody).read(spec)


def refusal(plain, spec=SPEC):
    with pytest.raises((RequestRefused, web.HTTPUnprocessableEntity)) as raised:
        read(plain, spec)
    refused: Any = raised.value
    if isinstance(refused, RequestRefused):
        assert refused.why is ErrorKind.UNFIT
        return str(refused)
    return refused.text


@pytest.mark.parametrize(
    "given",
    [
        GOOD,
        [PLACES, EYES],
        [np.asarray(PLACES, "<f4").tobytes(), np.asarray(EYES, np.uint8).tobytes()],
        {"place": PLACES, "eye": b64encode(np.asarray(EYES, np.uint8).tobytes()).decode()},
    ],
)
def test_observations_are_given_by_name_or_place_as_lists_or_bytes(given):
    asked = ActBody(observations=given).read(SPEC)
    assert asked.agents == 2
    assert [each.dtype for each in asked.observations] == [np.float32, np.uint8]
    np.testing.assert_array_equal(asked.observations[0], np.asarray(PLACES))
    np.testing.assert_array_equal(asked.observations[1], np.asarray(EYES))


def test_other_keys_are_optional_and_may_be_null():
    nothing = {"masks": None, "deterministic": None, "session": None, "episode_start": None}
    for plain in ({}, nothing):
        asked = read({"observations": GOOD, **plain})
        assert (asked.masks, asked.deterministic, asked.session, asked.episode_start) == (None, None, "", None)
    masks = [[1, 0, 0, 1, 1], [True, True, True, False, True]]
    whole = {"observations": GOOD, "masks": masks, "deterministic": False, "session": "a", "episode_start": [True, 0]}
    asked = read(whole)
    assert asked.masks is not None
    assert asked.masks.tolist() == np.asarray(masks, bool).tolist()
    assert asked.episode_start is not None
    assert asked.episode_start.tolist() == [True, False]
    assert (asked.deterministic, asked.session) == (False, "a")


@pytest.mark.parametrize(
    ("observations", "words"),
    [
        (None, "a row per agent in each array: place float32[2], eye uint8[1, 2, 2]; got nothing"),
        ({"place": PLACES}, "observations.eye: missing"),
        ({**GOOD, "plase": PLACES}, "observations: unknown observation 'plase'; did you mean 'place'"),
        ([PLACES], "or a list of 2 arrays in this order"),
        (7, "got a number"),
        ([[1, 2], EYES], "observations.place: expected float32[n, 2], a row per agent, got [2]"),
        ([[[1, 2], [3]], EYES], "lists of different lengths"),
        ([[["1", "2"], [3, 4]], EYES], "observations.place: expected numbers"),
        ([[[float("nan"), 2], [3, 4]], EYES], "observations.place: has a value that is not finite"),
        ([[[1e300, 2], [3, 4]], EYES], "observations.place: has a value that is not finite in float32"),
        ([PLACES, [[[[0, 1], [2, 256]]]] * 2], "observations.eye: expected integers from 0 to 255"),
        ([PLACES, EYES[:1]], "eye is for 1 agents, but place is for 2"),
        ([[], []], "expected float32[n, 2], a row per agent, got [0]"),
        ([b"123", EYES], "observations.place: got 3 bytes; expected a multiple of 8, because each agent's place"),
        (["!", EYES], "observations.place: a string must be the base64 encoding"),
        ([b"\0" * 8 * (MOST_AGENTS + 1), b"\0" * 4 * (MOST_AGENTS + 1)], f"expected 1 to {MOST_AGENTS} per request"),
    ],
)
def test_other_observations_are_refused_with_what_was_expected(observations, words):
    assert words in refusal({"observations": observations})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mask": []}, "mask: unknown key; did you mean 'masks'"),
        ({"masks": [[1] * 4] * 2}, "masks: row 0 has shape (4,); expected 1 for each allowed choice"),
        ({"masks": [[1] * 5, [0, 0, 0, 1, 1]]}, "masks: row 1 forbids all 3 choices of branch 0"),
        ({"masks": [[2] * 5] * 2}, "masks: row 0 has 2 at index 0; expected 1 for each allowed choice"),
        ({"deterministic": 1}, "deterministic: 1 is not valid; expected true or false"),
        ({"session": 3}, "session: 3 is not valid; expected text"),
        ({"episode_start": [True, True]}, "episode_start: needs a session, but the request names none"),
        ({"session": "a", "episode_start": [True]}, "episode_start: expected [2], one per agent, got [1]"),
    ],
)
def test_other_values_are_refused_with_what_was_expected(more, words):
    assert words in refusal({"observations": GOOD, **more})


def test_masks_are_refused_if_the_model_has_none():
    spec = BehaviorSpec("Ball", (ObservationSpec("place", (2,)),), ActionSpec(0, (3,)))
    assert "this model has no action masks" in refusal({"observations": [PLACES], "masks": [[1] * 3] * 2}, spec)
