"""Users' rules of the diagnosis, for `pipeline.diagnosis_rules`."""

from __future__ import annotations

import math

from headrace.pipeline.diagnosis.rules import RETURN, Evidence, Finding


class Impatient:
    """Finds every return too low."""

    def check(self, run: Evidence) -> Finding | None:
        last = run.last(RETURN)
        if math.isnan(last):
            return None
        return Finding(run.behavior, "warning", "impatient", RETURN, last, run.step, "above 0", "wait")


class Beginning:
    """Reports the first return of the run."""

    def check(self, run: Evidence) -> Finding | None:
        if not run.values(RETURN):
            return None
        step = run.curves[RETURN][0][0]
        return Finding(run.behavior, "warning", "beginning", RETURN, run.first(RETURN), step, "any", "none")


class Raising:
    def check(self, run: Evidence) -> Finding | None:
        raise ValueError("no curve today")


class NoRule:
    """Lacks `check`."""
