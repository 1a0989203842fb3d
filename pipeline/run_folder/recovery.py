"""Chooses the checkpoint that a run resumes from: the newest whole one, and says which were passed over and why."""

from __future__ import annotations

import logging
from pathlib import Path

from headrace.pipeline.run_folder.atomic_files import REAL, FileOperations, free_name, write_atomic
from headrace.pipeline.run_folder.checkpoint import (
    MANIFEST,
    MENDING,
    Checkpoint,
    CheckpointError,
    checkpoint_folder,
    each_checkpoint,
    numbered_folders,
)

log = logging.getLogger(__name__)


def choose_checkpoint(checkpoints: Path, *, playing: bool = False, files: FileOperations = REAL) -> Checkpoint | None:
    """Return the newest whole checkpoint; a warning names those that are damaged, and what it is resumed from instead.

    Damaged ones are put aside, as `<number>.damaged`, so that the resumed run may give their numbers again.

    Args:
        checkpoints: `results/<run-id>/checkpoints`.
        playing: policies are only played: parts are not read, so they need not be whole, and nothing is put aside.
        files: file operations.

    Returns:
        The checkpoint; None if none was ever whole.

    Raises:
        CheckpointError: if there are checkpoints and all are damaged, or they are of another version.
    """
    defects: list[str] = []
    for found in each_checkpoint(checkpoints):
        try:
            if isinstance(found, CheckpointError):
                raise found
            if not playing:
                found.check()
        except CheckpointError as error:
            defects.append(str(error))
            continue
        aside = [] if playing else _make_newest(checkpoints, found, files)
        if defects:
            kept = f" What is left of it is kept as {', '.join(map(str, aside))}." if aside else ""
            log.warning(
                "%s. %s from the checkpoint before, %s (%s), instead.%s",
                "; ".join(defects),
                "Playing" if playing else "Resuming",
                found.folder,
                ", ".join(f"{name} at step {step}" for name, step in found.steps.items()),
                kept,
            )
        return found
    if defects:
        raise CheckpointError(f"{'; '.join(defects)}. No older checkpoint is whole: {MENDING}")
    return None


def _make_newest(checkpoints: Path, chosen: Checkpoint, files: FileOperations) -> list[Path]:
    """Put the folders of newer checkpoints aside, and write the chosen one's manifest where it is missing."""
    aside = []
    try:
        for number in sorted(number for number in numbered_folders(checkpoints) if number > chosen.number):
            folder = checkpoint_folder(checkpoints, number)
            aside.append(free_name(folder.with_name(f"{folder.name}.damaged")))
            files.replace(folder, aside[-1])
        if aside:
            files.sync_folder(checkpoints)
        data = chosen.manifest.read_bytes()
        for target in (chosen.folder / MANIFEST, checkpoints / MANIFEST):
            if not target.is_file() or target.read_bytes() != data:
                write_atomic(target, data, files=files)
    except OSError as error:
        raise CheckpointError(f"{checkpoints}: can't be prepared for resuming: {error}") from error
    return aside
