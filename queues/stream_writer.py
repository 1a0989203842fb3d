"""Writes a stream file: a header, then one frame per message, and an index on closing.

Each frame is passed to the operating system in one write, so a killed process loses at most the frame being written.
After `flush`, the written messages also survive a power failure. `stream_reader` reads these files.
"""

from __future__ import annotations

import os
import re
from array import array
from contextlib import suppress
from io import FileIO
from pathlib import Path
from zlib import crc32

import numpy as np

from headrace.config.file_names import file_name
from headrace.queues import codec
from headrace.queues.errors import StreamError
from headrace.queues.messages import Message, StepBatch, TrajectoryBatch
from headrace.queues.stream_format import (
    HEADER,
    INDEX,
    LATER,
    MAGIC,
    MESSAGE,
    PREAMBLE,
    TRAILER,
    TRAILER_MAGIC,
    VERSION,
    StreamHeader,
    pack_frame,
)


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
        self._file = _create(self.path)
        try:
            self._append(first)
        except StreamError:
            self._file.close()
            self.path.unlink()
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
            ValueError: if the header does not contain the edge, or the stream is closed.
        """
        if self._closed:
            raise ValueError(f"{self.path}: write after close()")
        if edge not in self.header.edges:
            raise ValueError(f"{self.path}: edge {edge!r} is not in its header, which has {list(self.header.edges)}")
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
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StreamError(f"{self.path}: can't flush the recording: {error.strerror}") from error

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
        offset = self._end.to_bytes(8, "little")
        trailer = TRAILER.pack(self._end, crc32(offset), TRAILER_MAGIC)
        return pack_frame(INDEX, table, table, list(columns.values())) + trailer

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:  # one write, unless the disk fills up during it
                view = view[self._file.write(view) :]
        except OSError as error:
            with suppress(OSError):  # readers stop at the last complete frame anyway
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise StreamError(
                f"{self.path}: can't record {len(data):,} bytes after {self.frames} messages: "
                f"{error.strerror}; make room on the disk or record fewer edges"
            ) from error
        self._end += len(data)


def _create(path: Path) -> FileIO:
    if path.exists():
        raise StreamError(f"{path}: the file already exists, and streams are never overwritten; choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "xb", buffering=0)
    except OSError as error:
        raise StreamError(f"{path}: can't record a stream there: {error.strerror}") from error


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
    found = [numbered.fullmatch(path.name) for path in Path(folder).glob("*.stream")]
    last = max((int(match[1]) for match in found if match), default=0)
    return Path(folder) / f"{stem}-{last + 1:04d}.stream"
