"""Records an edge's messages, and replays them in place of the stages that produced them.

`Recorder` is a tap that writes an edge's messages into a stream file, and `ReplaySource` a source that yields them. The
streams' headers contain everything that the downstream stages need before the first message (specs, edges); these
stages are built from `behavior_specs`. A recorded run's properties can be read without replaying the run.
"""

from __future__ import annotations

import asyncio
import glob
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.queues.disks import answered
from headrace.queues.errors import SpecError, StreamError
from headrace.queues.messages import Message, PolicyUpdate, StepBatch, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec, behavior_team
from headrace.queues.stream_file import Frame, StreamHeader, StreamReader, StreamWriter
from headrace.stages.errors import StageError
from headrace.stages.stage import Source, StageContext
from headrace.startup_context import absolute

__all__ = ["Recorder", "ReplaySource"]


log = logging.getLogger(__name__)


class Recorder:
    """Writes one edge's messages to a stream file. Several recorders in one thread may share a writer.

    Args:
        writer: the writer of the stream file.
        edge: the edge's name, as in the writer's header.
        clock: returns seconds on a monotonic clock.

    Raises:
        ValueError: if the writer's header has no such edge.
    """

    def __init__(self, writer: StreamWriter, edge: str, clock: Callable[[], float] = time.monotonic) -> None:
        if edge not in writer.header.edges:
            raise ValueError(f"{writer.path}: edge {edge!r} is not in its header {list(writer.header.edges)}")
        self.writer = writer
        self.edge = edge
        self._clock = clock

    def tap(self, message: Message) -> None:
        """Write a message immediately, in the caller's thread; docs/stream-format.md states the cost.

        Raises:
            StreamError: if the message can't be written to disk.
        """
        self.writer.write(self.edge, message, self._clock())


class GuardedRecorder:
    """A recorder that stops with a warning at the first disk error, so a failed recording does not end the run.

    The recorder does not resume when the disk has space again, because a recording with a gap would replay as a
    different run.

    Args:
        make: creates the recorder and its file.
    """

    def __init__(self, make: Callable[[], Recorder]) -> None:
        self._recorder: Recorder | None = None
        try:
            self._recorder = make()
        except StreamError as error:
            self._warn(error)

    def tap(self, message: Message) -> None:
        """Write a message immediately, in the caller's thread."""
        self._write(lambda recorder: recorder.tap(message))

    def announce(self, later: StreamHeader) -> None:
        """Describe behaviours that are missing from the file's header; see `StreamWriter.announce`."""
        self._write(lambda recorder: recorder.writer.announce(later))

    def finish(self) -> None:
        """Write the index and close the file."""
        recorder = self._recorder
        if recorder is None:
            return
        self._write(lambda recorder: recorder.writer.close())
        path = recorder.writer.path
        with suppress(OSError):
            if not answered(path, path.exists):
                log.warning("%s was deleted while the run was writing it; the recording is lost.", path)

    def _write(self, write: Callable[[Recorder], None]) -> None:
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except StreamError as error:
            self._warn(error)
            with suppress(StreamError):  # the disk is probably still full
                self._recorder.writer.close()
            self._recorder = None

    def _warn(self, error: StreamError) -> None:
        log.warning("%s. Training continues without this recording; the part written so far can be replayed.", error)


TRAINER_EDGE = "trainer"
"""The edge into a trainer; its messages have already passed through all other stages."""


