"""Reads a stream file, intact or damaged: every message up to the first incomplete frame.

A truncated file or flipped bits cause no error: iteration ends early, and `damage` and `lost_bytes` describe the loss.
`StreamError` is raised if a file is not a Headrace stream, or if a frame with a valid checksum has content that no
writer produces. Memory use is limited to one frame: its payload and its content, at most MAX_FRAME_BYTES each, and the
objects in its metadata, about 72 times MAX_META_BYTES (75 MB).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from headrace.queues import codec
from headrace.queues.errors import ShapeError, StreamError
from headrace.queues.messages import Message
from headrace.queues.stream_format import (
    FRAME,
    HEADER,
    INDEX,
    LATER,
    MAGIC,
    MAX_FRAME_BYTES,
    MESSAGE,
    PREAMBLE,
    TRAILER,
    TRAILER_MAGIC,
    VERSION,
    StreamHeader,
    checksum,
    unpack_arrays,
    unpack_payload,
)


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
        self.damage: str | None = None
        """A sentence that describes the damage and its location; None if the file is intact. Known after a full
        iteration."""
        with self._open() as file:
            size = _size(file)
            self.header = self._read_header(file, size)
            self._first = file.tell()
            self._index_offset = self._find_index(file, size)
            self._find_later(file, size)

    @property
    def closed_cleanly(self) -> bool:
        """True if the file ends with an index: its writer was closed, and nothing was cut off later."""
        return self._index_offset is not None

    def __iter__(self) -> Generator[Frame, None, None]:
        self.lost_bytes, self.damage = 0, None
        with self._open() as file:
            size = _size(file)
            at = self._first
            file.seek(at)
            sequence = 0
            while at < size:
                try:
                    kind, payload = _read_frame(file, size - at)
                    if kind == INDEX:
                        self._check_end(at, file.tell(), size)
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

    def _open(self) -> BinaryIO:
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise StreamError(f"{self.path}: can't read the stream: {error.strerror}") from error

    def _read_header(self, file: BinaryIO, size: int) -> StreamHeader:
        start = file.read(PREAMBLE.size)
        if not start:
            raise StreamError(
                f"{self.path}: the file is empty; the run that recorded it may have ended "
                "before it began to write: leave this file out, or record again"
            )
        if start[: len(MAGIC)] != MAGIC[: len(start)]:
            raise StreamError(
                f"{self.path}: not a stream: it begins with {start[: len(MAGIC)]!r}; expected {MAGIC!r}; "
                "give a .stream file that a run with --record wrote"
            )
        if len(start) < PREAMBLE.size:
            raise StreamError(
                f"{self.path}: truncated after {len(start)} bytes, before its header; leave this file out"
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

    def _find_index(self, file: BinaryIO, size: int) -> int | None:
        if size < self._first + TRAILER.size:
            return None
        file.seek(size - TRAILER.size)
        trailer = file.read(TRAILER.size)
        offset, check, magic = TRAILER.unpack(trailer)
        if magic != TRAILER_MAGIC or check != crc32(trailer[:8]):
            return None
        if not self._first <= offset <= size - TRAILER.size - FRAME.size:
            return None
        file.seek(offset)
        length, kind, _ = FRAME.unpack(file.read(FRAME.size))
        whole = kind == INDEX and offset + FRAME.size + length + TRAILER.size == size
        return int(offset) if whole else None

    def _check_end(self, at: int, end: int, size: int) -> None:
        """Check, at an index frame, that only the trailer follows."""
        if self._index_offset != at:
            self._lose(end, size, f"the trailer at byte {end:,} is damaged, or has bytes after it")

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
