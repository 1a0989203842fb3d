"""The folder of one run, `results/<run-id>/`, as ML-Agents lays it out, with two folders of our own.

    configuration.yaml            the effective options, written when the run starts
    <Behavior>/                   exports, checkpoints in ML-Agents' form, TensorBoard events
    <Behavior>.onnx               the last export
    Pipeline/                     TensorBoard events of queues, stages and hosts
    run_logs/timers.json          see `timers`
    run_logs/training_status.json steps, ratings, lessons and the list of checkpoints, for people and tools
    checkpoints/                  what `--resume` reads
    streams/                      recordings
    .lock                         there while a process is running the run

`RunFolder.create` decides whether a run may have its folder: new, resumed, or, with force, after the old one
has been put aside.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import json
import math
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.atomic_files import REAL, FileOperations, clean_temporary, write_atomic

CONFIGURATION = "configuration.yaml"
LOCK = ".lock"
RESERVED = ("run_logs", "checkpoints", "streams", "Pipeline")
"""Folders that no behaviour may have for its own."""
STATUS_FORMAT_VERSION = "0.3.0"

_NOT_IN_FILE_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f]')


class RunFolderError(Exception):
    """A run can't have the folder it asks for, or a file in it is broken; the message says what to do."""


def folder_name(category: str) -> str:
    """Return the name of a behaviour's folder, valid on every platform: what is not allowed becomes `_`."""
    name = _NOT_IN_FILE_NAMES.sub("_", category)
    return name if name.strip(" .") else "_"


@dataclass
class RunFolder:
    """The folder of a run that this process is running; closing it lets others have it."""

    path: Path
    files: FileOperations = REAL
    _lock: _Lock | None = field(default=None, repr=False)

    @classmethod
    def create(
        cls,
        results_dir: str | Path,
        run_id: str,
        *,
        resume: bool = False,
        force: bool = False,
        configuration: str = "",
        files: FileOperations = REAL,
    ) -> RunFolder:
        """Make or take over the folder of a run, lock it, and write `configuration.yaml`.

        Args:
            results_dir: the folder of all runs; made if missing.
            run_id: name of the run and of its folder.
            resume: go on with a run that is there.
            force: put aside a run that is there, as `<run-id>-archived-<n>`. With `resume`, resuming wins,
                as nothing is lost by it.
            configuration: text of `configuration.yaml`, the effective options.
            files: how to write; for tests.

        Raises:
            RunFolderError: if the id is no folder name, the run is there and neither option says what to do,
                it is not there and `resume` is set, or another process is running it.
        """
        _check_run_id(run_id)
        results = Path(results_dir)
        path = results / run_id
        if resume:
            if not path.is_dir():
                raise RunFolderError(_nothing_to_resume(results, run_id))
        else:
            if path.exists():
                if not force:
                    raise RunFolderError(_already_there(path))
                _archive(path, files)
            files.make_folder(results)
            try:
                files.mkdir(path)  # not "if missing": of two processes that start at once, one gets the folder
            except FileExistsError as error:
                raise RunFolderError(_already_there(path)) from error
            files.sync_folder(results)
        folder = cls(path, files, _Lock.acquire(path / LOCK, files))
        try:
            folder._lay_out()
            write_atomic(path / CONFIGURATION, configuration.encode(), files=files)
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def configuration(self) -> Path:
        """The file with the effective options."""
        return self.path / CONFIGURATION

    @property
    def run_logs(self) -> Path:
        """The folder of `timers.json` and `training_status.json`."""
        return self.path / "run_logs"

    @property
    def timers(self) -> Path:
        """The file that `timers.Timers.write` writes."""
        return self.run_logs / "timers.json"

    @property
    def training_status(self) -> Path:
        """The file of `write_training_status`."""
        return self.run_logs / "training_status.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints that a resume reads."""
        return self.path / "checkpoints"

    @property
    def streams(self) -> Path:
        """The folder of recordings."""
        return self.path / "streams"

    def behavior(self, name: str) -> Path:
        """Return the folder of a behaviour, which is made if missing.

        Raises:
            RunFolderError: if the run's own folders have that name.
        """
        folder = folder_name(name)
        if folder.lower() in (reserved.lower() for reserved in RESERVED):
            raise RunFolderError(
                f"behavior {name!r}: a run has a folder {folder!r} of its own; "
                f"give the behavior another name (taken are {', '.join(RESERVED)})"
            )
        path = self.path / folder
        self.files.make_folder(path)
        return path

    def write_training_status(self, status: TrainingStatus) -> None:
        """Write `training_status.json`, atomically; meant for every checkpoint."""
        text = json.dumps(status.as_dict(), indent=4, allow_nan=False)
        write_atomic(self.training_status, text.encode(), files=self.files)

    def read_training_status(self) -> TrainingStatus:
        """Read `training_status.json`, ours or ML-Agents'; without the file, an empty status.

        Raises:
            RunFolderError: if the file is not what it should be.
        """
        try:
            content = json.loads(self.training_status.read_bytes())
            return TrainingStatus.from_dict(content)
        except FileNotFoundError:
            return TrainingStatus()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunFolderError(
                f"{self.training_status} is no readable training status ({type(error).__name__}: {error}); "
                "put it aside to go on without its list of earlier checkpoints"
            ) from error

    def close(self) -> None:
        """Let other processes have the folder. Allowed more than once."""
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
        for folder in (self.path, *(inner for inner in self.path.iterdir() if inner.is_dir())):
            clean_temporary(folder, files=self.files)


