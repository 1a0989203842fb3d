"""Copies of a run's newest checkpoint in a storage that fsspec can reach, such as S3 (`checkpoint_settings.copy_to`).

The copy is one file, `<copy_to>/<run-id>.zip`, as `RunResult.save` writes it; until a new one is complete, its name
ends in `.partial`.
"""

from __future__ import annotations

import logging
import tempfile
import zipfile
from concurrent.futures import Future, wait
from typing import Any

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.run_folder.carrying import LISTING, carry, unpack
from headrace.pipeline.run_folder.checkpoint import numbered_folders
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.queues.disks import Disks, answered, current_disks, start_in_thread
from headrace.queues.files import REAL
from headrace.stages.errors import error_summary
from headrace.startup_context import absolute

log = logging.getLogger(__name__)

_PARTIAL = ".partial"


def prepare_copy(config: RunConfig, fetches: bool = True) -> bool:
    """Check that a run can be copied. If the run to resume has a copy but no folder, return True.

    Args:
        config: the run's configuration.
        fetches: True to make that folder from the copy.

    Raises:
        RunError: if the storage can't be used, or has a newer copy that the run would replace.
    """
    settings = config.checkpoint_settings
    if settings.copy_to is None or settings.inference:
        return False
    results, wrong = absolute(settings.results_dir), ""
    folder, url = results / settings.run_id, f"{settings.copy_to}/{settings.run_id}.zip"
    try:
        storage, path, copied = answered(url, _try_storage, url)
        newest = max(numbered_folders(folder / "checkpoints"), default=-1)
        lacks_folder = settings.resume and copied >= 0 and not folder.exists()
        if lacks_folder and fetches:
            log.info("Fetching checkpoint %d of %s from %s.", copied, settings.run_id, settings.copy_to)
            REAL.make_folder(results)
            with tempfile.TemporaryDirectory(prefix=".fetched-", dir=results) as temporary:
                storage.get_file(path, f"{temporary}/copy.zip")
                unpack(f"{temporary}/copy.zip", results, settings.run_id)
        elif copied > newest and not lacks_folder and (settings.resume or not settings.force):
            wrong = (
                f"has checkpoint {copied}, which is newer than those in {folder}. To continue from the "
                "copy, move that folder away and use --resume; otherwise remove the copy, or use a different --run-id"
            )
    except Exception as error:  # each storage's package has its own errors
        wrong = error_summary(error)
        if isinstance(error, ImportError):
            wrong += '; run `pip install "headrace[storage]"`, and install the package for this storage'
    if wrong:
        message = f"checkpoint_settings.copy_to: {url}: {wrong}"
        raise RunError(config.in_place(("checkpoint_settings", "copy_to"), message))
    return lacks_folder


def _find_copy(url: str) -> tuple[Any, str]:
    """Return fsspec's file system, and the path of the run's copy in it."""
    import fsspec

    storage, path = fsspec.url_to_fs(url)
    storage.invalidate_cache()  # other machines write there, too
    return storage, path


def _try_storage(url: str) -> tuple[Any, str, int]:
    """Find a copy, check that it can be written, and return its checkpoint's number, too; -1 without a copy."""
    storage, path = _find_copy(url)
    storage.makedirs(path.rpartition("/")[0], exist_ok=True)
    storage.pipe_file(path + _PARTIAL, b"")
    storage.rm_file(path + _PARTIAL)
    copied = -1
    if storage.exists(path):
        with storage.open(path) as file, zipfile.ZipFile(file) as archive:
            archive.getinfo(LISTING)  # a damaged file may look like one of the archives that are in it
            copied = max(int(name.split("/")[1]) for name in archive.namelist() if name.startswith("checkpoints/"))
    return storage, path, copied


class CheckpointCopier:
    """Copies complete checkpoints in a thread; of several that become complete during a copy, only the newest.

    Args:
        config: the run's configuration; without `copy_to`, nothing is copied.
        folder: the run's folder.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        self._url = f"{config.checkpoint_settings.copy_to}/{config.checkpoint_settings.run_id}.zip"
        self._copying: Future[None] | None = None
        self._copied = -1
        self._warned = False

    def begin(self) -> None:
        """Start a copy, unless one is in progress, which is followed by that of the newest checkpoint."""
        if self._config.checkpoint_settings.copy_to is not None and (self._copying is None or self._copying.done()):
            self._copying, _ = start_in_thread("copy of a checkpoint", self._copy)

    def finish(self) -> None:
        """Wait until the last checkpoint is copied, for `grace_s` at most, or not at all if the run's disk hangs."""
        if self._copying is None:
            return
        settings, limit_s = self._config.checkpoint_settings, self._config.pipeline.supervision.grace_s
        limit_s = 0.0 if current_disks().unanswered() else limit_s
        log.info("Copying the last checkpoint to %s.", settings.copy_to)
        self._warned = False
        wait([self._copying], limit_s / 2)
        self.begin()  # the last checkpoint may have become complete after the last look
        if not wait([self._copying], limit_s / 2).done:
            text = "The last checkpoint is not copied to %s after %g s; it is in the run's folder alone."
            log.warning(text, settings.copy_to, limit_s)

    def _copy(self) -> None:
        try:
            while self._copied < (newest := max(numbered_folders(self._folder.checkpoints), default=-1)):
                packed = carry(self._folder.path, self._folder.run_logs / "copy.zip")  # soon: old files are removed
                storage, path = _find_copy(self._url)
                with Disks(named_s=self._config.pipeline.supervision.grace_s / 2).used():
                    answered(self._url, storage.put_file, str(packed), path + _PARTIAL)
                storage.mv(path + _PARTIAL, path)
                REAL.remove(packed)
                self._copied, self._warned = newest, False
        except Exception as error:  # each storage's package has its own errors; the next call tries again
            if not self._warned:
                log.warning("The newest checkpoint was not copied: %s.", error_summary(error))
            self._warned = True
