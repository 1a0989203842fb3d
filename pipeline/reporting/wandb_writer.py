"""Sends summaries to Weights & Biases."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.pipeline.reporting.statistics import HIDDEN, Summary
from headrace.pipeline.reporting.writers import tracked_id
from headrace.stages.errors import StageError

_INIT_S, _FINISH_S = 30.0, 60.0


class WandbWriter:
    """A `StatisticsWriter` for one W&B run, named after this run, with a section of charts for each behaviour.

    Statistics are named `<behaviour>/<statistic>`, with `<behaviour>/step` as the x axis. wandb writes and uploads in a
    separate process, so only the first and the last call wait for the network. A resumed run continues the same W&B
    run; if it repeats steps that are already logged, W&B shows both curves.

    Args:
        run_folder: `results/<run-id>`; wandb's files go to its `wandb/`.
        resume: True to continue this run's existing W&B run.
        project, entity, group, tags, notes: as for `wandb.init`.
        mode: `online`, `offline` (upload later with `wandb sync`) or `disabled`; defaults to the environment variable
            WANDB_MODE, or else to online.

    Raises:
        StageError: if the mode is online and no user is logged in.
    """

    def __init__(
        self,
        run_folder: Path,
        resume: bool = False,
        project: str = "headrace",
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        mode: str | None = None,
    ) -> None:
        import wandb

        self._wandb: Any = wandb
        mode_setting = {} if mode is None else {"mode": mode}
        settings = wandb.Settings(
            console="off", silent=True, init_timeout=_INIT_S, finish_timeout=_FINISH_S, disable_git=True, **mode_setting
        )
        effective = mode or wandb.setup().settings.mode
        if effective == "online" and not wandb.api.api_key:
            raise StageError(
                "not logged in to W&B, and a run can't prompt for it: use `wandb login`, the environment variable "
                "WANDB_API_KEY, or `with: {mode: offline}`"
            )
        name, _ = tracked_id(run_folder, "wandb", resume, lambda: secrets.token_hex(4))
        self._run: Any = wandb.init(
            dir=run_folder, id=name, name=run_folder.name, resume="allow", project=project, entity=entity, group=group,
            tags=list(tags), notes=notes, settings=settings,
        )  # fmt: skip
        self._defined: set[str] = set()

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Pass one summary to wandb's process."""
        x = f"{category}/step"
        if category not in self._defined:
            self._defined.add(category)
            self._run.define_metric(x, hidden=True)
            self._run.define_metric(f"{category}/*", step_metric=x)
        curves = {name: summary for name, summary in summaries.items() if name not in HIDDEN}
        values: dict[str, object] = {f"{category}/{name}": summary.value for name, summary in curves.items()}
        for name, summary in curves.items():
            if summary.values:
                values[f"{category}/{name}_hist"] = self._wandb.Histogram(summary.values)
        self._run.log({**values, x: step})

    def add_property(self, category: str, name: str, value: object) -> None:
        """Add the hyperparameters to the W&B run's config."""
        self._run.config.update({category: {name: value}}, allow_val_change=True)

    def close(self) -> None:
        """Upload the remaining data, for at most a minute; `wandb sync` uploads the rest."""
        self._run.finish()