def _check_run_id(run_id: str) -> None:
    if not run_id.strip(" .") or re.search(r"[/\\\x00-\x1f]", run_id):
        raise RunFolderError(
            f"run id {run_id!r} can't name a folder: it needs a letter or digit, and no '/' or '\\'; "
            "to put results elsewhere use --results-dir"
        )


def _already_there(path: Path) -> str:
    holder = _Holder.read(path / LOCK)
    if holder is not None and holder.may_run():
        return _in_use(path, holder)
    return (
        f"{path} exists: a run with the id {path.name!r} was made before. Use --resume to go on with it, "
        "--force to put it aside and start anew, or another --run-id"
    )


def _nothing_to_resume(results: Path, run_id: str) -> str:
    found = [folder for folder in results.iterdir() if (folder / CONFIGURATION).is_file()] if results.is_dir() else []
    newest = sorted(found, key=lambda folder: (folder / CONFIGURATION).stat().st_mtime, reverse=True)
    names = [folder.name for folder in newest]
    message = f"there is no run {run_id!r} to resume in {results}"
    if close := difflib.get_close_matches(run_id, names, n=1):
        message += f"; did you mean {close[0]!r}?"
    if not names:
        return f"{message}; it holds no runs at all. Leave out --resume to start one, or see --results-dir"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{message}; the runs there, newest first: {', '.join(names[:10])}{more}"


def _archive(path: Path, files: FileOperations) -> None:
    """Put a folder aside under the first free `<run-id>-archived-<n>`, unless a process is running it."""
    lock = _Lock.acquire(path / LOCK, files)
    try:
        number = 1
        while (aside := path.with_name(f"{path.name}-archived-{number}")).exists():
            number += 1
        files.replace(path, aside)
    except BaseException:
        lock.release()
        raise
    files.sync_folder(path.parent)
    files.remove(aside / LOCK)


@dataclass(frozen=True)
class _Holder:
    """The process that a lock file names."""

    pid: int
    host: str
    started: str
    """When the process started, in the system's own terms; empty where it does not say. Pids are used
    again; in a container the next process nearly always has the same one."""

    @classmethod
    def this_process(cls) -> _Holder:
        return cls(os.getpid(), socket.gethostname(), _process_state(os.getpid())[1])

    @classmethod
    def read(cls, path: Path) -> _Holder | None:
        """Return who holds a lock, None if nobody does, and pid 0 if the file does not say."""
        try:
            content = json.loads(path.read_bytes())
            return cls(int(content["pid"]), str(content["host"]), str(content["started"]))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            return cls(0, "", "")

    def as_bytes(self) -> bytes:
        return json.dumps({"pid": self.pid, "host": self.host, "started": self.started}).encode()

    def may_run(self) -> bool:
        """Return False only if it is certain that the process is gone."""
        if self.pid <= 0 or self.host != socket.gethostname():
            return True
        alive, started = _process_state(self.pid)
        # Where either start is not known (a hardened /proc), the pid alone decides.
        return alive and (not self.started or not started or started == self.started)


class _Lock:
    """A lock file, held."""

    def __init__(self, path: Path, files: FileOperations) -> None:
        self._path = path
        self._files = files

    @classmethod
    def acquire(cls, path: Path, files: FileOperations) -> _Lock:
        """Create the lock file, or take over that of a process that is gone.

        Raises:
            RunFolderError: if another process has it.
        """
        while True:
            try:
                files.write_file(path, _Holder.this_process().as_bytes(), exclusive=True)
                return cls(path, files)
            except FileExistsError:
                pass
            except OSError:  # such as a full disk: an empty lock would keep everybody out
                with contextlib.suppress(OSError):
                    files.remove(path)
                raise
            holder = _Holder.read(path)
            if holder is not None and holder.may_run():
                raise RunFolderError(_in_use(path.parent, holder))
            if holder is not None:
                _take_away(path, holder, files)

    def release(self) -> None:
        self._files.remove(self._path)


