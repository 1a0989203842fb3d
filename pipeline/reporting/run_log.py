"""The log of a run in its folder, `run_logs/run.log`: every line of the console, and the details that it leaves out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.reporting.console import OURS, ConsoleHandler, LevelledLines

FILE = "run.log"
_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"

log = logging.getLogger(__name__)


@contextmanager
def logged_to(folder: Path, append: bool) -> Iterator[None]:
    """Write what our loggers pass on within into `run_logs/run.log`; a disk that refuses costs the log alone.

    Args:
        folder: `results/<run-id>`.
        append: keep what an earlier part of the run has written.
    """
    path = folder / "run_logs" / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a" if append else "w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        log.warning("%s can't be written: %s. Training goes on without it.", path, error.strerror)
        yield
        return
    handler = ConsoleHandler(file, str(path))
    handler.setFormatter(LevelledLines(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger(OURS)
    logger.addHandler(handler)
    try:
        yield
    except (RunError, RunFailed) as error:  # which the command prints after the run
        handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, str(error), (), None))
        raise
    finally:
        logger.removeHandler(handler)
        handler.close_stream()
