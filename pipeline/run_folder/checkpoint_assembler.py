"""Assembles a checkpoint in main: begins it, collects the hosts' parts, and commits it once all have arrived."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.pipeline.control import PartSaved
from headrace.pipeline.run_folder.atomic_files import REAL, FileOperations
from headrace.pipeline.run_folder.checkpoint import (
    MANIFEST,
    PART_SUFFIX,
    checkpoint_folder,
    remove_unfinished,
    unfinished_folder,
    write_manifest,
)
from headrace.queues.windows_files import is_held

log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""Seconds without progress after which a checkpoint is abandoned. The next one starts afresh."""


@dataclass
class _Pending:
    number: int
    expected: frozenset[str]
    since_s: float
    parts: dict[str, PartSaved] = field(default_factory=dict)


class CheckpointAssembler:
    """Assembles at most one checkpoint at a time.

    Args:
        folder: `results/<run-id>/checkpoints`.
        last: number of the checkpoint from which the run resumes; -1 for a new run.
        files: file operations.
        keep: number of complete checkpoints to keep.
    """

    def __init__(self, folder: Path, last: int = -1, files: FileOperations = REAL, keep: int = 2) -> None:
        self._folder = folder
        self._files = files
        self._keep = keep
        self._pending: _Pending | None = None
        self._next = last + 1
        self.newest = last
        """Number of the newest complete checkpoint; -1 if there is none."""

    @property
    def busy(self) -> bool:
        """True while a checkpoint is in progress."""
        return self._pending is not None

    @property
    def pending(self) -> int | None:
        """Number of the checkpoint in progress; None if there is none."""
        return self._pending.number if self._pending is not None else None

    @property
    def missing(self) -> list[str]:
        """Names of the parts that are missing from the checkpoint in progress."""
        return sorted(self._pending.expected - self._pending.parts.keys()) if self._pending else []

    def move(self, folder: Path) -> None:
        """Continue in a different folder, which has no checkpoints yet. Abandon the checkpoint in progress."""
        self._folder, self._pending, self.newest = folder, None, -1

    def begin(self, expected: Iterable[str], now_s: float) -> int:
        """Begin the next checkpoint and return its number. Abandon any checkpoint in progress."""
        self._pending = _Pending(self._next, frozenset(expected), now_s)
        self._next += 1
        number = self._pending.number
        with contextlib.suppress(OSError):  # hosts also create the folder, and report errors
            self._files.make_folder(unfinished_folder(self._folder, number))  # shows that a checkpoint has started
            remove_unfinished(self._folder, self._files, but=number)
        return number

    def expect(self, parts: Iterable[str]) -> None:
        """Require these additional parts for the checkpoint in progress."""
        if self._pending is not None:
            self._pending.expected |= frozenset(parts)

    def leave_out(self, parts: Iterable[str]) -> None:
        """Complete the checkpoint in progress without these parts."""
        if self._pending is not None:
            self._pending.expected -= frozenset(parts)

    def progressed(self, now_s: float) -> None:
        """Restart the time limit for the checkpoint in progress."""
        if self._pending is not None:
            self._pending.since_s = now_s

    def add(self, part: PartSaved) -> bool:
        """Add a part that is on disk; return True if no other part is missing."""
        pending = self._pending
        if pending is None or part.number != pending.number:
            return False
        pending.parts[part.name] = part
        return pending.expected <= pending.parts.keys()

    def carry_over(self, parts: Iterable[PartSaved]) -> None:
        """Link missing parts, and the files next to them, from the newest checkpoint into the one in progress.

        Raises:
            FileNotFoundError: if a file no longer exists.
            OSError: if a file can't be linked or copied.
        """
        pending = self._pending
        assert pending is not None, "a checkpoint is in progress"
        carried = {part.name: part for part in parts if part.name not in pending.parts}
        old, new = checkpoint_folder(self._folder, self.newest), unfinished_folder(self._folder, pending.number)
        beside = {path.name for path in old.iterdir() if path.suffix != PART_SUFFIX and path.name != MANIFEST}
        for file in sorted(beside | {part.file for part in carried.values()}):
            if not (new / file).exists():
                self._files.link(old / file, new / file)
        pending.parts |= carried

    def commit(self, steps: Mapping[str, int], progress: Mapping[str, Any]) -> int:
        """Commit the complete checkpoint and return its number.

        Raises:
            OSError: if the manifest can't be written; in this case, the previous checkpoint remains the newest. If
                another program has a file open, the checkpoint stays in progress, and can be committed again.
        """
        pending, self._pending = self._pending, None
        assert pending is not None, "commit follows add, when that says that the checkpoint is complete"
        parts = pending.parts.values()
        try:
            write_manifest(self._folder, pending.number, parts, steps, progress, self._files, self._keep)
        except OSError as error:
            if is_held(error):  # nothing has changed, and the next attempt may succeed
                self._pending = pending
            else:
                self._make_room()
            raise
        self.newest = pending.number
        return pending.number

    def give_up(self, number: int) -> bool:
        """Abandon a checkpoint that can't get all its parts; return True if it was in progress."""
        if self._pending is None or self._pending.number != number:
            return False
        self._pending = None
        self._make_room()
        return True

    def give_up_if_overdue(self, now_s: float, patience_s: float = PATIENCE_S) -> bool:
        """Abandon the checkpoint in progress if it made no progress for `patience_s`; return True if abandoned."""
        pending = self._pending
        if pending is not None and now_s - pending.since_s > patience_s:
            log.warning(
                "checkpoint %d abandoned: no progress for %.0f s; still missing: %s",
                pending.number,
                patience_s,
                ", ".join(self.missing) or "the disk",
            )
            self._pending = None
            return True
        return False

    def _make_room(self) -> None:
        """Remove the parts of failed checkpoints, which may have failed because the disk is full."""
        with contextlib.suppress(OSError):
            remove_unfinished(self._folder, self._files)
