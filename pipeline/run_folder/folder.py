"""A run's folder, `results/<run-id>/`, in ML-Agents' layout with two folders added.

    configuration.yaml            the effective options, written when the run starts or is resumed
    <Behavior>/                   exports (<Behavior>-<step>.onnx and .pt, checkpoint.pt), TensorBoard events
    <Behavior>.onnx               the last export
    Pipeline/                     TensorBoard events of queues, stages and hosts
    run_logs/training_status.json steps, ratings, lessons and the list of checkpoints, for people and tools
    run_logs/run.log              the run's log, including each behaviour's settings
    run_logs/Player-<n>.log       logs of Unity executables
    curves.png                    reward, rating and losses over the steps
    checkpoints/                  what `--resume` reads
    streams/                      recordings
    .lock                         names the process that is running the run
    .lock.guard                   the file that this process keeps locked

`RunFolder.create` decides whether a run may use its folder: as a new run, a resumed run or, with `force`, after
archiving the old one.
"""

from __future__ import annotations

import errno
import json
import logging
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from headrace.config.errors import suggest
from headrace.config.paths import file_name
from headrace.pipeline.common.errors import CommandError, RunFolderError
from headrace.pipeline.run_folder.lock import GUARD, LOCK, LOST, RunLock, lock_folder
from headrace.pipeline.run_folder.names import (
    CONFIGURATION,
    behavior_folder,
    check_behavior_name,
    check_length,
    check_run_id,
)
from headrace.pipeline.run_folder.training_status import TrainingStatus
from headrace.queues.disks import answered
from headrace.queues.files import REAL, FileOperations, clean_temporary, free_name, matching, read_file, write_atomic
from headrace.startup_context import absolute, shown

log = logging.getLogger(__name__)


def archive(path: Path, files: FileOperations) -> None:
    """Rename a run's folder to the first free `<run-id>-archived-<n>`; raise an error if the run is in progress."""
    guard = lock_folder(path)
    try:
        if sys.platform == "win32":
            guard.release()  # on Windows, an open file prevents renaming its folder
        number = 1
        while (aside := path.with_name(f"{path.name}-archived-{number}")).exists():
            number += 1
        files.replace(path, aside)
    finally:
        guard.release()
    files.sync_folder(path.parent)
    files.remove(aside / LOCK)  # left behind by a killed process


def read_configuration(run_folder: Path) -> dict[str, Any]:
    """Return the content of a run's `configuration.yaml`; empty if the file can't be read."""
    try:
        plain = yaml.safe_load(read_file(run_folder / CONFIGURATION).decode(errors="replace"))
    except (OSError, yaml.YAMLError):
        return {}
    return plain if isinstance(plain, dict) else {}


