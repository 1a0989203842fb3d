"""Runs a game's process in a separate session, finds its executable, and reads the end of its log."""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.process_tree import ProcessTree, describe_status
from headrace.stages.environments.engines.errors import GameRefused
from headrace.startup_context import absolute, startup_context

_STDERR = 2
_PASSES = 3
"""Number of event-loop iterations before an exit is reported, so that what the program sent last arrives first: asyncio
reads a last message in one iteration, the connection's end in the next, and calls `connection_lost` in the third."""
_EXTENSIONS = (".app", ".exe", ".x86_64", ".x86")
"""File extensions of games on all platforms; a path may have any of them, or no extension."""
_STARTS_ON_WINDOWS = (".exe", ".bat", ".cmd")
_NOT_THE_GAME = re.compile(r"UnityCrashHandler|.*\.console$", re.IGNORECASE)
"""Programs next to a game that are not the game: Unity's crash handler, and Godot's console launcher."""


@dataclass(frozen=True, slots=True)
class Build(ABC):
    """A game's executable, and the options to start it with."""

    path: str | Path
    """The path as the user wrote it, with or without the extension of any platform."""
    arguments: Sequence[str] = ()
    """The user's arguments."""
    log_file: Path | None = None
    """The file that receives the game's output; None for no log."""
    show_output: bool = False
    """True to write the game's output to this process's standard error instead of a log."""

    @abstractmethod
    def command(self, port: int, seed: int) -> list[str]:
        """Return the command line.

        Raises:
            GameRefused: if the executable does not exist.
        """

    @property
    def log(self) -> Path | None:
        """The game's log; None if there is none."""
        return self.log_file

    @property
    def output_file(self) -> Path | None:
        """The file to which this process redirects the game's output; None to discard the output."""
        return self.log_file


