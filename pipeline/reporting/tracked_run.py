"""The identity of a run at a tracking service, kept in the run's folder so that a resumed run goes on there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.pipeline.run_folder.atomic_files import write_atomic


def tracked_id(run_folder: Path, service: str, resume: bool, make: Callable[[], str]) -> tuple[str, bool]:
    """Return the id that a run has at a service, and whether the run had it before.

    Args:
        run_folder: `results/<run-id>`; the id is in its `<service>_run_id.txt`.
        service: the service's name.
        resume: take the kept id, if there is one.
        make: makes a new one.
    """
    kept = run_folder / f"{service}_run_id.txt"
    if resume and kept.is_file() and (known := kept.read_text(encoding="utf-8").strip()):
        return known, True
    made = make()
    write_atomic(kept, f"{made}\n".encode())
    return made, False
