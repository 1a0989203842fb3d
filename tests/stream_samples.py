"""Small messages, headers and files for the tests of streams, recording and replay."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.queues import codec
from headrace.queues.messages import Array, Barrier, Message, PolicyUpdate, StepBatch, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.queues.stream_file import FRAME, TRAILER, StreamHeader, StreamWriter, unpack_arrays, unpack_payload

SPEC = BehaviorSpec(
    "Ball?team=0",
    (ObservationSpec("vector", (2,)), ObservationSpec("picture", (2, 2, 3), "uint8")),
    ActionSpec(continuous_size=1, discrete_branches=(3,), masked=True, unbounded=(0,)),
)


def header(edges: tuple[str, ...] = ("trainer",), specs: tuple[BehaviorSpec, ...] = (SPEC,)) -> StreamHeader:
    config = {"behaviors": {"Ball": {"max_steps": 100, "layers": [64, 64], "path": None}}, "lr": 3e-4}
    return StreamHeader.of("run-1", 1_700_000_000.25, edges, specs, config)


def trajectories(number: int = 0, behavior_id: str = "Ball?team=0") -> TrajectoryBatch:
    """Two trajectories of 2 and 1 rows; `number` tells them apart."""
    rng = np.random.default_rng(number)
    return TrajectoryBatch(
        behavior_id,
        source=number,
        rows={
            "obs_0": rng.normal(size=(3, 2)).astype(np.float32),
            "obs_1": rng.integers(0, 255, (3, 2, 2, 3)).astype(np.uint8),
            "rewards": np.array([0.5, np.nan, -np.inf], np.float32),
            "unknown": np.arange(3, dtype=np.int64) + number,
        },
        trajectories={
            "lengths": np.array([2, 1], np.int32),
            "terminated": np.array([True, False]),
            "credits": np.array([2, 0], np.int32),
        },
        episodes={"episode_returns": np.array([1.5], np.float32)},
        games={"game_outcome": np.zeros(0, np.float32)},
    )


def steps() -> StepBatch:
    """Three agents, one of them at its end."""
    return StepBatch(
        "Ball?team=0",
        agent_ids=np.array([5, 6, 7]),
        env_ids=np.array([0, 1, 1], np.int32),
        episode_ids=np.array([0, 0, 1]),
        observations=(np.ones((3, 2), np.float32), np.zeros((3, 2, 2, 3), np.uint8)),
        rewards=np.array([1, 0, 0], np.float32),
        ended=1,
        terminated=np.array([True]),
        truncated=np.array([False]),
        decisions={"discrete_actions": np.array([[1], [2]], np.int32)},
        policy_versions=np.array([3, 3]),
        generations=np.zeros(2, np.int32),
        learning=np.array([True, False]),
        opponents=np.array([-1, 4], np.int32),
    )


def policy() -> PolicyUpdate:
    return PolicyUpdate("Ball", 7, np.arange(5, dtype=np.float32), (("body.weight", (2, 2)), ("bias", (1,))), 640)


EVERY_KIND: tuple[Message, ...] = (trajectories(), steps(), policy(), Barrier(3, source=1))


def same(one: Message, other: Message) -> bool:
    """Whether two messages are equal to the bit (NaNs included), dtypes and shapes as well."""
    (header_1, arrays_1), (header_2, arrays_2) = codec.describe(one), codec.describe(other)
    return header_1 == header_2 and all(a.tobytes() == b.tobytes() for a, b in zip(arrays_1, arrays_2, strict=True))


def record(
    path: Path,
    messages: Sequence[Message],
    start_s: float = 0.0,
    edges: tuple[str, ...] = ("trainer",),
    specs: tuple[BehaviorSpec, ...] = (SPEC,),
) -> Path:
    """A stream of these messages, one second apart, on the header's first edge."""
    head = header(edges, specs)
    with StreamWriter(path, head) as writer:
        for i, message in enumerate(messages):
            writer.write(head.edges[0], message, start_s + i)
    return path


def index_of(path: Path) -> list[Array]:
    """The index of a whole stream: the offsets, sequence numbers and rows of its messages."""
    data = path.read_bytes()
    offset = index_offset(data)
    begin = offset + FRAME.size
    return unpack_arrays(*unpack_payload(data[begin : begin + FRAME.unpack_from(data, offset)[0]]))


def index_offset(data: bytes) -> int:
    """The byte of a whole stream at which its index begins."""
    return int(struct.unpack("<Q", data[-TRAILER.size :][:8])[0])