def _take_away(path: Path, holder: _Holder, files: FileOperations) -> None:
    """Remove a stale lock file.

    Two processes may have found it stale. Were both just to remove it, the slower would remove the lock that
    the faster has made by then. A rename gives the file to one of them, which then sees what it has got.
    """
    taken = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        files.replace(path, taken)
    except FileNotFoundError:
        return
    if _Holder.read(taken) == holder:
        files.remove(taken)
    else:
        files.replace(taken, path)


def _in_use(path: Path, holder: _Holder) -> str:
    lock = path / LOCK
    if not holder.pid:
        return f"{path} is locked, and {lock} does not say by whom; if nothing is running it, delete that file"
    if holder.host != socket.gethostname():
        return (
            f"{path} is in use by process {holder.pid} on the machine {holder.host!r}, which can't be asked "
            f"from here; if it has ended, delete {lock}"
        )
    return f"{path} is in use by process {holder.pid}; wait for it, stop it, or use another --run-id"


def _process_state(pid: int) -> tuple[bool, str]:
    """Return whether a process of this machine is running, and when it started ("" if that can't be had)."""
    if sys.platform == "win32":
        # os.kill(pid, 0) would send Ctrl-C there.
        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
        if not handle:
            return False, ""
        code = ctypes.c_ulong()
        ctypes.windll.kernel32.GetExitCodeProcess(handle, ctypes.byref(code))
        ctypes.windll.kernel32.CloseHandle(handle)
        return code.value == 259, ""  # STILL_ACTIVE
    try:
        # After the command's name, which may hold anything, in parentheses: state, …, start time as the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0] not in "ZX", fields[19]  # a zombie runs no more, though nobody has asked for its exit code
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False, ""
    except PermissionError:
        pass
    return True, ""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One checkpoint of a behaviour, in `training_status.json`."""

    steps: int
    file_path: str
    """The export (ONNX), or what stands for it."""
    reward: float | None
    """Mean return before it, if an episode had ended."""
    creation_time: float
    """Seconds since 1970."""
    auxiliary_file_paths: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return ML-Agents' form, its spelling included."""
        return {
            "steps": self.steps,
            "file_path": self.file_path,
            "reward": self.reward if self.reward is not None and math.isfinite(self.reward) else None,
            "creation_time": self.creation_time,
            "auxillary_file_paths": list(self.auxiliary_file_paths),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CheckpointEntry:
        """Read ML-Agents' form; files of before it listed further paths lack that key."""
        reward = None if content["reward"] is None else float(content["reward"])
        paths = tuple(content.get("auxillary_file_paths", ()))
        return cls(int(content["steps"]), content["file_path"], reward, float(content["creation_time"]), paths)


@dataclass(frozen=True, slots=True)
class BehaviorStatus:
    """What `training_status.json` says of a behaviour."""

    checkpoints: tuple[CheckpointEntry, ...] = ()
    final_checkpoint: CheckpointEntry | None = None
    elo: float | None = None
    """The rating; None without self-play."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The content of `training_status.json`."""

    behaviors: Mapping[str, BehaviorStatus] = field(default_factory=dict)
    lessons: Mapping[str, int] = field(default_factory=dict)
    """Curriculum lesson by the environment parameter's name."""

    def as_dict(self) -> dict[str, Any]:
        """Return ML-Agents' form. A behaviour and a parameter of one name share an entry, as there."""
        result: dict[str, Any] = {"metadata": _versions()}
        for name, status in self.behaviors.items():
            entry = result.setdefault(name, {})
            entry["checkpoints"] = [checkpoint.as_dict() for checkpoint in status.checkpoints]
            if status.final_checkpoint is not None:
                entry["final_checkpoint"] = status.final_checkpoint.as_dict()
            if status.elo is not None:
                entry["elo"] = status.elo
        for name, lesson in self.lessons.items():
            result.setdefault(name, {})["lesson_num"] = lesson
        return result

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TrainingStatus:
        """Read ML-Agents' form.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: if it is something else.
        """
        entries = {name: entry for name, entry in content.items() if name != "metadata"}
        behaviors = {
            name: BehaviorStatus(
                tuple(CheckpointEntry.from_dict(checkpoint) for checkpoint in entry.get("checkpoints", ())),
                CheckpointEntry.from_dict(entry["final_checkpoint"]) if "final_checkpoint" in entry else None,
                float(entry["elo"]) if "elo" in entry else None,
            )
            for name, entry in entries.items()
            if entry.keys() & {"checkpoints", "final_checkpoint", "elo"}
        }
        lessons = {name: int(entry["lesson_num"]) for name, entry in entries.items() if "lesson_num" in entry}
        return cls(behaviors, lessons)


def _versions() -> dict[str, str]:
    """ML-Agents refuses a status without these three keys; other values than its own it only warns about."""
    return {
        "stats_format_version": STATUS_FORMAT_VERSION,
        "mlagents_version": f"headrace {_version('headrace')}",
        "torch_version": _version("torch"),
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # a checkout that was not installed
        return "unknown"
