"""Stream files: the format, the writer and the reader. `docs/stream-format.md` describes the layout.

A file has a header, then one frame per message, made of plain data and arrays, and an index on closing. Nothing is ever
unpickled.

`StreamWriter` passes each frame to the operating system in one write, so a killed process loses at most the frame being
written. After `flush`, the written messages also survive a power failure.

`StreamReader` reads a file, intact or damaged: every message up to the first incomplete frame. A truncated file or
flipped bits cause no error: iteration ends early, and `damage` and `lost_bytes` describe the loss. `StreamError` is
raised if a file is not a Headrace stream, or if a frame with a valid checksum has content that no writer produces.
Memory use is limited to one frame: its payload and its content, at most MAX_FRAME_BYTES each, and the objects in its
metadata, about 72 times MAX_META_BYTES (75 MB).
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from array import array
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
import zstandard

from headrace.config.paths import file_name
from headrace.queues import codec
from headrace.queues.codec import pack, unpack
from headrace.queues.columns import (
    GAME_COLUMNS,
    TRAJECTORY_COLUMNS,
    Column,
    episode_columns,
    final_columns,
    row_columns,
)
from headrace.queues.errors import ShapeError, SpecError, StreamError
from headrace.queues.files import REAL, File, matching
from headrace.queues.messages import Array, Message, StepBatch, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec

MAGIC = b"\x89HRACE\r\n"
"""The first bytes of every stream. They are not text, so programs that convert line endings visibly corrupt them."""
VERSION = 1
MAX_FRAME_BYTES = 1 << 30
"""Maximum payload of a frame in bytes, compressed or not; writers refuse larger frames, and readers treat them as
damage."""
MAX_META_BYTES = 1 << 20
"""Maximum metadata of a frame in bytes. As Python objects, the metadata may take 72 times as much memory, because a
single byte can become a map."""
COMPRESSION_LEVEL = -1
"""A fast zstd level. For noisy floats, it takes a tenth of level 1's time and produces 8 % more output. For other data,
both levels are about equal."""

HEADER, MESSAGE, INDEX, LATER = 1, 2, 3, 4
"""Kinds of frames."""

PREAMBLE = struct.Struct("<8sI")
"""Start of the file: magic, version."""
FRAME = struct.Struct("<QII")
"""Start of a frame: payload length, kind, and CRC-32 of these twelve bytes and the payload."""
TRAILER = struct.Struct("<QI4s")
"""End of the file: offset of the index frame, CRC-32 of the offset's eight bytes, `TRAILER_MAGIC`."""
TRAILER_MAGIC = b"HEND"

_CHECKED = struct.Struct("<QI")
_META_LENGTH = struct.Struct("<I")
_PLAIN_DTYPE = re.compile(r"[<>|][biuf]\d{1,2}")

ColumnTable = Mapping[str, tuple[Column, ...]]
"""Columns of a trajectory batch, keyed by axis: rows, trajectories, episodes, games."""


