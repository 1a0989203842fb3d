"""Writes `league.json` and `league.png` to behaviours' folders: results of self-play, or of a league of learners."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.config.plain_data import parse_json
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.files import REAL, matching, read_file, write_atomic

log = logging.getLogger(__name__)

REPORT, PICTURE = "league.json", "league.png"


def write_leagues(reports: Mapping[str, Mapping[str, Any]], run_folder: Path, pictures: bool = True) -> None:
    """Write each behaviour's `league.json`, and its `league.png` if the league has snapshots or members."""
    for behavior, report in reports.items():
        folder = behavior_folder(run_folder, behavior)
        try:
            REAL.make_folder(folder)
            write_atomic(folder / REPORT, json.dumps(report, indent=1).encode())
            if pictures:
                _draw(report, folder)
        except OSError as error:  # a report that can't be written must not fail the run
            log.warning("the league of %s could not be written: %s", behavior, error)


def draw_leagues(run_folder: Path) -> list[Path]:
    """Draw `league.png` next to each of a run's `league.json` files; return the paths of the images.

    Args:
        run_folder: the run's folder.

    Raises:
        OSError: if an image can't be written.
        ValueError: if a report can't be read.
    """
    drawn = []
    for path in matching(run_folder, f"*/{REPORT}"):
        try:
            drawn += _draw(parse_json(read_file(path)), path.parent)
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} is not the report of a league: {error!r}") from error
    return drawn


def _draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    if not (report.get("snapshots") or report.get("members")):
        return []
    from headrace.stages.ghost.league_plot import draw_league  # Pillow only where images are drawn

    write_atomic(folder / PICTURE, draw_league(report))
    return [folder / PICTURE]
