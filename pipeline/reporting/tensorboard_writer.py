"""Summaries as TensorBoard events, with ML-Agents' folders and tags.

This module uses TensorBoard's record format and message types, but writes the files itself. TensorBoard's
`EventFileWriter` imports TensorFlow if installed, which costs seconds and hundreds of megabytes, and delays writes in a
thread per file, while this writer flushes immediately.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.pipeline.reporting.console import hyperparameters_text
from headrace.pipeline.reporting.history import MARKS
from headrace.pipeline.reporting.statistics import HIDDEN, Summary
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.held_files import once_released

HISTOGRAM_BINS = 30

log = logging.getLogger(__name__)

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
            for old in run_folder.glob("*/events.out.tfevents.*"):
                with contextlib.suppress(OSError):  # if a file can't be deleted, the curves of two runs mix
                    once_released(old.unlink)

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write one summary and flush it."""
        file = self._file(category)
        if self._resume and not file.resumed:
            file.add_restart(step)
        for name, summary in summaries.items():
            if name not in HIDDEN:
                file.add_scalar(name, summary.value, step)
                if summary.values:
                    file.add_histogram(f"{name}_hist", summary, step)
        file.flush()

    def add_property(self, category: str, name: str, value: object) -> None:
        """Write the hyperparameters as text, under ML-Agents' tag."""
        if name == "hyperparameters":
            file = self._file(category)
            file.add_text("Hyperparameters/text_summary", hyperparameters_text(value))
            file.flush()

    def mark(self, category: str, step: int, kind: str, text: str) -> None:
        """Write a mark as text under `Marks/<kind>`, where the live page can read it."""
        file = self._file(category)
        file.add_text(f"{MARKS}{kind}", text, step)
        file.flush()

    def rewind(self, category: str, step: int) -> None:
        """Make TensorBoard ignore events beyond the step at which the run continues."""
        file = self._file(category)
        file.add_restart(step + 1)
        file.flush()

    def close(self) -> None:
        """Close the files; a later write opens new ones."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _file(self, category: str) -> _EventFile:
        file = self._files.get(category)
        if file is not None and not file.path.exists():
            log.warning("%s was removed while it was being written; its statistics continue in a new file.", file.path)
            del self._files[category]
            file.close()
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
        self._start = event_pb2.SessionLog.START
        self._proto: Any = summary_pb2
        self.resumed = False
        """True once the file marks the step at which a resumed run continues."""
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names, which begin with the time.
        stamp = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_counter)}"
        self.path = folder / f"events.out.tfevents.{stamp}"
        self._file = self.path.open("xb", buffering=0)
        self._end = 0
        self._waiting = io.BytesIO()
        self._records: Any = RecordWriter(self._waiting)
        self._add(file_version="brain.Event:2")
        try:
            self.flush()
        except OSError:
            self.close()
            self.path.unlink()  # the next attempt opens a new file
            raise

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._add_value(step, tag=tag, simple_value=value)

    def add_histogram(self, tag: str, summary: Summary, step: int) -> None:
        """Write the distribution, with the sample's counts scaled up to the total number of values."""
        values = np.asarray(summary.values)
        counts, edges = np.histogram(values, bins=HISTOGRAM_BINS)
        histogram = self._proto.HistogramProto(
            min=values.min(),
            max=values.max(),
            num=summary.count,
            sum=summary.sum,
            sum_squares=summary.count * (summary.std**2 + summary.mean**2),
            bucket_limit=edges[1:].tolist(),
            bucket=(counts * (summary.count / len(values))).tolist(),
        )
        self._add_value(step, tag=tag, histo=histogram)

    def add_text(self, tag: str, text: str, step: int = 0) -> None:
        from tensorboard.compat.proto import tensor_pb2, types_pb2

        metadata = self._proto.SummaryMetadata(plugin_data={"plugin_name": "text"})
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode(errors="backslashreplace")])
        self._add_value(step, tag=tag, metadata=metadata, tensor=tensor)

    def add_restart(self, step: int) -> None:
        """Make TensorBoard ignore earlier files' events from this step on."""
        self._add(step=step, session_log={"status": self._start})
        self.resumed = True

    def flush(self) -> None:
        """Write the buffered records; if that fails, drop them, so the file ends with a complete record."""
        data = memoryview(self._waiting.getvalue())
        self._waiting.seek(0)
        self._waiting.truncate()
        try:
            rest = data
            while rest:  # a disk that is filling up may accept part of the data
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.seek(self._end)
            with contextlib.suppress(OSError):  # the next write overwrites the incomplete record
                self._file.truncate()
            raise
        self._end += len(data)

    def close(self) -> None:
        self._file.close()

    def _add_value(self, step: int, **value: object) -> None:
        self._add(step=step, summary=self._proto.Summary(value=[self._proto.Summary.Value(**value)]))

    def _add(self, **content: object) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