class ReplaySource(Source[Message]):
    """Yields one edge's messages from stream files, file by file, in the order in which they were recorded.

    Recorded checkpoint barriers are omitted, because they belong to the recorded run's checkpoints.

    Args:
        streams: files, folders or glob patterns, replayed in this order; a folder's or pattern's files are sorted by
            name. A file that occurs twice is replayed once.
        edge: the edge to replay; may be None if the files hold only one edge.
        announce: called with the spec of each behaviour that was unknown at `start`, before its first message.
        speed: `max` (as fast as backpressure allows), `realtime`, or a factor by which to replay faster than real time.
            Each file's clock starts at its first message; messages that are late are yielded immediately.
        clock: returns seconds on a monotonic clock.
        sleep: waits for a number of seconds.

    Raises:
        StageError: if the speed is not one of these.
    """

    def __init__(
        self,
        streams: Sequence[str | Path],
        edge: str | None = None,
        speed: str | float = "max",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        announce: Callable[[BehaviorSpec], object] = lambda _: None,
    ) -> None:
        self._streams = streams
        self._edge = edge
        self._factor = _factor(speed)
        self._clock = clock
        self._sleep = sleep
        self._announce = announce
        self._readers: list[StreamReader] = []
        self._stopping = False
        self._sleeper: asyncio.Task[None] | None = None
        self._read = 0
        self.behavior_specs: dict[str, BehaviorSpec] = {}
        """The replayed behaviours' specs, keyed by id. They are complete after `start`, unless a file is still growing.
        """

    def start(self, context: StageContext) -> None:
        """Read all headers and check that the files agree.

        Raises:
            StageError: if a pattern matches no file, the edge is unknown or ambiguous, or two files disagree about a
                behaviour.
            StreamError: if a file is not a stream.
        """
        self._log = context.log
        readers = [StreamReader(path) for path in resolve_streams(self._streams)]
        self._edge = _choose_edge(self._edge, readers)
        self._readers = [reader for reader in readers if self._edge in reader.header.edges]
        self._check_agreement()

    def progress(self) -> int | None:
        """Return the number of frames read; None while the source waits until the next frame is due."""
        return self._read if self._sleeper is None else None

    async def produce(self) -> AsyncIterator[Message]:
        """Yield messages until the files end or `request_stop` is called.

        Raises:
            StreamError: if a frame is not in Headrace's format.
            StageError: if a message belongs to a behaviour that its file does not describe.
        """
        for reader in self._readers:
            began: tuple[float, float] | None = None
            with closing(iter(reader)) as frames:
                for frame in frames:
                    self._read += 1
                    await asyncio.sleep(0)  # reading never waits, so let this host's other stages run
                    known = isinstance(frame.message, TrajectoryBatch | StepBatch | PolicyUpdate)
                    if frame.edge != self._edge or not known:
                        continue
                    self._introduce(reader, frame)
                    began = began or (self._clock(), frame.time_s)
                    await self._wait_until_due(began, frame.time_s)
                    if self._stopping:
                        return
                    yield frame.message
            self._report(reader)

    def request_stop(self) -> None:
        """Stop soon, even during a long wait between two messages."""
        self._stopping = True
        if self._sleeper is not None:
            self._sleeper.cancel()

    async def _wait_until_due(self, began: tuple[float, float], time_s: float) -> None:
        if math.isinf(self._factor) or self._stopping:
            return
        clock_0, time_0 = began
        wait_s = clock_0 + (time_s - time_0) / self._factor - self._clock()
        if wait_s > 0:
            # A task group ends without an error if its child task is cancelled, so `request_stop` can cut the wait
            # short.
            async with asyncio.TaskGroup() as group:
                self._sleeper = group.create_task(self._sleep(wait_s))
            self._sleeper = None

    def _introduce(self, reader: StreamReader, frame: Frame) -> None:
        """Announce a message's behaviour to the stages that receive the message.

        Without the spec, these stages would wait forever.
        """
        message = frame.message
        if not isinstance(message, TrajectoryBatch) or message.behavior_id in self.behavior_specs:
            return
        self._check_agreement()  # including behaviours that a growing file has announced meanwhile
        try:
            behavior_team(message.behavior_id)
        except SpecError as error:
            raise StageError(f"replay: {reader.path}: message {frame.sequence}: {error}") from error
        mates = [spec for spec in self.behavior_specs.values() if spec.name == message.behavior]
        if mates:  # a recording at a trainer describes only one of the behaviour's ids
            self.behavior_specs.setdefault(message.behavior_id, replace(mates[0], behavior_id=message.behavior_id))
        spec = self.behavior_specs.get(message.behavior_id)
        if spec is None:
            described = ", ".join(sorted(self.behavior_specs))
            raise StageError(
                f"replay: {reader.path}: message {frame.sequence} is for behaviour {message.behavior_id!r}, which the "
                f"file does not describe (described: {described}), so no trainer can learn from it: record again"
            )
        if self._edge != TRAINER_EDGE or not mates:
            self._announce(spec)

    def _check_agreement(self) -> None:
        """Check that all files agree on each behaviour's spec, within a team and between teams."""
        first: dict[str, tuple[StreamReader, BehaviorSpec]] = {}
        for reader in self._readers:
            for spec in reader.header.specs:
                self.behavior_specs.setdefault(spec.behavior_id, spec)
                other, agreed = first.setdefault(spec.name, (reader, spec))
                difference = _difference(other, agreed, reader, spec)
                if difference:
                    raise StageError(
                        f"replay: {other.path} and {reader.path} can't be replayed together: for behaviour "
                        f"{spec.name!r}, {difference}; replay them one at a time"
                    )

    def _report(self, reader: StreamReader) -> None:
        if reader.damage:
            self._log.warning("replayed up to the last complete message: %s", reader.damage)
        elif not reader.closed_cleanly:
            self._log.warning(
                "%s: no bytes are lost, but the stream was not closed: its run was killed or is still recording",
                reader.path,
            )


