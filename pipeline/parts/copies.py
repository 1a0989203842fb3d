"""Copies a run's checkpoints to another storage (`checkpoint_settings.copy_to`) while the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from headrace.pipeline.common.daemon_threads import DaemonThread
from headrace.pipeline.main.run_part import RunPart
from headrace.pipeline.run_folder.checkpoint import numbered_folders
from headrace.pipeline.run_folder.remote_copy import write_copy
from headrace.stages.errors import error_summary

log = logging.getLogger(__name__)


class CheckpointCopies(RunPart):
    """Copies complete checkpoints in a thread; of several that become complete during a copy, only the newest."""

    _copying: Future[None] | None = None
    _copied = -1
    _warned = False

    def checkpoint_ended(self) -> None:
        """Start a copy, unless one is in progress, which is followed by that of the newest checkpoint."""
        if self._copying is None or self._copying.done():
            self._copying = DaemonThread("copy of a checkpoint").submit(self._copy)

    def report(self) -> Mapping[str, Any]:
        """Wait until the last checkpoint is copied."""
        log.info("Copying the last checkpoint to %s.", self.run.plan.config.checkpoint_settings.copy_to)
        wait([] if self._copying is None else [self._copying])
        self._warned = False
        self._copy()
        return {}

    def _copy(self) -> None:
        folder = self.run.plan.folder
        try:
            while self._copied < (newest := max(numbered_folders(folder.checkpoints), default=-1)):
                write_copy(self.run.plan.config, folder.path)
                self._copied, self._warned = newest, False
        except Exception as error:  # each storage's package has its own errors; the next call tries again
            if not self._warned:
                log.warning("The newest checkpoint was not copied: %s.", error_summary(error))
            self._warned = True
