"""Observations outside of their space are named; a Box's are warned about once; all others arrive as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from properties import examples

from headrace.stages.environments.spaces.observations import observation_parts
from headrace.stages.environments.spaces.own_space import own_space
from headrace.stages.errors import BrokenEnvironmentError

BITS: Any = spaces.Box(0, 1, (1,), bool)
SMALL = np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)


def who(row):
    return f"Env, instance {row}"


def extracted(space, items):
    parts = observation_parts(own_space(space), "Env")
    batch = concatenate(space, items, create_empty_array(space, len(items)))
    return [part.extract(batch, who) for part in parts]


def nested(space, name):
    """Spaces with this one inside, its name there, and what makes a value of one."""
    rest = spaces.Box(0, 1, (2,))
    zero = np.zeros(2, np.float32)
    yield space, "observation", lambda value: value
    yield spaces.Dict({"rest": rest, name: space}), name, lambda value: {"rest": zero, name: value}
    yield spaces.Tuple((rest, space)), "1", lambda value: (zero, value)
    yield spaces.Dict({"in": spaces.Dict({name: space})}), f"in.{name}", lambda value: {"in": {name: value}}
    yield spaces.Sequence(space), "observation", lambda value: (value,)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(
    ("space", "right", "wrong", "words"),
    [
        (spaces.Discrete(4), 3, 4, "is 4, outside its space Discrete(4); expected 0 to 3"),
        (spaces.Discrete(3, start=5), 7, 4, "is 4, outside its space Discrete(3, start=5); expected 5 to 7"),
        (spaces.MultiDiscrete([3, 3]), [0, 2], [0, 3], "has 3 at index 1, outside its space MultiDiscrete([3, 3])"),
        (spaces.MultiBinary(2), [0, 1], [0, 2], "has 2 at index 1, outside its space MultiBinary((2,))"),
    ],
)
def test_an_index_outside_of_its_space_is_an_error_that_names_it(space, right, wrong, words, place):
    outer, name, made = list(nested(space, "gear"))[place]
    right, wrong = (np.array(value, space.dtype) for value in (right, wrong))

    extracted(outer, [made(right)] * 3)
    with pytest.raises(BrokenEnvironmentError) as caught:
        extracted(outer, [made(right), made(right), made(wrong), made(right)])

    assert str(caught.value).startswith(f"Env, instance 2: the observation '{name}' {words}")


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(
    ("space", "right", "wrong", "words"),
    [
        (spaces.Box(*SMALL), [1, 1e20], [1.5, 0], "has 1.5 at [0], outside its space Box([-1, 0], [1, inf], (2,)"),
        (spaces.Box(0, 100, (2,), np.uint8), [0, 100], [0, 101], "has 101 at [1], outside its space Box(0, 100"),
        (spaces.Box(-3, 3, (), np.int64), 3, -4, "has -4, outside its space Box(-3, 3"),
    ],
)
def test_a_number_beyond_the_bounds_of_a_box_is_warned_about_once(space, right, wrong, words, place, caplog):
    outer, name, made = list(nested(space, "speed"))[place]
    right, wrong = (np.array(value, space.dtype) for value in (right, wrong))
    parts = observation_parts(own_space(outer), "Env")

    def extract(items):
        batch = concatenate(outer, items, create_empty_array(outer, len(items)))
        return [part.extract(batch, who) for part in parts]

    extract([made(right)] * 3)
    assert not caplog.records
    for _ in range(3):
        extract([made(right), made(wrong), made(wrong)])
    extract([made(wrong)])

    (message,) = caplog.messages
    assert message.startswith(f"Env, instance 1: the observation '{name}' {words}")
    assert "widen the bounds, or clip the observation" in message


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int8, np.int64, bool])
@examples(10)
@given(data=st.data())
def test_values_of_the_space_cause_no_error(dtype, data):
    if np.issubdtype(dtype, np.floating):
        low = data.draw(st.floats(-1e6, 1e6))
        space = spaces.Box(low, low + data.draw(st.floats(0, 1e6)), (2, 3), dtype)
    else:
        least, most = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low, high = sorted(data.draw(st.tuples(st.integers(least, most), st.integers(least, most))))
        space = spaces.Box(low, high, (2, 3), dtype)
    picked = data.draw(arrays.arrays(bool, (2, 3)))
    value = np.where(picked, space.low, space.high).astype(dtype)

    (part,) = observation_parts(own_space(space), "Env")
    found = part.extract(value[None].astype(data.draw(st.sampled_from([dtype, space.dtype]))), None)

    assert (found.reshape(2, 3) == value.astype(found.dtype)).all()


@pytest.mark.parametrize(
    ("space", "values", "words"),
    [
        (spaces.Box(0, 255, (1,), np.uint8), [[3], [300]], "instance 1: .*has 300 at .0., which uint8 can't hold"),
        (BITS, [[2], [0]], "instance 0: .*has 2 at .0., which bool can't hold"),
    ],
)
def test_values_that_the_dtype_can_not_hold_are_an_error(space, values, words):
    (part,) = observation_parts(own_space(space), "Env")
    with pytest.raises(BrokenEnvironmentError, match=words):
        part.extract(np.array(values), who)
    with pytest.raises(TypeError, match="expected whole numbers of .*, got float64"):
        part.extract(np.array([[0.5]]), who)
