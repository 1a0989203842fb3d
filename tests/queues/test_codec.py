from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.queues import codec
from headrace.queues.errors import ShapeError
from headrace.queues.messages import (
    Array,
    Barrier,
    DecisionAnswer,
    DecisionRequest,
    Message,
    PolicyAnswer,
    PolicyQuestion,
    PolicyUpdate,
    ReplayRequest,
    ReplaySample,
    StepBatch,
    TrajectoryBatch,
)

names = st.text(min_size=1, max_size=8)
dtypes = st.sampled_from(["uint8", "bool", "int32", "int64", "float16", "float32", "float64"])


@st.composite
def columns(draw: st.DrawFn, length: int, max_size: int = 3) -> dict[str, Array]:
    """Columns of any plain dtype and trailing shape; some are not contiguous."""
    made = {}
    for name in draw(st.lists(names, max_size=max_size, unique=True)):
        shape = (length, *draw(st.lists(st.integers(0, 3), max_size=2)))
        column = draw(npst.arrays(draw(dtypes), shape))
        made[name] = np.asfortranarray(column) if draw(st.booleans()) else column
    return made


@st.composite
def trajectory_batches(draw: st.DrawFn) -> TrajectoryBatch:
    lengths = draw(st.lists(st.integers(1, 4), max_size=4))
    n, k = sum(lengths), len(lengths)
    return TrajectoryBatch(
        draw(names),
        draw(st.integers(0, 1 << 40)),
        rows={"rewards": np.zeros(n, np.float32)} | draw(columns(n)),
        trajectories={"lengths": np.array(lengths, np.int32)} | draw(columns(k)),
        episodes=draw(columns(draw(st.integers(0, 3)))),
        games=draw(columns(draw(st.integers(0, 3)))),
    )


@st.composite
def step_batches(draw: st.DrawFn) -> StepBatch:
    n = draw(st.integers(0, 4))
    grouped = draw(st.booleans())
    ended = draw(st.integers(0, n))
    d = n - ended
    return StepBatch(
        draw(names),
        agent_ids=np.arange(n),
        env_ids=np.arange(n, dtype=np.int32),
        episode_ids=np.arange(n) + 5,
        observations=tuple(draw(npst.arrays(draw(dtypes), (n, 2))) for _ in range(draw(st.integers(0, 3)))),
        rewards=draw(npst.arrays(np.float32, n)),
        ended=ended,
        terminated=np.ones(ended, np.bool_),
        truncated=np.zeros(ended, np.bool_),
        decisions=draw(columns(d)),
        policy_versions=np.arange(d),
        generations=np.zeros(d, np.int32),
        learning=np.ones(d, np.bool_),
        opponents=np.full(d, -1, np.int32),
        games=draw(columns(draw(st.integers(0, 2)))),
        tick=draw(st.integers(0, 1 << 40)),
        group_ids=np.arange(n) % 2 if grouped else None,
        group_rewards=np.arange(n, dtype=np.float32) if grouped else None,
        env_frames=np.arange(n, dtype=np.int32) if grouped else None,
        undiscounted=np.ones((n, 2), np.float32) if grouped else None,
    )


@st.composite
def policies(draw: st.DrawFn) -> PolicyUpdate:
    shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), max_size=3))
    size = sum(int(np.prod(shape)) for shape in shapes)
    layout = tuple((f"w{i}", shape) for i, shape in enumerate(shapes))
    numbers = st.integers(0, 1 << 40)
    weights = draw(npst.arrays(np.float32, size))
    return PolicyUpdate(draw(names), draw(numbers), weights, layout, draw(numbers), draw(st.integers(-1, 9)))


barriers = st.builds(Barrier, st.integers(0, 1 << 40), st.integers(0, 1 << 40))
messages: st.SearchStrategy[Message] = st.one_of(trajectory_batches(), step_batches(), policies(), barriers)


def there_and_back(message: Message) -> Message:
    """Through bytes: what a slab and a frame, or a stream file, would hold."""
    header, arrays = codec.describe(message)
    starts, total = codec.offsets(header)
    buffer = bytearray(total)
    codec.write_arrays(arrays, starts, memoryview(buffer))
    header = msgpack.unpackb(msgpack.packb(header))
    return codec.build(header, codec.read_arrays(header, bytes(buffer)))


