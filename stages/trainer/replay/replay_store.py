"""The file that stores a replay memory."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol
from zipfile import ZipFile

from headrace.queues.windows_files import write_whole
from headrace.stages.trainer.replay.replay_memory import LazyColumn

# The file is a zip archive, whose checksums detect damage. It has the JSON entry `HEADER` and an entry for each column,
# named by its number, with the bytes of the rows in use. The columns are written from, and read into, the memory's own
# arrays, so a large memory is never held twice. The file is either complete or absent: it is written under a temporary
# name, synced to disk, and renamed. Numbers are little-endian, like all platforms that torch runs on.
HEADER = "memory.json"
FORMAT = 1

_CHUNK_BYTES = 2**24


class SavedMemory(Protocol):
    """A replay memory that can be written to a file."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the memory's shape; a file must have the same values."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns, as numbers and lists of numbers."""
        ...

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""
        ...

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        ...

    def restored(self) -> None:
        """Finish restoring, once all columns are filled."""
        ...

    def clear(self) -> None:
        """Remove all rows."""
        ...


class ReplayFileError(Exception):
    """Raised if a replay file can't be read or belongs to a different memory; the message says why."""


# msgpack cannot hold gigabytes, so the memory is a separate file (docs/decisions/046).
def write_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Write a memory to a file, replacing any older file.

    Args:
        memory: the memory.
        path: the file.
        step: the trainer's step, which identifies the checkpoint that the file belongs to.

    Raises:
        OSError: if the file can't be written; an older file is then kept.
    """

    def write(file: IO[bytes]) -> None:
        buffered = io.BufferedWriter(file)  # writes everything, even if the system writes in parts
        with ZipFile(buffered, "w") as archive:
            header = {"format": FORMAT, "facts": memory.facts(), "columns": _described(memory), "step": step}
            archive.writestr(HEADER, json.dumps(header))
            for number, (column, rows) in enumerate(memory.columns()):
                with archive.open(str(number), mode="w", force_zip64=True) as entry:
                    entry.write(_bytes_of(column, rows))
        buffered.flush()
        buffered.detach()

    write_whole(path, write)


def read_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Fill a memory from a file that `write_replay` wrote at the same step; after a failure, the memory is empty.

    Raises:
        ReplayFileError: if the file is missing, truncated or modified, or belongs to a different memory or step.
    """
    try:
        with path.open("rb") as file:
            _read(memory, file, step)
    except (OSError, ReplayFileError) as error:
        memory.clear()
        raise ReplayFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # damage may raise anything
        memory.clear()
        raise ReplayFileError(f"{path}: truncated, damaged, or not a replay buffer: {error!r}") from error


def _read(memory: SavedMemory, file: IO[bytes], step: int) -> None:
    with ZipFile(file) as archive:
        saved = json.loads(archive.read(HEADER))
        if saved["format"] != FORMAT:
            raise ReplayFileError(
                f"the file has format {saved['format']}, but this version of Headrace reads format {FORMAT}"
            )
        if saved["step"] != step:
            raise ReplayFileError(f"the file was saved at step {saved['step']}, but the trainer is at step {step}")
        for name, now in memory.sizes.items():
            then = saved["facts"][name]
            if then != now:
                raise ReplayFileError(f"the file was saved with {name} {then}, which is now {now}")
        memory.restore(saved["facts"])
        if saved["columns"] != _described(memory):
            raise ReplayFileError(
                "its observations or actions differ from the environment's, or hindsight has been switched on or off "
                "since then"
            )
        for number, (column, rows) in enumerate(memory.columns()):
            with archive.open(str(number)) as entry:
                rest = _bytes_of(column, rows)
                while count := entry.readinto(rest[:_CHUNK_BYTES]):  # type: ignore[attr-defined]  # IO[bytes] lacks it
                    rest = rest[count:]
                if rest or entry.read(1):
                    raise ReplayFileError(f"the file's column {column.name} has a wrong size")
    memory.restored()


def _described(memory: SavedMemory) -> list[list[Any]]:
    columns = memory.columns()
    return [[column.name, column.rows.dtype.str, list(column.rows.shape[1:]), rows] for column, rows in columns]


def _bytes_of(column: LazyColumn, rows: int) -> memoryview:
    """Return the memory of a column's leading rows, without copying it."""
    column.reserve(rows)
    return memoryview(column.rows[:rows].reshape(-1).view("u1"))  # type: ignore[arg-type]  # an array is a buffer
