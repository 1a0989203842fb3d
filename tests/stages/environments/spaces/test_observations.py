"""Observation spaces as columns: what a space is taken for, and that values arrive where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ObservationSettings
from headrace.stages.environments.spaces import observations
from headrace.stages.environments.spaces.columns import space_warnings
from headrace.stages.environments.spaces.own_space import own_space
from headrace.stages.errors import StageError


def observation_parts(space, owner, settings=None, exact=False):
    return observations.observation_parts(own_space(space), owner, settings, exact)


def take_rows(space, batch, rows):
    return observations.take_rows(own_space(space), batch, rows)


def said(**settings):
    """`environment.observations`, short forms as the YAML has them."""
    short: dict[str, Any] = {
        "goal": {"goal": True},
        "image": {"kind": "image"},
        "set": {"kind": "set"},
        "vector": {"kind": "vector"},
    }
    return {
        name: ObservationSettings(**short.get(value, value) if isinstance(value, str) else value)
        for name, value in settings.items()
    }


def batched(space, items):
    """Observations of single instances, batched as vector environments do."""
    return concatenate(space, items, create_empty_array(space, len(items)))


def specs_of(space, **settings):
    return [part.spec for part in observation_parts(space, "Env", said(**settings))]


def pixels(*shape, low=0, high=255):
    return spaces.Box(low, high, shape, np.uint8)


# Vectors.


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (np.float64, "float64"),
        (np.int64, "float64"),
        (np.float16, "float32"),
        (np.float32, "float32"),
        (np.uint8, "uint8"),
    ],
)
def test_exact_vectors_are_float64_if_float32_would_round_them(dtype, kept):
    space = spaces.Box(0, 100, (3,), dtype)
    (part,) = observation_parts(space, "Env", exact=True)
    assert part.spec.dtype == kept
    values = part.extract(np.array([[1, 2, 99]], dtype))
    assert (values.dtype, values.tolist()) == (np.dtype(kept), [[1, 2, 99]])


def test_exact_applies_only_to_vectors():
    space = spaces.Dict(
        clock=spaces.Box(0, np.inf, (), np.float64),
        nested=spaces.Tuple([spaces.Box(-1, 1, (2, 2), np.float64), spaces.Discrete(3)]),
        picture=spaces.Box(0, 1, (16, 16, 3), np.float64),
        things=spaces.Box(0, 1, (4, 2), np.float64),
    )
    parts = observation_parts(space, "Env", said(things="set"), exact=True)
    kinds = {part.spec.name: part.spec.dtype for part in parts}
    assert kinds == {
        "clock": "float64",
        "nested.0": "float64",
        "nested.1": "float32",
        "picture": "float32",
        "things": "float32",
    }
    assert parts[0].extract({"clock": np.array([1.7e9 + 1])}).tolist() == [[1.7e9 + 1]]


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (np.float64, "float32"),
        (np.float16, "float32"),
        (np.float32, "float32"),
        (np.int64, "int64"),
        (np.uint8, "uint8"),
        (np.int8, "int8"),
    ],
)
def test_floats_become_float32_and_other_numbers_keep_their_dtype(dtype, kept):
    (part,) = observation_parts(spaces.Box(0, 100, (3,), dtype), "Env")

    extracted = part.extract(np.array([[1, 2, 3], [4, 5, 6]], dtype))

    assert (part.spec.shape, part.spec.dtype) == ((3,), kept)
    assert extracted.dtype == kept
    assert extracted.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 1, 2, 2)])
def test_boxes_of_other_ranks_are_flattened(shape):
    (part,) = observation_parts(spaces.Box(-9, 9, shape), "Env")
    size = int(np.prod(shape))

    extracted = part.extract(np.arange(2 * size, dtype=np.float32).reshape(2, *shape))

    assert part.spec.shape == (size,)
    assert extracted.tolist() == np.arange(2 * size).reshape(2, size).tolist()


def test_discrete_observations_become_one_hot_from_their_start():
    (part,) = observation_parts(spaces.Discrete(3, start=5), "Env")

    assert (part.spec.shape, part.spec.dtype) == ((3,), "float32")
    assert part.extract(np.array([5, 7, 6])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_multi_discrete_observations_become_one_hots_side_by_side():
    (part,) = observation_parts(
        spaces.MultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[0, 1], [0, 0]])), "Env"
    )

    extracted = part.extract(np.array([[[1, 3], [0, 0]], [[0, 1], [0, 1]]]))

    assert extracted.tolist() == [[0, 1, 0, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 1, 0, 1]]


def test_multi_binary_observations_become_numbers():
    (part,) = observation_parts(spaces.MultiBinary((2, 2)), "Env")

    assert part.spec.dtype == "float32"
    assert part.extract(np.array([[[0, 1], [1, 1]]], np.int8)).tolist() == [[0, 1, 1, 1]]


# Images.


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((84, 84, 3), True),
        ((4, 84, 84), False),  # stacked grey frames
        # the first of equal dimensions
        ((8, 8, 111), True),
        ((64, 3, 64), True),
        ((8, 111, 8), False),
    ],
)
def test_an_images_channels_are_the_axis_next_to_two_equal_axes_or_the_smallest(shape, last):
    (part,) = observation_parts(pixels(*shape), "Env")
    batch = np.arange(2 * np.prod(shape)).reshape(2, *shape).astype(np.uint8)

    extracted = part.extract(batch)

    assert (part.spec.kind, part.spec.shape, part.spec.channels_last) == ("image", shape, last)
    assert extracted.dtype.name == part.spec.dtype == "uint8"
    assert (extracted == batch).all()
    assert not np.shares_memory(extracted, batch)


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((6, 7, 17), True),
        ((7, 6, 17), True),
        ((17, 6, 7), False),
        ((17, 7, 6), False),
        ((10, 9, 14), True),
        ((6, 7, 2), True),
        ((2, 6, 7), False),
        ((8, 8, 111), True),
        ((111, 8, 8), False),
        ((210, 160, 3), True),
        ((3, 210, 160), False),
    ],
)
@pytest.mark.parametrize("dtype", [bool, np.float32, np.int8])
def test_a_boards_planes_are_the_axis_that_differs_from_two_similar_ones(shape, last, dtype):
    space = spaces.Box(0, 1, shape, dtype)
    (spec,) = specs_of(space)
    assert (spec.shape, spec.channels_last) == (shape, last)
    planes, smallest = shape[-1 if last else 0], min(shape)
    warned = [*space_warnings(own_space(space), (spec,), None)]
    assert len(warned) == (planes != smallest and len(set(shape)) == 3)


@pytest.mark.parametrize(("channels", "last"), [("first", False), ("last", True)])
def test_the_position_of_channels_can_be_set(channels, last):
    (spec,) = specs_of(pixels(8, 4, 64), observation={"channels": channels})

    assert (spec.shape, spec.channels_last) == ((8, 4, 64), last)


def test_a_picture_without_colours_gets_a_channel():
    (part,) = observation_parts(pixels(16, 20), "Env")
    batch = np.arange(640).reshape(2, 16, 20).astype(np.uint8)

    assert (part.spec.shape, part.spec.channels_last) == ((16, 20, 1), True)
    assert (part.extract(batch)[..., 0] == batch).all()


@pytest.mark.parametrize("space", [pixels(15, 20), pixels(16, 20, high=3), spaces.Box(0, 255, (16, 20), np.float32)])
def test_a_matrix_that_is_not_of_bytes_is_a_vector_by_default(space):
    (plain,), (image,) = specs_of(space), specs_of(space, observation="image")

    assert plain.shape == (np.prod(space.shape),)
    assert image.shape == (*space.shape, 1)


@pytest.mark.parametrize("colours", ["first", "last"])
def test_the_channels_of_stacked_frames_form_one_image(colours):
    shape = (4, 3, 20, 22) if colours == "first" else (4, 20, 22, 3)
    (part,) = observation_parts(pixels(*shape), "Env")
    batch = np.random.default_rng(0).integers(0, 256, (2, *shape)).astype(np.uint8)

    extracted = part.extract(batch)

    if colours == "first":
        assert (part.spec.shape, part.spec.channels_last) == ((12, 20, 22), False)
        assert all((extracted[:, 3 * f + c] == batch[:, f, c]).all() for f in range(4) for c in range(3))
    else:
        assert (part.spec.shape, part.spec.channels_last) == ((20, 22, 12), True)
        assert all((extracted[..., 3 * f + c] == batch[:, f, ..., c]).all() for f in range(4) for c in range(3))
    assert not np.shares_memory(extracted, batch)


def test_an_image_can_be_taken_for_a_vector():
    (spec,) = specs_of(spaces.Box(0, 1, (2, 3, 4)), observation="vector")

    assert (spec.kind, spec.shape, spec.dtype) == ("vector", (24,), "float32")


# Several at once.

ROBOT = spaces.Dict(
    {
        "state": spaces.Dict({"position": spaces.Box(-9, 9, (2,)), "gear": spaces.Discrete(3)}),
        "camera": pixels(20, 20, 3),
        "hands": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-9, 9, (2, 2))]),
    }
)


def test_dict_and_tuple_are_taken_apart_in_the_spaces_own_order():
    assert [(spec.name, spec.shape, spec.dtype) for spec in specs_of(ROBOT)] == [
        ("camera", (20, 20, 3), "uint8"),  # gymnasium sorts the keys of a Dict
        ("hands.0", (2,), "float32"),
        ("hands.1", (4,), "float32"),
        ("state.gear", (3,), "float32"),
        ("state.position", (2,), "float32"),
    ]
    unsorted = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(2))])
    assert [spec.name for spec in specs_of(unsorted)] == ["b", "a"]


@pytest.mark.lengthy
@given(seed=st.integers(0, 1000), k=st.integers(1, 4))
def test_every_part_gets_its_own_values(seed, k):
    ROBOT.seed(seed)
    items = [ROBOT.sample() for _ in range(k)]

    extracted = {part.spec.name: part.extract(batched(ROBOT, items)) for part in observation_parts(ROBOT, "Env")}

    for i, item in enumerate(items):
        assert (extracted["camera"][i] == item["camera"]).all()
        assert (extracted["hands.0"][i] == item["hands"][0]).all()
        assert (extracted["hands.1"][i] == item["hands"][1].ravel()).all()
        assert extracted["state.gear"][i].argmax() == item["state"]["gear"]
        assert (extracted["state.position"][i] == item["state"]["position"]).all()


# Sets.

ENEMIES = spaces.Dict(kind=spaces.Discrete(2), position=spaces.Box(-9, 9, (2,)))


def enemy(kind, x, y):
    return {"kind": np.int64(kind), "position": np.array([x, y], np.float32)}


def test_a_sequence_becomes_a_set_padded_with_zeros():
    space = spaces.Sequence(spaces.Box(-9, 9, (2,)))
    (part,) = observation_parts(space, "Env", said(observation={"max_entities": 3}))
    two, none = (np.array([1, 2], np.float32), np.array([3, 4], np.float32)), ()

    extracted = part.extract(batched(space, [two, none]))

    assert (part.spec.kind, part.spec.shape, part.spec.dtype) == ("set", (3, 2), "float32")
    assert extracted.tolist() == [[[1, 2], [3, 4], [0, 0]], [[0, 0]] * 3]


def test_the_parts_of_an_entity_stand_side_by_side():
    space = spaces.Dict(enemies=spaces.Sequence(ENEMIES), own=spaces.Discrete(2))
    enemies, _ = observation_parts(space, "Env", said(enemies={"max_entities": 2}))
    items = [{"enemies": (enemy(0, 1, 2), enemy(1, 3, 4)), "own": 0}, {"enemies": (enemy(1, 5, 6),), "own": 1}]

    extracted = enemies.extract(batched(space, items))

    assert enemies.spec.name == "enemies"
    assert extracted.tolist() == [[[1, 0, 1, 2], [0, 1, 3, 4]], [[0, 1, 5, 6], [0, 0, 0, 0]]]


def test_a_stacked_sequence_gives_the_same_as_one_that_is_not():
    loose, stacked = spaces.Sequence(ENEMIES), spaces.Sequence(ENEMIES, stack=True)
    entities = [(enemy(0, 1, 2), enemy(1, 3, 4)), (), (enemy(1, 5, 6),)]
    together = [batched(ENEMIES, some) if some else create_empty_array(ENEMIES, 0) for some in entities]

    (expected,) = observation_parts(loose, "Env")
    (part,) = observation_parts(stacked, "Env")

    assert part.spec == expected.spec
    assert part.spec.shape == (32, 4)
    assert (part.extract(batched(stacked, together)) == expected.extract(batched(loose, entities))).all()


def test_more_entities_than_there_is_room_for_are_reported_with_the_key():
    space = spaces.Dict(enemies=spaces.Sequence(spaces.Discrete(3)))
    (part,) = observation_parts(space, "Env", said(enemies={"max_entities": 2}))

    part.extract(batched(space, [{"enemies": (1, 2)}]))
    with pytest.raises(
        StageError, match=r"has 3 entities, more than the maximum of 2; raise environment\.observations\.enemies\.max"
    ):
        part.extract(batched(space, [{"enemies": (1,)}, {"enemies": (0, 1, 2)}]))


def test_the_rows_of_a_matrix_can_be_the_entities_of_a_set():
    space = spaces.Dict(others=spaces.Box(-9, 9, (3, 2)))
    (part,) = observation_parts(space, "Env", said(others="set"))
    values = np.arange(6, dtype=np.float32).reshape(3, 2)

    assert (part.spec.kind, part.spec.shape) == ("set", (3, 2))
    assert part.extract(batched(space, [{"others": values}])).tolist() == [values.tolist()]


# Goals.

REACH = spaces.Dict(
    observation=spaces.Box(-9, 9, (4,)), achieved_goal=spaces.Box(-9, 9, (2,)), desired_goal=spaces.Box(-9, 9, (2,))
)


def test_a_desired_goal_is_a_goal_by_default():
    by_itself = {spec.name: spec.goal for spec in specs_of(REACH)}
    as_said = {spec.name: spec.goal for spec in specs_of(REACH, desired_goal="vector", achieved_goal="goal")}

    assert by_itself == {"achieved_goal": False, "desired_goal": True, "observation": False}
    assert as_said == {"achieved_goal": True, "desired_goal": False, "observation": False}


# Mistakes.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"camra": "image"}, r"environment\.observations: it has no observation 'camra'; did you mean 'camera'\?"),
        ({"x": "goal"}, r"it has no observation 'x'; available: camera, hands\.0, hands\.1, state\.gear, state\.pos"),
        ({"camera": "set"}, r"environment\.observations\.camera: Box\(.* can't be used as 'set'; expected vector or im"),
        ({"state.position": {"channels": "last"}}, r"position\.channels: only an image has channels; .* as a vector"),
        ({"hands.1": {"kind": "image", "channels": "last"}}, r"hands\.1\.channels: .* has no axis for channels"),
        ({"hands.1": {"kind": "set", "max_entities": 3}}, r"hands\.1\.max_entities: only a Sequence space has a variable"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_reported(settings, message):
    with pytest.raises(StageError, match=f"^Env: .*{message}"):
        observations.check_names(said(**settings), observation_parts(ROBOT, "Env", said(**settings)), "Env")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "Env: its observations are of a Text space, which is not supported; .*MyObservationWrapper"),
        (spaces.Dict(a=spaces.Text(5)), "Env: its observation 'a' is of a Text space, .*FilterObservation"),
        (spaces.Sequence(spaces.Sequence(spaces.Discrete(2))), "of a Sequence space"),
        (spaces.Dict({}), "is empty; an agent needs observations"),
    ],
)  # fmt: skip
def test_unsupported_spaces_are_refused_with_the_fix(space, message):
    with pytest.raises(StageError, match=message):
        observation_parts(space, "Env")