def column_table(spec: BehaviorSpec, extra: tuple[Column, ...] = ()) -> dict[str, tuple[Column, ...]]:
    """Return the columns of a behaviour's trajectory batches; `extra` are the columns that its trainer declares."""
    return {
        "rows": row_columns(spec, extra),
        "trajectories": (*TRAJECTORY_COLUMNS, *final_columns(spec)),
        "episodes": episode_columns(spec),
        "games": GAME_COLUMNS,
    }


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """The description of a stream, which comes before its first message."""

    run_id: str
    created_unix_s: float
    """Time at which the file was created, in seconds since 1970, UTC."""
    edges: tuple[str, ...]
    """The edges that the stream records."""
    specs: tuple[BehaviorSpec, ...]
    """Specs of the behaviours known at the start. A reader's header also has the specs announced later."""
    columns: Mapping[str, ColumnTable]
    """Column tables, keyed by behaviour id."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration as plain data."""
    squashed: tuple[str, ...] = ()
    """Names of the behaviours whose continuous actions were sampled as in SAC."""

    @classmethod
    def of(
        cls,
        run_id: str,
        created_unix_s: float,
        edges: Sequence[str],
        specs: Sequence[BehaviorSpec],
        config: Mapping[str, Any] | None = None,
        extra: Mapping[str, tuple[Column, ...]] | None = None,
        squashed: Sequence[str] = (),
    ) -> StreamHeader:
        """Return a header with the column tables that follow from the specs.

        Args:
            run_id: the run's id.
            created_unix_s: time of creation, in seconds since 1970, UTC.
            edges: the edges that will be recorded.
            specs: one spec per behaviour id.
            config: the run's configuration as plain data.
            extra: the decision columns that each behaviour's trainer declared, keyed by behaviour name.
            squashed: names of the behaviours whose continuous actions were sampled as in SAC.
        """
        extra = extra or {}
        columns = {spec.behavior_id: column_table(spec, extra.get(spec.name, ())) for spec in specs}
        return cls(run_id, created_unix_s, tuple(edges), tuple(specs), columns, dict(config or {}), tuple(squashed))

    def joined(self, later: StreamHeader) -> StreamHeader:
        """Return the header with the behaviours that a later frame adds; known behaviours are unchanged."""
        behaviors = {spec.behavior_id for spec in self.specs}
        new = [spec for spec in later.specs if spec.behavior_id not in behaviors]
        squashed = tuple(dict.fromkeys((*self.squashed, *later.squashed)))
        columns = {**later.columns, **self.columns}
        return replace(self, specs=(*self.specs, *new), columns=columns, squashed=squashed)

    def to_plain(self) -> dict[str, Any]:
        """Return the header as dictionaries, lists and scalars."""
        tables = {
            behavior: {axis: [[c.name, c.dtype, list(c.shape)] for c in columns] for axis, columns in table.items()}
            for behavior, table in self.columns.items()
        }
        return {
            "format_version": VERSION,
            "run_id": self.run_id,
            "created_unix_s": self.created_unix_s,
            "edges": list(self.edges),
            "behaviors": [spec.to_plain() for spec in self.specs],
            "columns": tables,
            "config": dict(self.config),
            "squashed": list(self.squashed),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> StreamHeader:
        """Invert `to_plain`.

        Raises:
            StreamError: if a field is missing or of the wrong kind.
        """
        try:
            columns = {
                behavior: {
                    axis: tuple(Column(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in rows)
                    for axis, rows in table.items()
                }
                for behavior, table in plain["columns"].items()
            }
            return cls(
                run_id=str(plain["run_id"]),
                created_unix_s=float(plain["created_unix_s"]),
                edges=tuple(map(str, plain["edges"])),
                specs=tuple(map(BehaviorSpec.from_plain, plain["behaviors"])),
                columns=columns,
                config=dict(plain["config"]),
                squashed=tuple(map(str, plain["squashed"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SpecError) as error:
            raise StreamError(f"not a stream header: {error!r}") from error


def pack_frame(kind: int, meta: Mapping[str, Any], table: Mapping[str, Any], arrays: Sequence[Array]) -> bytes:
    """Return a complete frame, for a single write.

    Args:
        kind: HEADER, MESSAGE, INDEX or LATER.
        meta: plain data, including `table` if there are arrays.
        table: the layout for `codec.offsets`, which needs only the layout's `arrays`.
        arrays: C-contiguous arrays, in the table's order.

    Raises:
        StreamError: if the frame would be larger than MAX_FRAME_BYTES.
        ShapeError: if an array holds anything but plain numbers.
    """
    starts, array_bytes = codec.offsets(table)
    packed = pack(meta, default=_numpy_scalar)
    if len(packed) > MAX_META_BYTES:
        raise StreamError(f"{len(packed):,} bytes of metadata can't be recorded: the maximum is {MAX_META_BYTES:,}")
    data_start = codec.aligned(_META_LENGTH.size + len(packed))
    if data_start + array_bytes > MAX_FRAME_BYTES:
        raise StreamError(
            f"a frame of {data_start + array_bytes:,} bytes can't be recorded: the maximum is {MAX_FRAME_BYTES:,}; "
            "record smaller batches (lower buffer_size or time_horizon)"
        )
    body = bytearray(data_start + array_bytes)
    _META_LENGTH.pack_into(body, 0, len(packed))
    body[_META_LENGTH.size : _META_LENGTH.size + len(packed)] = packed
    codec.write_arrays(arrays, starts, memoryview(body)[data_start:])
    payload = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(body)
    return FRAME.pack(len(payload), kind, checksum(len(payload), kind, payload)) + payload


def checksum(length: int, kind: int, payload: bytes) -> int:
    """Return the CRC-32 (as in zlib and PNG) of everything in a frame except the checksum itself."""
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(length, kind)))


def unpack_payload(payload: bytes, with_arrays: bool = True) -> tuple[dict[str, Any], memoryview]:
    """Return a frame's metadata, and the bytes of its arrays as a view.

    Args:
        payload: the frame's payload.
        with_arrays: False for a frame that has no arrays and must be small.

    Raises:
        StreamError: if `pack_frame` did not make the payload, or the payload claims more than MAX_FRAME_BYTES.
    """
    body = _decompress(payload, MAX_FRAME_BYTES if with_arrays else codec.aligned(_META_LENGTH.size + MAX_META_BYTES))
    try:
        (meta_bytes,) = _META_LENGTH.unpack_from(body)
        if meta_bytes > MAX_META_BYTES:
            raise StreamError(f"its metadata claims {meta_bytes:,} bytes; expected at most {MAX_META_BYTES:,}")
        meta = unpack(body[_META_LENGTH.size : _META_LENGTH.size + meta_bytes])
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise StreamError(f"its metadata is not msgpack: {error}") from error
    return meta, memoryview(body)[codec.aligned(_META_LENGTH.size + meta_bytes) :]


def unpack_arrays(table: Mapping[str, Any], data: memoryview) -> list[Array]:
    """Return read-only views of the arrays that the table lists.

    Raises:
        StreamError: if the table lists anything but arrays of plain numbers, or more than the data.
    """
    try:
        for name, dtype, shape in table["arrays"]:
            # NumPy accepts many more dtype strings, such as objects, records, and aliases that cause warnings.
            numbers = isinstance(name, str) and _PLAIN_DTYPE.fullmatch(dtype)
            if not numbers or not all(type(extent) is int for extent in shape):
                raise StreamError(f"array {name!r} is {dtype!r} {shape!r}; expected plain numbers such as '<f4' [2, 3]")
        return codec.read_arrays(table, data)
    except (KeyError, TypeError, ValueError, OverflowError, ShapeError) as error:
        raise StreamError(f"its table of arrays is damaged: {error!r}") from error


def _decompress(payload: bytes, most: int) -> bytes:
    try:
        size = zstandard.get_frame_parameters(payload).content_size
        if size > most:  # zstandard reports an unknown size as its largest number
            stated = "no size" if size >= zstandard.CONTENTSIZE_ERROR else f"{size:,} bytes"
            raise StreamError(f"its content states {stated}; expected at most {most:,} bytes")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=most, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise StreamError(f"its payload is not zstd: {error}") from error


def _numpy_scalar(value: object) -> Any:
    """Convert a NumPy number in a message's field to a plain number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a stream can hold only plain data, got {type(value).__name__}: {value!r}")


class StreamWriter:
    """A stream file that is being recorded, usable as a context manager. Use it from one thread only.

    Args:
        path: the file's path; the file must not exist yet, and its folder is created if missing.
        header: the description of the stream.

    Raises:
        StreamError: if the file exists or can't be created.
    """

    def __init__(self, path: str | os.PathLike[str], header: StreamHeader) -> None:
        self.path = Path(path)
        self.header = header
        self._end = 0
        self._offsets, self._rows = array("Q"), array("Q")
        self._closed = False
        first = PREAMBLE.pack(MAGIC, VERSION) + pack_frame(HEADER, header.to_plain(), {"arrays": []}, [])
        try:
            REAL.make_folder(self.path.parent)
            self._file = File(self.path, "xb")
        except OSError as error:
            raise StreamError(f"{path}: can't record a stream there: {error.strerror or error}") from error
        try:
            self._append(first)
        except StreamError:
            self._file.close()
            REAL.remove(self.path)
            raise

    @property
    def frames(self) -> int:
        """Number of messages written so far."""
        return len(self._offsets)

    def write(self, edge: str, message: Message, time_s: float) -> None:
        """Append a copy of a message.

        Args:
            edge: the edge that carried the message, one of those in the header.
            message: the message to record.
            time_s: seconds on a monotonic clock, for replays at the recorded pace.

        Raises:
            StreamError: if writing fails, or the message is too large for one frame; in this case, the file still ends
                with its last complete frame, and accepts more writes or `close`.
            ShapeError: if an array in the message does not contain plain numbers.
            ValueError: if the stream is closed.
        """
        described, arrays = codec.describe(message)
        meta = {"edge": edge, "sequence": self.frames, "time_s": float(time_s), "message": described}
        start = self._end
        self._append(pack_frame(MESSAGE, meta, described, arrays))
        self._offsets.append(start)
        self._rows.append(rows_of(message))

    def announce(self, later: StreamHeader) -> None:
        """Append a description of behaviours that are missing from the file's header, before their first messages.

        Args:
            later: a header that describes only these behaviours; its `config` may be empty.

        Raises:
            StreamError: if writing fails.
        """
        self.header = self.header.joined(later)
        self._append(pack_frame(LATER, later.to_plain(), {"arrays": []}, []))

    def flush(self) -> None:
        """Wait until all written frames are on disk (0.4–1 ms, longer on a busy disk).

        Raises:
            StreamError: if the disk reports a failure.
        """
        try:
            self._file.sync()
        except OSError as error:
            raise StreamError(f"{self.path}: can't flush the recording: {error.strerror or error}") from error

    def close(self) -> None:
        """Write the index, flush, and close the file. Closing twice is allowed.

        Raises:
            StreamError: if writing the index fails; the messages remain readable.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._append(self._index())
            self.flush()
        finally:
            self._file.close()

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self) -> bytes:
        columns = {
            "offsets": np.array(self._offsets, "<u8"),
            "sequences": np.arange(self.frames, dtype="<u8"),
            "rows": np.array(self._rows, "<u8"),
        }
        table = {"arrays": [[name, column.dtype.str, list(column.shape)] for name, column in columns.items()]}
        return pack_frame(INDEX, table, table, list(columns.values())) + _trailer(self._end)

    def _append(self, data: bytes) -> None:
        try:
            self._file.write_all(data)  # one write, unless the disk fills up during it
        except OSError as error:
            with suppress(OSError):  # readers stop at the last complete frame anyway
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise StreamError(
                f"{self.path}: can't record {len(data):,} bytes after {self.frames} messages: "
                f"{error.strerror or error}; make room on the disk or record fewer edges"
            ) from error
        self._end += len(data)


def _trailer(index_offset: int) -> bytes:
    return TRAILER.pack(index_offset, crc32(index_offset.to_bytes(8, "little")), TRAILER_MAGIC)


def rows_of(message: Message) -> int:
    """Return the number of rows (agent steps) in a message as the index counts them; 0 for a message without rows."""
    match message:
        case TrajectoryBatch():
            return message.num_rows
        case StepBatch():
            return len(message.agent_ids)
        case _:
            return 0


def next_stream_path(folder: str | os.PathLike[str], behavior: str, edge: str) -> Path:
    """Return `<behavior>-<edge>-NNNN.stream`, numbered after the last existing file, because a resumed run adds files.

    Args:
        folder: the streams' folder, which need not exist.
        behavior: behaviour name or id; characters that file names can't contain become `_`.
        edge: the edge's name.
    """
    stem = file_name("-".join(re.sub(r"[^\w.]+", "_", part) for part in (behavior, edge)))
    numbered = re.compile(re.escape(stem) + r"-(\d+)\.stream")
    matches = [numbered.fullmatch(path.name) for path in matching(Path(folder), "*.stream")]
    last = max((int(match[1]) for match in matches if match), default=0)
    return Path(folder) / f"{stem}-{last + 1:04d}.stream"


@dataclass(frozen=True, slots=True)
class Frame:
    """One recorded message; its arrays are read-only."""

    edge: str
    sequence: int
    """Number of the message within the file, starting at 0, over all of the file's edges."""
    time_s: float
    """Time of the recording, in seconds on the recording process's monotonic clock."""
    message: Message


class StreamReader:
    """A recorded stream; iterating over it yields its frames in the order of recording, any number of times.

    The file is open only during iteration, so there is nothing to close.

    Args:
        path: the file's path.

    Raises:
        StreamError: if the file can't be opened, is not a stream, has another version, or has a damaged header.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.header: StreamHeader
        """The file's header, including the behaviours announced after the first message."""
        self.lost_bytes = 0
        """Number of unusable bytes after the last complete frame; known after a full iteration."""
        self.closed_cleanly = False
        """True if the file ends with an index: its writer was closed, and nothing was cut off later. Known after a full
        iteration."""
        self.damage: str | None = None
        """A sentence that describes the damage and its location; None if the file is intact. Known after a full
        iteration."""
        self._read_headers()

    def __iter__(self) -> Generator[Frame, None, None]:
        self.lost_bytes, self.damage, self.closed_cleanly = 0, None, False
        with self._open() as file:
            size = _size(file)
            at = self._first
            file.seek(at)
            sequence = 0
            while at < size:
                try:
                    kind, payload = _read_frame(file, size - at)
                    if kind == INDEX:
                        # Only the trailer may follow an index frame.
                        end = file.tell()
                        self.closed_cleanly = file.read(TRAILER.size + 1) == _trailer(at)
                        if not self.closed_cleanly:
                            self._lose(end, size, f"the trailer at byte {end:,} is damaged, or has bytes after it")
                        return
                    if kind == LATER:  # only new if the file has grown since it was opened
                        self._join(at, payload)
                        at = file.tell()
                        continue
                    frame = self._decode(at, kind, payload)
                    if frame.sequence != sequence:
                        raise _DamageError(f"has sequence number {frame.sequence}: frames are missing or duplicated")
                except _DamageError as error:
                    self._lose(at, size, f"the frame at byte {at:,} {error}")
                    return
                at, sequence = file.tell(), sequence + 1
                yield frame
                del frame, payload  # before the next frame is read, to keep only one in memory

    def _read_headers(self) -> None:
        with self._open() as file:
            size = _size(file)
            self.header = self._read_header(file, size)
            self._first = file.tell()
            self._find_later(file, size)

    def _open(self) -> BinaryIO:
        try:
            return BufferedReader(File(self.path), 1 << 18)
        except OSError as error:
            raise StreamError(f"{self.path}: can't read the stream: {error.strerror or error}") from error

    def _read_header(self, file: BinaryIO, size: int) -> StreamHeader:
        start = file.read(PREAMBLE.size)
        if start[: len(MAGIC)] != MAGIC[: len(start)]:
            raise StreamError(
                f"{self.path}: not a stream: it begins with {start[: len(MAGIC)]!r}; expected {MAGIC!r}; "
                "give a .stream file that a run with --record wrote"
            )
        if len(start) < PREAMBLE.size:
            raise StreamError(
                f"{self.path}: ends after {len(start)} bytes, before its header; the run that recorded it may have "
                "ended before it began to write: leave this file out, or record again"
            )
        version = PREAMBLE.unpack(start)[1]
        if version != VERSION:
            raise StreamError(
                f"{self.path}: the stream has format version {version}; expected {VERSION}; replay it with the release "
                "that recorded it, or record again with this one"
            )
        try:
            kind, payload = _read_frame(file, size - PREAMBLE.size)
            if kind != HEADER:
                raise StreamError(f"is of kind {kind}; expected {HEADER}")
            return StreamHeader.from_plain(unpack_payload(payload, with_arrays=False)[0])
        except (_DamageError, StreamError) as error:
            raise StreamError(
                f"{self.path}: the header frame at byte {PREAMBLE.size} is damaged ({error}), and without "
                "it messages can't be distinguished from noise: restore the file from a backup, or leave it out"
            ) from error

    def _find_later(self, file: BinaryIO, size: int) -> None:
        """Find all behaviours announced after the header. Only the headers of other frames are read."""
        at = self._first
        while at + FRAME.size <= size:
            file.seek(at)
            length, kind, _ = FRAME.unpack(file.read(FRAME.size))
            if kind not in (MESSAGE, LATER) or length > size - at - FRAME.size:
                return
            if kind == LATER:
                file.seek(at)
                try:
                    self._join(at, _read_frame(file, size - at)[1])
                except _DamageError:  # iteration will end here too, and report the damage
                    return
            at += FRAME.size + length

    def _join(self, at: int, payload: bytes) -> None:
        try:
            self.header = self.header.joined(StreamHeader.from_plain(unpack_payload(payload, with_arrays=False)[0]))
        except StreamError as error:
            raise self._not_ours(at, error) from error

    def _lose(self, at: int, size: int, what: str) -> None:
        self.lost_bytes = size - at
        self.damage = f"{self.path}: {what}; {self.lost_bytes:,} bytes from byte {at:,} on are lost"

    def _not_ours(self, at: int, error: Exception) -> StreamError:
        return StreamError(
            f"{self.path}: the frame at byte {at:,} is not a recorded message, although its checksum matches: {error}; "
            "either Headrace did not write it, or a release with a different message format did"
        )

    def _decode(self, at: int, kind: int, payload: bytes) -> Frame:
        try:
            if kind != MESSAGE:
                raise StreamError(f"it is of kind {kind}; expected {MESSAGE}")
            meta, data = unpack_payload(payload)
            edge, sequence, time_s = meta["edge"], meta["sequence"], meta["time_s"]
            if (type(edge), type(sequence), type(time_s)) != (str, int, float):
                raise StreamError(f"edge {edge!r}, sequence {sequence!r} or time {time_s!r} is of the wrong type")
            message = codec.build(meta["message"], unpack_arrays(meta["message"], data))
            if not isinstance(getattr(message, "behavior_id", ""), str):
                raise StreamError("its behavior_id is not text")
        except (StreamError, ShapeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._not_ours(at, error) from error
        return Frame(edge, sequence, time_s, message)


class _DamageError(Exception):
    """Raised if a frame is incomplete; the error's text completes the sentence "the frame at byte … "."""


def _read_frame(file: BinaryIO, left: int) -> tuple[int, bytes]:
    """Return the kind and payload of the frame at the file's position; `left` is the number of bytes that remain."""
    head = file.read(FRAME.size)
    if len(head) < FRAME.size:
        raise _DamageError(f"is truncated after {len(head)} bytes")
    length, kind, expected = FRAME.unpack(head)
    # Check before allocating: a length is credible only if the file has that many bytes.
    if length > left - FRAME.size:
        raise _DamageError(
            f"is truncated or damaged: it claims {length:,} bytes, but the file has {left - FRAME.size:,} left"
        )
    if length > MAX_FRAME_BYTES:
        raise _DamageError(f"is damaged: it claims {length:,} bytes, but frames have at most {MAX_FRAME_BYTES:,}")
    payload = file.read(length)
    if checksum(length, kind, payload) != expected:
        raise _DamageError("is damaged: its checksum does not match")
    return kind, payload


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
