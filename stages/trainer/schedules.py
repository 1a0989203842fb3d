"""Values that change over a run: learning rate, clip range, entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.stages.errors import StageError

LEARNING_RATE_FLOOR = 1e-10
EPSILON_FLOOR = 0.1
BETA_FLOOR = 1e-5
"""The ends of linear schedules, as in ML-Agents."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number that stays, or falls in a straight line to `floor` at `max_steps`.

    Raises:
        StageError: if `kind` is neither `linear` nor `constant`, or `max_steps` is not positive.
    """

    kind: str
    """`linear` or `constant`."""
    start: float
    """Value at step 0."""
    floor: float
    """Value at `max_steps` and beyond, of a linear schedule that starts above it."""
    max_steps: int
    """Agent steps of the whole run."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "constant"):
            raise StageError(f"no schedule is called {self.kind!r}; expected linear or constant")
        if self.max_steps <= 0:
            raise StageError(f"a schedule needs max_steps of at least 1, got {self.max_steps}")

    def at(self, step: int) -> float:
        """Return the value at an agent step of the run."""
        if self.kind == "constant" or self.start <= self.floor:
            # ML-Agents lets a value below the floor rise to it: an entropy bonus of 0 would come to life.
            return self.start
        left = 1.0 - min(step, self.max_steps) / self.max_steps
        return (self.start - self.floor) * left + self.floor
