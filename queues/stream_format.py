"""The stream file as bytes: constants, the header, and frames made of plain data and arrays.

The layout is described in `docs/stream-format.md`; `stream_writer` writes the frames to disk, and `stream_reader` reads
them. Nothing here opens a file, and nothing is ever unpickled.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zstandard

from headrace.queues import codec
from headrace.queues.columns import (
    GAME_COLUMNS,
    TRAJECTORY_COLUMNS,
    Column,
    episode_columns,
    final_columns,
    row_columns,
)
from headrace.queues.errors import ShapeError, SpecError, StreamError
from headrace.queues.messages import Array
from headrace.queues.packing import pack, unpack
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
        known = {spec.behavior_id for spec in self.specs}
        new = [spec for spec in later.specs if spec.behavior_id not in known]
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
        except (KeyError, TypeError, ValueError, AttributeError, SpecError) as error:
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
    if len(body) < _META_LENGTH.size:
        raise StreamError(f"its content has {len(body)} bytes; expected at least {_META_LENGTH.size}")
    (meta_bytes,) = _META_LENGTH.unpack_from(body)
    data_start = codec.aligned(_META_LENGTH.size + meta_bytes)
    if meta_bytes > MAX_META_BYTES:
        raise StreamError(f"its metadata claims {meta_bytes:,} bytes; expected at most {MAX_META_BYTES:,}")
    if data_start > len(body):
        raise StreamError(f"its metadata claims {meta_bytes:,} bytes, but its content has {len(body):,}")
    try:
        meta = unpack(body[_META_LENGTH.size : _META_LENGTH.size + meta_bytes])
    except (ValueError, TypeError, RecursionError) as error:
        raise StreamError(f"its metadata is not msgpack: {error}") from error
    if not isinstance(meta, dict):
        raise StreamError(f"its metadata is a {type(meta).__name__}; expected a map")
    return meta, memoryview(body)[data_start:]


def unpack_arrays(table: Mapping[str, Any], data: memoryview) -> list[Array]:
    """Return read-only views of the arrays that the table lists.

    Raises:
        StreamError: if the table lists anything but arrays of plain numbers that fill the data exactly.
    """
    try:
        for name, dtype, shape in table["arrays"]:
            # NumPy accepts many more dtype strings, such as objects, records, and aliases that cause warnings.
            if not isinstance(name, str) or not _PLAIN_DTYPE.fullmatch(dtype):
                raise StreamError(f"array {name!r} has dtype {dtype!r}; expected plain numbers such as '<f4'")
            if not all(type(extent) is int and extent >= 0 for extent in shape):
                raise StreamError(f"array {name!r} has shape {shape!r}; expected non-negative whole numbers")
        claimed = codec.offsets(table)[1]
        if claimed != data.nbytes:
            raise StreamError(f"its arrays claim {claimed:,} bytes, but {data.nbytes:,} are present")
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
