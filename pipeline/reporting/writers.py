"""A run's statistics writers: the built-in ones, and those listed in the YAML. A writer's error can't end the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.config.pipeline import STATISTICS_WRITERS
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.reporting.statistics import StatisticsWriter, Summary
from headrace.pipeline.reporting.tensorboard_writer import TensorboardWriter
from headrace.pipeline.run_folder.atomic_files import FileGuard, write_atomic
from headrace.stages.errors import LoadError, blaming, describe_error, is_failure
from headrace.stages.loading import check_arguments, construct, find_class

log = logging.getLogger(__name__)

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
        writer: the writer.
        name: the writer's name in messages.
        patient: True to keep calling the writer after disk errors, because the disk may have space again later.
    """

    def __init__(self, writer: StatisticsWriter, name: str, patient: bool = False) -> None:
        self._writer = writer
        self._name = name
        self._broken = False
        self._files = FileGuard(log) if patient else None

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write a summary."""
        self._call("write", lambda: self._writer.write(category, summaries, step))

    def add_property(self, category: str, name: str, value: object) -> None:
        """Write a property."""
        self._call("add_property", lambda: self._writer.add_property(category, name, value))

    def rewind(self, category: str, step: int) -> None:
        """Rewind the writer to an earlier step, if it supports that."""
        self._call_if_there("rewind", category, step)

    def mark(self, category: str, step: int, kind: str, text: str) -> None:
        """Write a mark, if the writer supports marks."""
        self._call_if_there("mark", category, step, kind, text)

    def close(self) -> None:
        """Close the writer, even if it raised earlier."""
        try:
            with self._guard("anything not written yet is lost"):
                self._writer.close()
        except BaseException as error:
            if not is_failure(error):
                raise
            log.error("Statistics writer %s raised in close: %s", self._name, describe_error(error))

    def _guard(self, lost: str) -> AbstractContextManager[object]:
        return nullcontext() if self._files is None else self._files.writing(self._name, lost)

    def _call_if_there(self, method: str, *arguments: object) -> None:
        call = getattr(self._writer, method, None)
        if call is not None:
            self._call(method, lambda: call(*arguments))

    def _call(self, method: str, call: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            with self._guard("its statistics are lost"):
                call()
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
    if resume and kept.is_file() and (known := kept.read_text(encoding="utf-8").strip()):
        return known, True
    new = make()
    write_atomic(kept, f"{new}\n".encode())
    return new, False