@dataclass
class RunFolder:
    """The folder of a run in this process. Closing this object lets other processes use the folder."""

    path: Path
    files: FileOperations = REAL
    _lock: RunLock | None = field(default=None, repr=False)
    _resumed: bool = False
    _behaviors: dict[str, str] = field(default_factory=dict, repr=False)
    """Behaviours, keyed by the lower-case names of their folders."""
    _configuration: str = ""
    """The text of `configuration.yaml`."""
    waits: bool = False
    """True until a resumed run has loaded its checkpoint; until then, no file in the folder is overwritten. Also True
    if the folder is lost and nothing can be written."""
    rescued_as: str = ""
    """Command-line options that name the rescue folder; empty unless the original folder was lost."""

    @classmethod
    def create(
        cls,
        results_dir: str | Path,
        run_id: str,
        *,
        resume: bool = False,
        force: bool = False,
        waits: bool = False,
        configuration: str = "",
        files: FileOperations = REAL,
    ) -> RunFolder:
        """Create or open a run's folder, lock it, and write `configuration.yaml`.

        Args:
            results_dir: the folder of all runs; created if missing.
            run_id: name of the run and of its folder. A run that failed before any agent appeared has an empty folder,
                which counts as new.
            resume: True to resume an existing run.
            force: True to archive an existing run as `<run-id>-archived-<n>`; ignored if `resume` is True.
            waits: True to leave `configuration.yaml` unchanged until `go_on`.
            configuration: text of `configuration.yaml`, the effective options.
            files: file operations.

        Raises:
            RunFolderError: if the id can't name a folder; if the run exists, and neither `resume` nor `force` is set;
                if the run does not exist, and `resume` is set; or if another process is running the run.
        """
        check_run_id(run_id)
        results = absolute(results_dir)
        path = results / run_id
        check_length(path)
        if resume:
            answered(path, check_there_is_a_run, results, run_id)
        elif not answered(path, _never_began, path):
            _make_new(path, force, files)
        folder = cls(path, files, RunLock(path, files), resume, _configuration=configuration, waits=True)
        try:
            folder._lay_out()
            if not waits:
                folder.go_on()
            elif answered(path, (path / CONFIGURATION).is_dir):  # the file could not be written later either
                raise IsADirectoryError(errno.EISDIR, f"{CONFIGURATION} is a folder")
        except BaseException:
            folder.close()
            raise
        return folder

    def go_on(self) -> None:
        """Write `configuration.yaml`; called when a new run starts, or once a run has resumed from its checkpoint.

        Raises:
            OSError: if the file can't be written.
        """
        self.waits = False
        data, path = self._configuration.encode(), self.path / CONFIGURATION
        if not answered(path, path.is_file) or read_file(path) != data:
            write_atomic(path, data, files=self.files)

    def lost(self) -> str:
        """Return the reason why this is no longer the folder that was locked; empty if it still is."""
        return "" if self._lock is None else self._lock.folder.lost()

    def rescue(self) -> None:
        """Continue in a new folder `<run-id>-rescued`, next to the lost one or, if that fails, in the temporary folder.

        Raises:
            OSError: if no folder can be created, in which case the run can't write anything.
        """
        lost, self.waits = self.path, True
        for parent in (lost.parent, Path(tempfile.gettempdir())):
            path = free_name(parent / f"{lost.name}-rescued")
            try:
                self.files.make_folder(path)
                lock = RunLock(path, self.files)
            except (OSError, RunFolderError) as error:
                problem = error
                continue
            self.close()
            self.path, self._lock, self._behaviors = path, lock, {}
            self.rescued_as = f"--run-id {path.name}" + ("" if parent == lost.parent else f" --results-dir {parent}")
            plain = yaml.safe_load(self._configuration) or {}
            plain.setdefault("checkpoint_settings", {})["run_id"] = path.name
            self._configuration = yaml.safe_dump(plain, sort_keys=False)
            self._lay_out()
            self.go_on()
            return
        self.close()
        raise OSError(f"no replacement folder can be created in {lost.parent}: {problem}")

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def run_logs(self) -> Path:
        """The folder of `training_status.json`."""
        return self.path / "run_logs"

    @property
    def training_status(self) -> Path:
        """Path of `training_status.json`, written by `write_training_status`."""
        return self.run_logs / "training_status.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints that a resume reads."""
        return self.path / "checkpoints"

    @property
    def streams(self) -> Path:
        """The folder of recorded streams."""
        return self.path / "streams"

    def behavior(self, name: str) -> Path:
        """Return a behaviour's folder, creating it if missing.

        Raises:
            RunFolderError: if the name is unusable (`check_behavior_name`), or a different behaviour has this folder.
        """
        check_behavior_name(name)
        path = behavior_folder(self.path, name) if self._resumed else self.path / file_name(name)
        other = self._behaviors.setdefault(path.name.lower(), name)
        if other != name:
            raise RunFolderError(
                f"behaviors {other!r} and {name!r} would share the folder {path} on a disk that ignores case; rename "
                "one of them"
            )
        self.files.make_folder(path)
        return path

    def write_training_status(self, status: TrainingStatus) -> None:
        """Write `training_status.json` atomically; called at every checkpoint."""
        text = json.dumps(status.as_dict(), indent=4, allow_nan=False)
        self.files.make_folder(self.run_logs)  # recreate the folder, if a user has removed it
        write_atomic(self.training_status, text.encode(), files=self.files)

    def read_training_status(self) -> TrainingStatus:
        """Return the content of Headrace's or ML-Agents' `training_status.json`; an empty status without the file.

        Raises:
            RunFolderError: if the file is damaged.
        """
        try:
            content = json.loads(read_file(self.training_status))
            return TrainingStatus.from_dict(content)
        except FileNotFoundError:
            return TrainingStatus()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RunFolderError(
                f"{self.training_status} can't be read as a training status ({type(error).__name__}: {error})"
            ) from error

    def put_broken_status_aside(self) -> None:
        """Rename a damaged `training_status.json`, so the run can continue without overwriting it.

        Raises:
            RunFolderError: if the file can't be renamed.
        """
        try:
            self.read_training_status()
        except RunFolderError as error:
            aside = free_name(self.training_status.with_name(f"{self.training_status.name}.damaged"))
            try:
                self.files.replace(self.training_status, aside)
            except OSError as refusal:
                raise RunFolderError(f"{error}, and can't be renamed: {refusal}") from refusal
            log.warning("%s. The file is now %s; the new one starts with an empty list of exports.", error, aside)

    def close(self) -> None:
        """Let other processes use the folder; may be called more than once."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lay_out(self) -> None:
        for folder in (self.run_logs, self.checkpoints, self.streams):
            self.files.make_folder(folder)
        for folder in (self.path, *matching(self.path, "*/")):
            clean_temporary(folder, files=self.files)


def unusable(path: Path, error: OSError) -> RunFolderError:
    """Return the error for a run's folder that can't be created or written, with the reason and the remedy."""
    reason = error.strerror or str(error)
    # If the path can't even be examined, use the system's message.
    with suppress(OSError):
        nearest = next((folder for folder in path.parents if folder.exists() or folder.is_symlink()), None)
        if nearest is not None and not nearest.is_dir():
            reason = f"{nearest} is not a folder"
    return RunFolderError(
        f"{shown(path)} can't be written: {reason}. Free some space there, make it writable, or choose another "
        "--results-dir"
    )


def _make_new(path: Path, force: bool, files: FileOperations) -> None:
    """Create the folder of a new run; archive an existing one if `force` is set."""
    if answered(path, path.exists):
        if not force:
            raise _already_there(path)
        archive(path, files)
    files.make_folder(path.parent)
    try:
        files.mkdir(path)  # fails if it exists; if two processes start at once, only one creates the folder
    except FileExistsError as error:
        raise _already_there(path) from error
    files.sync_folder(path.parent)


def _already_there(path: Path) -> RunFolderError:
    if answered(path, (path / GUARD).exists):
        lock_folder(path).release()  # raises an error if the run is in progress
    return RunFolderError(
        f"{shown(path)} exists: there is already a run with the id {path.name!r}. Use --resume to resume it, --force "
        "to archive it and start over, or choose a different --run-id"
    )


def _never_began(path: Path) -> bool:
    """Return True if no agent ever appeared in a run: its folder contains only settings, logs and empty folders."""
    if not (path / CONFIGURATION).is_file():
        return False
    empty = ("checkpoints", "streams", "Pipeline")
    others = {inner.name for inner in path.iterdir()} - {CONFIGURATION, LOCK, GUARD, LOST, "run_logs", *empty}
    return not others and not any(any((path / name).glob("*")) for name in empty)


def check_there_is_a_run(results_dir: str | Path, run_id: str) -> None:
    """Check that a run exists, in order to resume or play it.

    Raises:
        RunFolderError: if the run is missing (the message names existing runs), or its folder can't be read.
    """
    results = absolute(results_dir)
    try:
        if (results / run_id).is_dir():
            return
        runs = [run for run in results.iterdir() if (run / CONFIGURATION).is_file()] if results.is_dir() else []
        newest = sorted(runs, key=lambda folder: (folder / CONFIGURATION).stat().st_mtime, reverse=True)
    except OSError as error:
        raise unusable(results / run_id, error) from error
    names = [folder.name for folder in newest]
    listed = f"the runs there, newest first: {', '.join(names[:10])}"
    if len(names) > 10:
        listed += f" and {len(names) - 10} more"
    if not names:
        listed = "the folder holds no runs. Omit --resume or --inference to train one, or check --results-dir"
    raise RunFolderError(f"there is no run {run_id!r} in {shown(results)}{suggest(run_id, names)}; {listed}")


def find_run(name: str, results: str, option: str) -> Path:
    """Return the folder of the run that an option names.

    Args:
        name: the folder, or the id of a run in `results`.
        results: the folder of all runs.
        option: the option, for the message.

    Raises:
        CommandError: if the run is missing.
    """
    for folder in (absolute(name), absolute(results) / name):
        if (folder / CONFIGURATION).is_file() or any(folder.glob("**/events.out.tfevents.*")):
            return folder
    raise CommandError(f"{option} {name}: no such run: neither {name} nor {Path(results) / name} is a run folder")
