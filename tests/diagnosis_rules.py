"""Users' rules of the diagnosis, for `pipeline.diagnosis_rules`."""

from __future__ import annotations

from headrace.pipeline.diagnosis.evidence import RETURN, Evidence, Finding


class Impatient:
    """Finds every return too low."""

    def check(self, run: Evidence) -> Finding | None:
        last = run.last(RETURN)
        if last is None:
            return None
        return Finding(run.behavior, "warning", "impatient", RETURN, last, run.step, "above 0", "wait")


class Beginning:
    """Reports the first return of the run."""

    def check(self, run: Evidence) -> Finding | None:
        points = run.points(RETURN)
        return Finding(run.behavior, "hint", "beginning", RETURN, *points[0][::-1], "any", "none") if points else None


class Raising:
    def check(self, run: Evidence) -> Finding | None:
        raise ValueError("no curve today")


class NoRule:
    """Lacks `check`."""