def _factor(speed: str | float) -> float:
    if speed == "max":
        return math.inf
    if speed == "realtime":
        return 1.0
    if isinstance(speed, int | float) and not isinstance(speed, bool) and 0 < speed < math.inf:
        return float(speed)
    raise StageError(f"replay: speed must be 'max', 'realtime' or a number above 0, got {speed!r}")


def resolve_streams(streams: Sequence[str | Path]) -> list[Path]:
    """Return the files that paths and patterns match, in the given order, each once.

    Args:
        streams: files, folders of `.stream` files or glob patterns; a folder's or pattern's files are sorted by name.

    Raises:
        StageError: if a pattern matches nothing, or `streams` is empty.
    """
    paths: dict[Path, Path] = {}
    for stream in streams:
        location = absolute(stream)
        found = answered(location, _streams_at, location)
        if not found:
            raise StageError(
                f"replay: no stream matches {str(stream)!r}; expected a stream file, a folder of stream files, or a "
                "pattern such as 'results/<run-id>/streams/*.stream'"
            )
        for resolved, path in found:
            paths.setdefault(resolved, path)
    if not paths:
        raise StageError("replay: no streams are listed; expected at least one file or pattern")
    return list(paths.values())


def _streams_at(location: Path) -> list[tuple[Path, Path]]:
    """Return the stream files at a location, as pairs of the resolved path and the path."""
    if location.is_dir():
        found = sorted(location.glob("*.stream"))
    else:  # the name of an existing file may contain brackets
        found = [location] if location.exists() else [*map(Path, sorted(glob.glob(str(location), recursive=True)))]
    return [(path.resolve(), path) for path in found]


def _choose_edge(edge: str | None, readers: Sequence[StreamReader]) -> str:
    recorded = sorted({edge for reader in readers for edge in reader.header.edges})
    if edge is None and len(recorded) == 1:
        return recorded[0]
    if edge is None:
        raise StageError(f"replay: the streams contain several edges, {recorded}; name the edge to replay (edge: …)")
    if edge not in recorded:
        raise StageError(f"replay: no stream has an edge {edge!r}; the streams have {recorded}")
    return edge


def _difference(other: StreamReader, agreed: BehaviorSpec, reader: StreamReader, spec: BehaviorSpec) -> str | None:
    if agreed.observations != spec.observations:
        return f"the observations differ: {agreed.seen} and {spec.seen}"
    if agreed.actions != spec.actions:
        return f"the actions differ: {agreed.actions} and {spec.actions}"
    theirs, ours = _columns(other, agreed), _columns(reader, spec)
    if theirs != ours:
        only = sorted(theirs - ours), sorted(ours - theirs)
        return f"the columns differ: only the first has {only[0]}, only the second has {only[1]}"
    return None


def _columns(reader: StreamReader, spec: BehaviorSpec) -> set[tuple[str, str, str, tuple[int, ...]]]:
    table = reader.header.columns.get(spec.behavior_id, {})
    return {(axis, c.name, c.dtype, c.shape) for axis, columns in table.items() for c in columns}


# What the headers of recordings tell without a replay. Each function raises a StageError if a pattern matches nothing,
# and a StreamError if a file is not a stream.


def _headers(streams: Sequence[str | Path]) -> Iterator[StreamHeader]:
    return (StreamReader(path).header for path in resolve_streams(streams))


def recorded_seed(streams: Sequence[str | Path]) -> int:
    """Return the seed of the run in the first recording; -1 if the recording does not state it."""
    return int(next(_headers(streams)).config.get("env_settings", {}).get("seed", -1))


def recorded_agents(streams: Sequence[str | Path]) -> int | None:
    """Return how many agents acted concurrently in the first recording's run; None if unknown.

    This is the number of environments × actors.
    """
    config = next(_headers(streams)).config
    try:
        environments = (config.get("environment") or config["env_settings"])["num_envs"]
        return int(environments) * int(config["pipeline"]["hosts"]["actors"]["replicas"])
    except KeyError:
        return None


def recorded_behaviors(streams: Sequence[str | Path], edge: str) -> frozenset[str]:
    """Return the names of the behaviours recorded at an edge."""
    return frozenset(spec.name for header in _headers(streams) if edge in header.edges for spec in header.specs)


def recorded_edge(streams: Sequence[str | Path]) -> str:
    """Return the recorded edge to replay: the trainer's input if it was recorded, otherwise the other edge."""
    edges = {edge for header in _headers(streams) for edge in header.edges}
    return TRAINER_EDGE if TRAINER_EDGE in edges else min(edges)