def assert_equal(got: Any, expected: Any) -> None:
    """Equal in type, values and dtypes, NaNs included, and in the order of columns."""
    assert type(got) is type(expected)
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for name in expected:
            assert_equal(got[name], expected[name])
    elif isinstance(expected, tuple):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_equal(ours, theirs)
    elif hasattr(expected, "__dataclass_fields__"):
        for field in fields(expected):
            assert_equal(getattr(got, field.name), getattr(expected, field.name))
    else:
        assert got == expected


@pytest.mark.lengthy
@given(message=messages)
def test_every_message_comes_back_as_it_was(message: Message):
    assert_equal(there_and_back(message), message)


def test_an_object_that_is_not_a_message_is_refused():
    with pytest.raises(TypeError, match="not a pipeline message: str"):
        codec.describe("hello")  # type: ignore[arg-type]


def header_of(name: str = "weights", dtype: str = "<f4", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    policy = {"behavior_id": "Ball", "version": 0, "layout": [], "step": 0, "snapshot": -1}
    return {"type": "PolicyUpdate", "fields": policy, "arrays": [[name, dtype, list(shape)]]}


@pytest.mark.parametrize(
    "header",
    [header_of(dtype="|O"), header_of(dtype="<U4"), header_of(dtype="<M8[s]"), header_of(shape=(-1,))],
    ids=["objects", "text", "dates", "negative size"],
)
def test_arrays_that_no_message_has_are_refused(header: dict[str, Any]):
    with pytest.raises(ShapeError, match=r"'weights'.*can't be sent in a message"):
        codec.offsets(header)


def test_a_buffer_smaller_than_its_header_claims_is_refused():
    with pytest.raises(ShapeError, match=r"claims 4\d+ bytes of arrays, but the message has 128"):
        codec.read_arrays(header_of(shape=(10**12,)), bytes(128))


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (header_of() | {"type": "Cow"}, "unknown message type 'Cow'"),
        (header_of() | {"fields": {}}, "not a message header"),
        (header_of(name="waits"), "not a message header"),
        ({"type": "Barrier"}, "not a message header"),
    ],
)
def test_a_header_that_is_none_is_refused(header: dict[str, Any], complaint: str):
    arrays = [np.zeros(2, np.float32)] if header.get("arrays") else []
    with pytest.raises(ShapeError, match=complaint):
        codec.build(header, arrays)


def test_messages_between_a_trainer_and_its_replay_buffer_round_trip():
    header, arrays = codec.describe(ReplayRequest(np.array([3, 0, 5])))
    request = codec.build(header, arrays)
    assert isinstance(request, ReplayRequest)
    assert request.counts.tolist() == [3, 0, 5]
    header, arrays = codec.describe(
        ReplaySample({"rewards": np.ones(2, np.float32), "obs_encoded_0": np.zeros((2, 3), "u1")})
    )
    sample = codec.build(header, arrays)
    assert isinstance(sample, ReplaySample)
    assert {name: column.shape for name, column in sample.columns.items()} == {"rewards": (2,), "obs_encoded_0": (2, 3)}


def test_messages_between_an_actor_and_central_inference_round_trip():
    ones, threes = np.ones((2, 3), np.float32), np.full((1, 4), 3, np.uint8)
    asked = DecisionRequest(
        5,
        (
            PolicyQuestion("Ball?team=0", -1, 7, False, (), {"obs_0": ones, "obs_1": ones}),
            PolicyQuestion("Ball?team=1", 2, 4, True, (2, 9), {"obs_0": threes}),
        ),
    )
    request = codec.build(*codec.describe(asked))
    assert isinstance(request, DecisionRequest)
    assert request.number == 5
    for found, meant in zip(request.questions, asked.questions, strict=True):
        assert replace(found, columns={}) == replace(meant, columns={})
        assert {name: column.tolist() for name, column in found.columns.items()} == {
            name: column.tolist() for name, column in meant.columns.items()
        }
    columns = {"continuous": ones, "decision/log_probs": ones}
    answer = codec.build(
        *codec.describe(DecisionAnswer(5, (PolicyAnswer(7, columns), PolicyAnswer(4, {"discrete": threes}))))
    )
    assert isinstance(answer, DecisionAnswer)
    assert [each.version for each in answer.answers] == [7, 4]
    assert [[*each.columns] for each in answer.answers] == [["continuous", "decision/log_probs"], ["discrete"]]
