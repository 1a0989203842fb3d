"""The log, on the console and in the run's folder: ML-Agents' summary lines, hyperparameters, the line format.

The live table for terminals is in `progress`; log lines appear above the table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.common.global_state_guard import OURS, keeping_handler
from headrace.pipeline.common.output import EveryRecord, own_stream
from headrace.pipeline.reporting.statistics import PIPELINE, StatisticsWriter, Summary

log = logging.getLogger(__name__)

DETAIL = "detail"
"""Attribute that marks a log record as being only for the log file: `extra={DETAIL: True}`."""
PLAIN_FORMAT = "[%(levelname)s] %(message)s"
DEBUG_FORMAT = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s"

REWARD = "Environment/Cumulative Reward"
EPISODE_LENGTH = "Environment/Episode Length"
GROUP_REWARD = "Environment/Group Cumulative Reward"
ELO = "Self-play/ELO"
HELD_OUT = "Policy/Held-out Log Likelihood"
IS_TRAINING = "Is Training"


class ConsoleHandler(logging.Handler):
    """Writes log lines to a stream, by default to the current `sys.stdout`.

    `logging.StreamHandler` keeps writing to its original stream, which would overwrite a live display: the display
    replaces `sys.stdout` to keep other lines above itself.
    """

    def __init__(self, stream: TextIO | None = None, name: str = "The output") -> None:
        super().__init__()
        self._stream = stream
        self._called = name
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            stream = self._stream or own_stream("stdout")
            stream.write(self.format(record) + "\n")
            stream.flush()
        except OSError as error:
            if not self._failed:
                self._failed = True
                with suppress(OSError, AttributeError):  # the error may be impossible to report
                    own_stream("stderr").write(
                        f"[WARNING] {self._called} can't be written: {error.strerror}. Training continues.\n"
                    )
        except Exception:  # like every handler of the standard library: a log line never ends the program
            self.handleError(record)

    def close_stream(self) -> None:
        """Close the handler's stream; later lines are dropped."""
        self.close()
        if self._stream is not None:
            with suppress(OSError):  # either already reported, or about buffered data
                self._stream.close()


class LevelledLines(EveryRecord):
    """Prefixes each line of a warning or error with its level; other records are unchanged."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else text.replace("\n", f"\n[{record.levelname}] ")


def configure_logging(debug: bool = False, stream: TextIO | None = None, details: bool = True) -> ConsoleHandler:
    """Make only the loggers of Headrace's packages write lines.

    A second call overrides the first. For commands only: a program that calls `run()` configures logging itself.

    Args:
        debug: True to also write per-batch messages, each with its time and its location in the code.
        stream: stream to write to; standard output by default.
        details: True to also write records marked as details, which are meant for the log file.
    """
    handler = ConsoleHandler(stream)
    if not (details or debug):
        handler.addFilter(lambda record: not hasattr(record, DETAIL))
    handler.setFormatter(LevelledLines(DEBUG_FORMAT if debug else PLAIN_FORMAT, "%Y-%m-%d %H:%M:%S"))
    if logging.lastResort is not None:  # this handler writes other libraries' warnings
        logging.lastResort.setFormatter(LevelledLines(PLAIN_FORMAT))
    logger = logging.getLogger(OURS)
    for earlier in [old for old in logger.handlers if isinstance(old, ConsoleHandler)]:
        logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False  # a library's root handler would write every line again
    return handler


def summary_line(category: str, summaries: Mapping[str, Summary], step: int, elapsed: float) -> str:
    """Return ML-Agents' console line for one behaviour.

    Args:
        category: the behaviour's name.
        summaries: the period's summaries, keyed by name. `Environment/Cumulative Reward` is present if an episode
            ended, `Is Training` if the behaviour may not be training, `Self-play/ELO` if a rating was recorded. `bc`
            plays no episodes, so the likelihood of held-out data replaces the reward.
        step: nominal step of the summary.
        elapsed: seconds since the process started.
    """
    parts = [category, f"Step: {step}", f"Time Elapsed: {elapsed:.3f} s"]
    reward, group_reward = summaries.get(REWARD), summaries.get(GROUP_REWARD)
    if reward is None:
        held_out = summaries.get(HELD_OUT)
        parts.append(
            "No episode was completed since last summary"
            if held_out is None
            else f"Held-out Log Likelihood: {held_out.mean:.3f}"
        )
    else:
        parts.append(f"Mean Reward: {reward.mean:.3f}")
        # ML-Agents shows the group's reward instead of the spread.
        parts.append(
            f"Mean Group Reward: {group_reward.mean:.3f}" if group_reward else f"Std of Reward: {reward.std:.3f}"
        )
    training = summaries.get(IS_TRAINING)
    parts.append("Training" if training is None or training.last else "Not Training")
    if ELO in summaries:
        parts.append(f"ELO: {summaries[ELO].mean:.3f}")
    return ". ".join(parts) + "."


def hyperparameters_text(value: object, depth: int = 0) -> str:
    """Return settings as lines of tab, key, colon, tab and value; nested settings are indented."""
    if not isinstance(value, Mapping):
        return str(value)
    lines = (f"\t{'  ' * depth}{key}:\t{hyperparameters_text(inner, depth + 1)}" for key, inner in value.items())
    return ("\n" if depth else "") + "\n".join(lines)


class ConsoleWriter(StatisticsWriter):
    """A writer that logs a line for each behaviour's summary.

    Args:
        elapsed: returns the seconds since the process started.
    """

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Log a behaviour's summary line; the `Pipeline` category has no line."""
        if category != PIPELINE:
            log.info("%s", summary_line(category, summaries, step, self._elapsed()))

    def add_property(self, category: str, name: str, value: object) -> None:
        """Log a behaviour's hyperparameters as a block of lines."""
        if name == "hyperparameters":
            text = "Hyperparameters for behavior name %s:\n%s"
            log.info(text, category, hyperparameters_text(value), extra={DETAIL: True})


