"""A run's statistics writers: the built-in ones, and those listed in the YAML. A writer's error can't end the run."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import RunConfig
from headrace.config.pipeline import STATISTICS_WRITERS
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.reporting.console import hyperparameters_text
from headrace.pipeline.reporting.history import MARKS
from headrace.pipeline.reporting.statistics import HIDDEN, StatisticsWriter, Summary
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.disks import answered
from headrace.queues.files import REAL, FileGuard, append, matching, write_atomic
from headrace.stages.errors import LoadError, blaming, describe_error, is_failure
from headrace.stages.loading import check_arguments, construct, find_class

log = logging.getLogger(__name__)


HISTOGRAM_BINS = 30


_counter = itertools.count()


class TensorboardWriter:
    """A `StatisticsWriter` that writes one event file per category, in `<run folder>/<category>`.

    A statistic's name is its tag, and its summary's value is a scalar at the summary's step. A histogram is also
    written as `<name>_hist`. Everything is passed to the operating system when `write` returns.

    Args:
        run_folder: `results/<run-id>`.
        resume: True to keep existing event files and mark the step at which the resumed run starts writing. False to
            delete the files, because the curves of two runs would mix.
    """

    def __init__(self, run_folder: Path, resume: bool) -> None:
        self._run_folder = run_folder
        self._resume = resume
        self._files: dict[str, _EventFile] = {}
        if not resume:
            for old in matching(run_folder, "*/events.out.tfevents.*"):
                with contextlib.suppress(OSError):  # if a file can't be deleted, the curves of two runs mix
                    REAL.remove(old)

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write one summary and flush it."""
        file = self._file(category)
        if self._resume and not file.resumed:
            file.add_restart(step)
        file.add_summaries({name: summary for name, summary in summaries.items() if name not in HIDDEN}, step)

    def add_property(self, category: str, name: str, value: object) -> None:
        """Write the hyperparameters as text, under ML-Agents' tag."""
        if name == "hyperparameters":
            self._file(category).add_text("Hyperparameters/text_summary", hyperparameters_text(value))

    def mark(self, category: str, step: int, kind: str, text: str) -> None:
        """Write a mark as text under `Marks/<kind>`, where the live page can read it."""
        self._file(category).add_text(f"{MARKS}{kind}", text, step)

    def rewind(self, category: str, step: int) -> None:
        """Make TensorBoard ignore events beyond the step at which the run continues."""
        self._file(category).add_restart(step + 1)

    def close(self) -> None:
        """Do nothing: each write is complete when it returns."""

    def _file(self, category: str) -> _EventFile:
        file = self._files.get(category)
        if file is not None and not answered(file.path, file.path.exists):
            log.warning("%s was removed while it was being written; its statistics continue in a new file.", file.path)
            del self._files[category]
        if category not in self._files:
            self._files[category] = _EventFile(behavior_folder(self._run_folder, category))
        return self._files[category]


class _EventFile:
    """One event file: a sequence of `Event` messages."""

    def __init__(self, folder: Path) -> None:
        # Importing TensorBoard takes a third of a second, too long for validating a config or printing help.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2.Event
        self._writer: Any = RecordWriter
        self._start = event_pb2.SessionLog.START
        self._proto: Any = summary_pb2
        self.resumed = False
        """True once the file marks the step at which a resumed run continues."""
        REAL.make_folder(folder)
        # TensorBoard reads a folder's files in the order of their names, which begin with the time.
        stamp = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_counter):06d}"
        self.path = folder / f"events.out.tfevents.{stamp}"
        try:
            self._add(file_version="brain.Event:2")
        except OSError:
            REAL.remove(self.path)  # the next attempt begins a new file
            raise

    def add_summaries(self, summaries: Mapping[str, Summary], step: int) -> None:
        """Add an event with the scalars and histograms of all summaries."""
        make, values = self._proto.Summary.Value, []
        for name, summary in summaries.items():
            values.append(make(tag=name, simple_value=summary.value))
            if not summary.values:
                continue
            sample = np.asarray(summary.values)
            counts, edges = np.histogram(sample, bins=HISTOGRAM_BINS)
            distribution = self._proto.HistogramProto(
                min=sample.min(),
                max=sample.max(),
                num=summary.count,
                sum=summary.sum,
                sum_squares=summary.count * (summary.std**2 + summary.mean**2),
                bucket_limit=edges[1:].tolist(),
                bucket=(counts * (summary.count / len(sample))).tolist(),  # scaled up to the number of all values
            )
            values.append(make(tag=f"{name}_hist", histo=distribution))
        self._add(step=step, summary=self._proto.Summary(value=values))

    def add_text(self, tag: str, text: str, step: int = 0) -> None:
        from tensorboard.compat.proto import tensor_pb2, types_pb2

        metadata = self._proto.SummaryMetadata(plugin_data={"plugin_name": "text"})
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode(errors="backslashreplace")])
        value = self._proto.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._add(step=step, summary=self._proto.Summary(value=[value]))

    def add_restart(self, step: int) -> None:
        """Make TensorBoard ignore earlier files' events from this step on."""
        self._add(step=step, session_log={"status": self._start})
        self.resumed = True

    def _add(self, **content: object) -> None:
        """Append an event as one record; if that fails, the file ends with the record before it."""
        record = io.BytesIO()
        self._writer(record).write(self._event(wall_time=time.time(), **content).SerializeToString())
        append(self.path, record.getvalue())


_METHODS = ("write", "add_property", "close")


