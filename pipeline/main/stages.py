"""What the stages in main's own process are given: context, hooks, and their parts of checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.common.graph import part_name
from pipeline.common.seeds import derive_seed
from pipeline.control.messages import CreditsReturned, PartFailed, PartSaved
from pipeline.main.run_plan import RunPlan
from pipeline.reporting.statistics import StatisticsCollector
from pipeline.run_folder.checkpoint import write_part
from stages.loop import StageHooks
from stages.stage import StageContext

MAIN = "main"


class MainStages:
    """Main as a host of stages.

    Args:
        plan: the run.
        statistics: where stages report to.
        on_credits: told of credits that a stage ended.
        on_part: told of parts that were written, or could not be.
    """

    def __init__(
        self,
        plan: RunPlan,
        statistics: StatisticsCollector,
        on_credits: Callable[[CreditsReturned], None],
        on_part: Callable[[PartSaved | PartFailed], None],
    ) -> None:
        self._plan = plan
        self._statistics = statistics
        self._on_credits = on_credits
        self._on_part = on_part
        self._returned: dict[tuple[str, str, int], int] = {}

    def context(self, stage: str) -> StageContext:
        """The context of a stage."""
        return StageContext(
            name=stage,
            seed=derive_seed(self._plan.seed, stage),
            run_folder=self._plan.folder.path,
            statistics=self._statistics,
            log=logging.getLogger(f"stages.{stage}"),
        )

    def hooks(self, stage: str) -> StageHooks:
        """What the loop of a stage reports to."""

        def return_credits(behavior: str, source: int, amount: int) -> None:
            key = (part_name(stage, MAIN), behavior, source)
            self._returned[key] = self._returned.get(key, 0) + amount
            self._on_credits(CreditsReturned(*key, self._returned[key]))

        return StageHooks(return_credits, self.save_part)

    def save_part(self, stage: str, number: int, state: Mapping[str, Any] | None) -> None:
        """Write a stage's part of a checkpoint."""
        name = part_name(stage, MAIN)
        try:
            self._on_part(write_part(self._plan.folder.checkpoints, number, name, state))
        except OSError as error:
            self._on_part(PartFailed(number, name, str(error)))

    def saved_state(self, stage: str) -> Mapping[str, Any] | None:
        """What a stage goes on from; None in a fresh run."""
        if self._plan.resumed is None:
            return None
        state: Mapping[str, Any] | None = self._plan.resumed.read(part_name(stage, MAIN))
        return state