class GameProcess:
    """A game's process and its children (the process may be a script that starts the game). Ctrl-C does not reach them.

    A thread waits for the process to exit, because not every event loop can.

    Args:
        tree: the process.
        on_exit: called once, in the running event loop, with the return code when the process exits.
    """

    def __init__(self, tree: ProcessTree, on_exit: Callable[[int], None]) -> None:
        self._tree = tree
        self._on_exit = on_exit
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._waiting = threading.Thread(target=self._wait, name=f"end of {tree.pid}", daemon=True)
        self._waiting.start()

    @classmethod
    async def launch(
        cls,
        command: list[str],
        show_output: bool,
        on_exit: Callable[[int], None],
        log_file: Path | None = None,
    ) -> GameProcess:
        """Start the process.

        Args:
            command: the program and its arguments.
            show_output: True to pass its standard output and error to this process's standard error.
            on_exit: called with the return code.
            log_file: receives the output if it is not shown; None to discard the output. Its folder must exist.

        Raises:
            GameRefused: if the system can't start the program.
        """
        silent: AbstractContextManager[Any] = nullcontext(_STDERR if show_output else subprocess.DEVNULL)
        try:
            with silent if log_file is None or show_output else log_file.open("wb") as output:
                tree = ProcessTree(command, shows=show_output, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        except OSError as error:
            raise GameRefused(f"{command[0]} can't be started: {error.strerror}.{_cure(error)}") from error
        return cls(tree, on_exit)

    def _wait(self) -> None:
        self._tree.wait()
        self._tree.kill_all()  # its remaining children, before its process id can be reused
        with suppress(RuntimeError):  # the event loop is closed, so no task waits for the exit
            self._loop.call_soon_threadsafe(self._report, _PASSES)

    def _report(self, passes: int) -> None:
        if passes:
            self._loop.call_soon(self._report, passes - 1)
            return
        self._waiting.join()
        self._exited.set()
        self._on_exit(self._tree.returncode)

    @property
    def returncode(self) -> int | None:
        """The return code, negative for a signal; None while the process runs."""
        return self._tree.returncode if self._exited.is_set() else None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._tree.pid

    async def exited(self, timeout_s: float) -> bool:
        """Wait for the process to exit; return False after a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        return self._exited.is_set()

    def kill(self) -> None:
        """Kill the process and its children. Does nothing once the process has exited."""
        if self._tree.returncode is None:
            self._tree.kill_all()


def describe_exit(returncode: int) -> str:
    """Describe a return code: `return code 3`, or the signal that killed the process."""
    if returncode >= 0:
        return f"return code {describe_status(returncode)}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def _cure(error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        return " It isn't a program for this machine: build for this system, or start a script with `#!`"
    if isinstance(error, PermissionError) and sys.platform != "win32":
        return " It isn't executable: `chmod +x` it"
    return ""


def find_executable(path: Path, platform: str = sys.platform) -> Path:
    """Find the file to start.

    An existing file is used unchanged. Otherwise any platform's extension is replaced by this platform's: on Linux by
    `.x86_64`, `.x86` or no extension; on macOS by the program in `<path>.app/Contents/MacOS`; on Windows by `.exe`,
    or by the program in the folder `<path>` (if the folder contains several programs, the one with the folder's name).
    Last, a system command of this name is used, such as `node`.

    Args:
        path: as the user wrote it, with or without the extension of any platform.
        platform: as `sys.platform`.

    Raises:
        GameRefused: if the file does not exist.
    """
    looked_at = []
    for candidate in _candidates(path, platform):
        if (file := absolute(candidate)).is_file():
            return file
        looked_at.append(str(candidate))
    if len(path.parts) == 1 and (command := shutil.which(str(path), path=startup_context().variables.get("PATH"))):
        return Path(command)
    looked = ", ".join(dict.fromkeys(looked_at))
    why = _built_for_another(path, platform) or _is_a_folder(path, platform)
    base = "" if path.is_absolute() else f" The path is relative to {startup_context().folder}."
    raise GameRefused(
        f"no executable at {path}: none of {looked} is a file.{why}{base} Set it with --env or env_settings.env_path"
    )


def check_executable(config: RunConfig) -> None:
    """If `env_settings` names an executable, check that it exists. Raises the same errors as `find_executable`."""
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path))


def _bare(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in _EXTENSIONS else path


def _candidates(path: Path, platform: str) -> Iterator[Path]:
    bare = _bare(path)
    if platform == "darwin":
        program = bare.with_name(f"{bare.name}.app") / "Contents" / "MacOS"
        yield program / bare.name
        yield from sorted(program.glob("*"))
        yield path
    elif platform == "win32":
        if path.suffix.lower() in _STARTS_ON_WINDOWS:
            yield path
        yield bare.with_name(f"{bare.name}.exe")
        if len(programs := _programs_in(bare, platform)) == 1:
            yield programs[0]
    else:
        if path.suffix not in (".app", ".exe"):
            yield path
        yield from (bare.with_name(f"{bare.name}{extension}") for extension in (".x86_64", ".x86", ""))


def _built_for_another(path: Path, platform: str) -> str:
    """Return a hint if there is a build for a different platform; otherwise an empty string."""
    bare = _bare(path)
    for extension, system in ((".app", "darwin"), (".exe", "win32"), (".x86_64", "linux")):
        build = bare.with_name(f"{bare.name}{extension}")
        if system != platform and build.exists():
            return f" {build} is a build for a different system; build the game for this one ({platform})."
    return ""


def _programs_in(folder: Path, platform: str) -> list[Path]:
    """Return the programs in a folder that may be the game. If one has the folder's name, return only that program."""
    kinds = (".exe",) if platform == "win32" else (".x86_64", ".x86")
    programs = [program for program in sorted(folder.glob("*")) if program.suffix.lower() in kinds]
    games = [program for program in programs if not _NOT_THE_GAME.match(program.stem)]
    return [program for program in games if program.stem.lower() == folder.name.lower()] or games


def _is_a_folder(path: Path, platform: str) -> str:
    """Return a hint if the path is a folder that contains the program; otherwise an empty string."""
    folder = _bare(path) if platform == "win32" else path
    if platform == "darwin" or not folder.is_dir():
        return ""
    programs = [str(program) for program in _programs_in(folder, platform)]
    meant = "one of the programs" if len(programs) > 1 else "the program"
    return f" It is a folder; give {meant} in it{': ' if programs else ''}{', '.join(programs)}."


def tail(path: Path | None, lines: int = 15) -> str:
    """Return the end of a log, indented under a line with its path; empty if there is no log."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            last = file.read().decode(errors="replace").rstrip().splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join([f"\nThe end of {path}:", *(f"    {line}" for line in last)]) if last else ""