def open_writers(config: RunConfig, run_folder: Path, resume: bool) -> list[StatisticsWriter]:
    """Create a training run's writers: for TensorBoard, and those listed in the YAML.

    Args:
        config: the run's configuration.
        run_folder: `results/<run-id>`.
        resume: True to keep existing event files.

    Raises:
        RunError: as for `make_writers`.
    """
    tensorboard = GuardedWriter(
        TensorboardWriter(run_folder, resume), f"{run_folder}/*/events.out.tfevents.*", patient=True
    )
    return [tensorboard, *make_writers(config, run_folder, resume)]


def make_writers(config: RunConfig, run_folder: Path, resume: bool = False) -> list[StatisticsWriter]:
    """Create the writers listed in the YAML.

    Args:
        config: the run's configuration.
        run_folder: `results/<run-id>`, for writers with that parameter.
        resume: True if the run resumes from a checkpoint, for writers with that parameter.

    Raises:
        RunError: if a writer can't be imported, is not a writer, does not accept its arguments or raises.
    """
    writers: list[StatisticsWriter] = []
    for index, settings in enumerate(config.pipeline.statistics_writers):
        try:
            writer_class, arguments = _find(config, index, run_folder, resume)
            writer = construct(_where(index), settings.use, writer_class, arguments)
        except LoadError as error:
            raise RunError(str(error)) from error
        kind = STATISTICS_WRITERS.get(settings.use)
        writers.append(GuardedWriter(writer, settings.use, patient=kind is not None and kind.patient))
    return writers


def check_writers(config: RunConfig) -> list[LoadError]:
    """Return the mistakes in the listed writers that can be found without creating the writers."""
    mistakes = []
    for index in range(len(config.pipeline.statistics_writers)):
        try:
            _find(config, index, Path(), resume=False)
        except LoadError as error:
            mistakes.append(error)
    return mistakes


class GuardedWriter:
    """Wraps a writer, so its errors don't end the run: after an error, the writer gets no more calls.

    Args:
        writer: the writer, which may lack the optional methods of a `StatisticsWriter`.
        name: the writer's name in messages.
        patient: True to keep calling the writer after disk errors, because the disk may have space again later.
    """

    def __init__(self, writer: Any, name: str, patient: bool = False) -> None:
        self._writer = writer
        self._name = name
        self._broken = False
        self._files = FileGuard(log) if patient else None

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write a summary."""
        self._call("write", category, summaries, step)

    def add_property(self, category: str, name: str, value: object) -> None:
        """Write a property."""
        self._call("add_property", category, name, value)

    def rewind(self, category: str, step: int) -> None:
        """Rewind the writer to an earlier step, if it supports that."""
        self._call("rewind", category, step)

    def mark(self, category: str, step: int, kind: str, text: str) -> None:
        """Write a mark, if the writer supports marks."""
        self._call("mark", category, step, kind, text)

    def close(self) -> None:
        """Close the writer, even if it raised earlier."""
        self._broken = False
        self._call("close")

    def _call(self, method: str, *arguments: object) -> None:
        call = getattr(self._writer, method, None)
        if self._broken or call is None:
            return
        try:
            with nullcontext() if self._files is None else self._files.writing(self._name, "its statistics are lost"):
                call(*arguments)
        except BaseException as error:
            if not is_failure(error):
                raise
            self._broken = True
            log.error(
                "Statistics writer %s raised in %s: %s. It receives no more statistics; training continues.",
                self._name,
                method,
                describe_error(error),
            )
            log.debug("where it was raised:", exc_info=True)


def _where(index: int) -> str:
    return f"pipeline.statistics_writers.{index}"


def _find(config: RunConfig, index: int, run_folder: Path, resume: bool) -> tuple[type[Any], dict[str, Any]]:
    settings = config.pipeline.statistics_writers[index]
    where = _where(index)
    key = ("pipeline", "statistics_writers", index)
    with blaming(*key, "use"):
        writer_class = _find_named(where, settings.use) or find_class(where, settings.use, config.source_folder)
        missing = [name for name in _METHODS if not callable(getattr(writer_class, name, None))]
        if missing:
            raise LoadError(
                f"{where}: {settings.use} is not a statistics writer: it has no {', '.join(missing)}; "
                "see headrace.StatisticsWriter"
            )
    with blaming(*key, "with"):
        return writer_class, check_arguments(
            where, settings.use, writer_class, settings.with_, {"run_folder": run_folder, "resume": resume}
        )


def _find_named(where: str, name: str) -> type[Any] | None:
    """Return the class of a built-in writer, importing its module; None for any other name."""
    kind = STATISTICS_WRITERS.get(name)
    if kind is None:
        return None
    missing = [package for package in kind.packages if find_spec(package) is None]
    if missing:
        raise LoadError(f'{where}: {name!r} needs packages that are missing: `pip install "headrace[{name}]"`')
    return find_class(where, kind.made_by, None)


def tracked_id(run_folder: Path, service: str, resume: bool, make: Callable[[], str]) -> tuple[str, bool]:
    """Return a run's id at a tracking service, and True if the run already had that id.

    Args:
        run_folder: `results/<run-id>`, whose `<service>_run_id.txt` contains the id.
        service: the service's name.
        resume: True to use the stored id, if there is one.
        make: returns a new id.
    """
    kept = run_folder / f"{service}_run_id.txt"
    if resume and kept.is_file() and (stored := kept.read_text(encoding="utf-8").strip()):
        return stored, True
    new = make()
    write_atomic(kept, f"{new}\n".encode())
    return new, False