FILE = "run.log"
_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"


@contextmanager
def logged_to(folder: Path, append: bool) -> Iterator[None]:
    """Also write Headrace's log records to `run_logs/run.log` within this context; a disk error affects only the log.

    Args:
        folder: `results/<run-id>`.
        append: True to keep the lines from an earlier part of the run.
    """
    path = folder / "run_logs" / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a" if append else "w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        log.warning("%s can't be written: %s. Training continues without it.", path, error.strerror)
        yield
        return
    handler = ConsoleHandler(file, str(path))
    handler.setFormatter(LevelledLines(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger(OURS)
    try:
        with _heard_by(handler, logger):
            yield
    except (RunError, RunFailed) as error:  # the command prints this after the run
        handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, str(error), (), None))
        raise
    finally:
        handler.close_stream()


_files: list[logging.Handler] = []
"""Handlers for open log files; several runs may be active in different threads."""
_files_lock = threading.Lock()
_undoing = ExitStack()
"""Callbacks that restore the loggers' levels when the last log file closes."""


@contextmanager
def _heard_by(handler: logging.Handler, logger: logging.Logger) -> Iterator[None]:
    """Send runs' log records to a file, regardless of the log level that a Python caller has set."""
    with _files_lock:
        if not _files:
            _let_pass(logger, _undoing)
        _files.append(handler)
        logger.addHandler(handler)
    try:
        with keeping_handler(logger, handler):
            yield
    finally:
        with _files_lock:
            logger.removeHandler(handler)
            _files.remove(handler)
            if not _files:
                _undoing.close()


def _let_pass(logger: logging.Logger, undoing: ExitStack) -> None:
    """Lower a logger's level to INFO, without sending additional records to existing handlers."""
    wanted = logger.getEffectiveLevel()
    if wanted <= logging.INFO:
        return

    def as_before(record: logging.LogRecord) -> bool:
        if record.levelno >= wanted or not record.name.startswith(OURS):
            return True
        here: logging.Logger | None = logging.getLogger(record.name)
        while here is not None and here is not logger and not here.level:
            here = here.parent
        return here is not logger  # the caller has set a level for one of Headrace's loggers

    for handler in (*logger.handlers, *logging.getLogger().handlers):
        handler.addFilter(as_before)
        undoing.callback(handler.removeFilter, as_before)
    undoing.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.INFO)
