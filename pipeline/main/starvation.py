"""Warns of a trainer that learns nothing because stages before it keep everything back.

Such a run hangs nowhere: it just never ends, and without a warning nobody would know the reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

PATIENCE_UPDATES = 8
"""The warning comes when as many updates' worth of steps in a row were kept back."""


@dataclass
class _Watched:
    rows_per_update: int
    step: int = -1
    kept: Counter[str] = field(default_factory=Counter)
    warned: bool = False


class StarvationWatch:
    """Compares what stages keep back with what trainers get. Pure: calls in, one warning per behaviour out."""

    def __init__(self) -> None:
        self._trainers: dict[str, _Watched] = {}

    def add_trainer(self, behavior: str, rows_per_update: int) -> None:
        """Watch a trainer, which has started."""
        self._trainers[behavior] = _Watched(rows_per_update)

    def fed(self, behavior: str, step: int, done: bool) -> None:
        """Note the step that a trainer has reported; one that is done wants nothing more."""
        trainer = self._trainers[behavior]
        if step != trainer.step or done:
            trainer.step = step
            trainer.kept.clear()

    def kept_back(self, by: str, behavior: str, steps: int) -> None:
        """Note steps that a stage has received and not passed on (negative: it has passed on some after all)."""
        trainer = self._trainers.get(behavior)
        if trainer is None:
            return
        trainer.kept[by] += steps
        kept = trainer.kept.total()
        if kept >= PATIENCE_UPDATES * trainer.rows_per_update and not trainer.warned:
            trainer.warned = True
            log.warning(
                "The trainer of %s has got nothing since step %d, while stages before it have kept back %d steps (%s). "
                "It learns nothing, and the run does not end, until they pass something on; Ctrl-C ends it.",
                behavior,
                max(0, trainer.step),
                kept,
                ", ".join(f"{name}: {count}" for name, count in trainer.kept.most_common()),
            )
