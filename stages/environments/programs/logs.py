"""The end of a program's own log, for messages about it."""

from __future__ import annotations

from pathlib import Path


def tail(path: Path | None, lines: int = 15) -> str:
    """The end of a log, indented under a line with its path; empty if there is nothing to show."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            found = file.read().decode(errors="replace").rstrip().splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join([f"\nThe end of {path}:", *(f"    {line}" for line in found)]) if found else ""
