"""Sends summaries to experiment trackers: Weights & Biases, MLflow, and the study of `--tune`."""

from __future__ import annotations

import logging
import os
import queue
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.pipeline.common.output import own_stream
from headrace.pipeline.reporting.statistics import HIDDEN, Summary
from headrace.pipeline.reporting.writers import tracked_id
from headrace.queues.disks import start_in_thread
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


log = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Maximum number of waiting jobs."""


class BackgroundJobs:
    """Jobs of a statistics writer, which a background thread runs in order.

    The thread stops at the first job that raises an error. Later calls to `put` raise the same error.

    Args:
        name: the writer's name in messages.
        patience_s: seconds that `close` waits for remaining jobs.
    """

    def __init__(self, name: str, patience_s: float = 30.0) -> None:
        self._name = name
        self._patience_s = patience_s
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._end, _ = start_in_thread(name, self._work)

    def put(self, job: Callable[[], None]) -> None:
        """Add a job.

        Raises:
            StageError: if too many jobs are waiting.
            BaseException: the error of an earlier job.
        """
        if self._end.done():
            self._end.result()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise StageError(f"{self._name} is too slow: {MOST_WAITING} summaries are waiting for it") from None

    def close(self) -> None:
        """Wait up to `patience_s` for the remaining jobs, and log how many were not done.

        Raises:
            BaseException: the error of a job.
        """
        with suppress(queue.Full):
            self._jobs.put(None, timeout=0 if self._end.done() else self._patience_s)
        if not wait([self._end], self._patience_s).done:
            text = "%s did not accept the last %d summaries within %.0f s, so it does not contain these summaries."
            log.warning(text, self._name, self._jobs.qsize(), self._patience_s)
            return
        self._end.result()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
_MOST_CHARACTERS = 500
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Retry limits: with MLflow's defaults, a run would wait minutes for an unreachable server."""


class MlflowWriter:
    """A `StatisticsWriter` for one MLflow run, named after this run, with the metrics `<behaviour>/<statistic>`.

    A thread talks to the server, so a slow server delays nothing. A resumed run continues the same MLflow run; if it
    repeats steps that are already logged, MLflow keeps both points.

    Args:
        run_folder: `results/<run-id>`.
        resume: True to continue this run's existing MLflow run.
        experiment: name of the MLflow experiment, which is created if missing.
        tracking_uri: the server or database; defaults to the environment variable MLFLOW_TRACKING_URI, or else to the
            file `mlflow.db` next to the run's folder.
        tags: additional tags for the MLflow run.
    """

    def __init__(
        self,
        run_folder: Path,
        resume: bool = False,
        experiment: str = "headrace",
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        results = run_folder.resolve().parent
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client: Any = MlflowClient(tracking_uri=uri or f"sqlite:///{results / 'mlflow.db'}")
        tracked = self._client.get_experiment_by_name(experiment)
        where = None if uri else (results / "mlruns").as_uri()
        number = (
            tracked.experiment_id if tracked else self._client.create_experiment(experiment, artifact_location=where)
        )

        def begin() -> str:
            run_id: str = self._client.create_run(number, run_name=run_folder.name, tags=dict(tags or {})).info.run_id
            return run_id

        self._run, self._resumed = tracked_id(run_folder, "mlflow", resume, begin)
        if self._resumed:
            self._client.update_run(self._run, status="RUNNING")
        self._jobs = BackgroundJobs("MLflow")
        self._closed = False

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Queue one summary for the background thread."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(_name(f"{category}/{name}"), float(summary.value), now_ms, step)
            for name, summary in summaries.items()
            if name not in HIDDEN
        ]
        self._jobs.put(lambda: self._client.log_batch(self._run, metrics=metrics))

    def add_property(self, category: str, name: str, value: object) -> None:
        """Queue the hyperparameters for the background thread, as params, unless a resumed MLflow run has them."""
        if self._resumed:
            return
        from mlflow.entities import Param

        params = [Param(_name(key), text[:_MOST_CHARACTERS]) for key, text in _flat(f"{category}/{name}", value)]
        for at in range(0, len(params), 100):
            part = params[at : at + 100]
            self._jobs.put(lambda part=part: self._client.log_batch(self._run, params=part))  # type: ignore[misc]

    def close(self) -> None:
        """Write the remaining summaries and end the MLflow run."""
        if not self._closed:
            self._closed = True
            self._jobs.put(lambda: self._client.set_terminated(self._run))
            self._jobs.close()


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


def _flat(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for inner, part in value.items():
            yield from _flat(f"{key}/{inner}", part)
    else:
        yield key, str(value)


class TrialWriter:
    """A `StatisticsWriter` that prints one behaviour's metric, in a run that `--tune` has started.

    Args:
        metric: name of the statistic.
        behavior: the behaviour; None for any.
    """

    PREFIX = "headrace-trial "

    def __init__(self, metric: str, behavior: str | None) -> None:
        self._metric, self._behavior = metric, behavior

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Print the metric, if the summary has it, in the same form for any `--log-format`."""
        if self._metric in summaries and category == (self._behavior or category):
            print(f"{self.PREFIX}{summaries[self._metric].value!r}", file=own_stream("stdout"), flush=True)

    def add_property(self, category: str, name: str, value: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
