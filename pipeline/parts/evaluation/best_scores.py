"""Reads and writes the scores of best policies. A score may be newer than the last checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from headrace.pipeline.run_folder.atomic_files import write_atomic

log = logging.getLogger(__name__)


def write_score(policy: Path, behavior: str, mean: float, opponents: object) -> None:
    """Write a policy's mean return, and the opponents it was achieved against, to a file next to the policy.

    Raises:
        OSError: if the file can't be written.
    """
    score = {"behavior": behavior, "mean": mean, "opponents": opponents}
    write_atomic(policy.with_suffix(".json"), json.dumps(score).encode())


def read_scores(run_folder: Path, opponents: object) -> dict[str, float]:
    """Return the scores that a run's best policies have achieved against these opponents, keyed by behaviour name."""
    scores = {}
    for path in sorted(run_folder.glob("*/*-best.json")):
        try:
            score = json.loads(path.read_bytes())
            if score["opponents"] == opponents:
                scores[str(score["behavior"])] = float(score["mean"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("%s can't be read (%r), so the best score from the checkpoint is used.", path, error)
    return scores
