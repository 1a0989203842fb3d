"""Assembles a checkpoint in main: announces it, gathers its parts from the hosts, makes it real with the last one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.control.messages import PartSaved
from pipeline.run_folder.atomic_files import REAL, FileOperations
from pipeline.run_folder.checkpoint import write_manifest

log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""Time limit of a checkpoint. One that takes longer has lost a host and is given up; the next one tries again."""


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
        last: number of the checkpoint that the run resumes from, -1 for a fresh run.
        files: file operations.
    """

    def __init__(self, folder: Path, last: int = -1, files: FileOperations = REAL) -> None:
        self._folder = folder
        self._files = files
        self._pending: _Pending | None = None
        self._next = last + 1
        self.newest = last
        """Number of the newest whole checkpoint, -1 if there is none."""

    @property
    def busy(self) -> bool:
        """True while a checkpoint is under way."""
        return self._pending is not None

    @property
    def pending(self) -> int | None:
        """Number of the checkpoint that is under way."""
        return self._pending.number if self._pending is not None else None

    @property
    def missing(self) -> str:
        """Names of the parts that the checkpoint under way still lacks."""
        return ", ".join(sorted(self._pending.expected - self._pending.parts.keys())) if self._pending else ""

    def begin(self, expected: Iterable[str], now_s: float) -> int:
        """Announce the next checkpoint, in place of one that is under way; returns its number."""
        self._pending = _Pending(self._next, frozenset(expected), now_s)
        self._next += 1
        return self._pending.number

    def add(self, part: PartSaved) -> bool:
        """Add a durable part; return True if it was the last one."""
        pending = self._pending
        if pending is None or part.number != pending.number:
            return False
        pending.parts[part.name] = part
        return pending.expected <= pending.parts.keys()

    def commit(self, steps: Mapping[str, int], progress: Mapping[str, Any]) -> int:
        """Make the complete checkpoint real and return its number.

        Raises:
            OSError: if the disk refuses; the checkpoint before is then still the one.
        """
        pending, self._pending = self._pending, None
        assert pending is not None, "commit follows add, when that says that the checkpoint is complete"
        write_manifest(self._folder, pending.number, pending.parts.values(), steps, progress, self._files)
        self.newest = pending.number
        return pending.number

    def give_up(self, number: int) -> bool:
        """Give up a checkpoint that lacks a part for good; return True if it was under way."""
        if self._pending is None or self._pending.number != number:
            return False
        self._pending = None
        return True

    def give_up_if_overdue(self, now_s: float) -> bool:
        """Give up the checkpoint under way if it takes too long; return True if it was given up."""
        pending = self._pending
        if pending is not None and now_s - pending.since_s > PATIENCE_S:
            log.warning(
                "checkpoint %d is given up after %.0f s: no word of %s", pending.number, PATIENCE_S, self.missing
            )
            self._pending = None
            return True
        return False
