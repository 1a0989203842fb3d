"""The process of a game, in a session of its own; which file to start, and the end of its log."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.stages.environments.programs.errors import ProgramRefused

_STDERR = 2
_EXTENSIONS = (".app", ".exe", ".x86_64", ".x86")
"""Of all platforms: a path may have any of them, or none."""
_NOT_THE_GAME = "UnityCrashHandler"


@dataclass(frozen=True, slots=True)
class Launch(ABC):
    """A program that a worker starts."""

    path: str | Path
    """As given by the user, with or without the extension of any platform."""
    arguments: Sequence[str] = ()
    """The user's."""
    log_file: Path | None = None
    """Gets its output; None for no log."""
    show_output: bool = False
    """Show its output among ours, instead of writing it to a log."""

    @abstractmethod
    def command(self, port: int, seed: int) -> list[str]:
        """Make the command line.

        Raises:
            ProgramRefused: if there is no such program.
        """


class ProgramProcess(asyncio.SubprocessProtocol):
    """The process of a game, with its child processes.

    It has its own session, so that Ctrl-C in a terminal reaches only the trainer, which then ends it, and so that it
    can be killed together with its children, where a script starts it.

    Args:
        on_exit: called once, from the event loop, when the process ends.
    """

    def __init__(self, on_exit: Callable[[int], None]) -> None:
        self._on_exit = on_exit
        self._exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    async def launch(
        cls,
        command: list[str],
        show_output: bool,
        on_exit: Callable[[int], None],
        log_file: Path | None = None,
    ) -> ProgramProcess:
        """Start the process.

        Args:
            command: the program and its arguments.
            show_output: True to pass its standard output and error on to our standard error.
            on_exit: called with the return code.
            log_file: gets them otherwise; None to drop them.

        Raises:
            ProgramRefused: if the system can't start the program.
        """
        silent: AbstractContextManager[Any] = nullcontext(_STDERR if show_output else asyncio.subprocess.DEVNULL)
        if log_file is not None and not show_output:
            log_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with silent if log_file is None or show_output else log_file.open("wb") as output:
                _, process = await asyncio.get_running_loop().subprocess_exec(
                    lambda: cls(on_exit),
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProgramRefused(f"{command[0]} can't be started: {error.strerror}.{_cure(error)}") from error
        return process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def process_exited(self) -> None:
        """Clean up after the process and report its end; asyncio calls this."""
        self._kill_group()  # its remaining children, before its process id can be reused
        assert self._transport is not None
        self._transport.close()
        self._exited.set()
        assert self.returncode is not None
        self._on_exit(self.returncode)

    @property
    def returncode(self) -> int | None:
        """The return code, negative for a signal; None while the process runs."""
        assert self._transport is not None
        return self._transport.get_returncode()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._transport is not None
        return self._transport.get_pid()

    async def exited(self, timeout_s: float) -> bool:
        """Wait for the end of the process; returns False after a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        return self._exited.is_set()

    def kill(self) -> None:
        """Kill the process and its children; no effect after its end."""
        if not self._exited.is_set():
            self._kill_group()

    def _kill_group(self) -> None:
        assert self._transport is not None
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)


def describe_exit(returncode: int) -> str:
    """A return code in words: `return code 3`, or the signal that killed the process."""
    if returncode >= 0:
        return f"return code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def _cure(error: OSError) -> str:
    match error:
        case PermissionError():
            return " It isn't marked as executable: `chmod +x` it"
        case OSError(errno=8):  # ENOEXEC, which has no class of its own
            return " It isn't a program for this machine: build for this system, or begin a script with `#!`"
    return ""


def find_executable(path: Path, engine: str, platform: str = sys.platform) -> Path:
    """Find the file to start.

    An existing file is used as it is. Otherwise any platform's extension is replaced by this platform's: on Linux
    `.x86_64`, `.x86` or none; on macOS the program in `<path>.app/Contents/MacOS`; on Windows `.exe`, or the one in the
    folder `<path>`.

    Args:
        path: as the user gives it, with or without the extension of any platform.
        engine: the engine's name, for messages.
        platform: as `sys.platform`.

    Raises:
        ProgramRefused: if there is none.
    """
    looked_at = []
    for candidate in _candidates(path, platform):
        if candidate.is_file():
            return candidate.absolute()
        looked_at.append(str(candidate))
    looked = ", ".join(dict.fromkeys(looked_at))
    why = _built_for_another(path, platform) or _is_a_folder(path, platform)
    raise ProgramRefused(
        f"no {engine} executable at {path}: none of {looked} is a file.{why} "
        f"The path is taken from {Path.cwd()}; give it with --env or env_settings.env_path"
    )


def _bare(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _EXTENSIONS else path


def _candidates(path: Path, platform: str) -> Iterator[Path]:
    bare = _bare(path)
    if platform == "darwin":
        program = bare.with_name(f"{bare.name}.app") / "Contents" / "MacOS"
        yield program / bare.name
        yield from sorted(program.glob("*"))
        yield path
    elif platform == "win32":
        yield bare.with_name(f"{bare.name}.exe")
        yield from (found for found in sorted(bare.glob("*.exe")) if not found.name.startswith(_NOT_THE_GAME))
    else:
        if path.suffix not in (".app", ".exe"):
            yield path
        yield from (bare.with_name(f"{bare.name}{extension}") for extension in (".x86_64", ".x86", ""))


def _built_for_another(path: Path, platform: str) -> str:
    """A hint if there is a build for another platform."""
    bare = _bare(path)
    for extension, system in ((".app", "darwin"), (".exe", "win32"), (".x86_64", "linux")):
        found = bare.with_name(f"{bare.name}{extension}")
        if system != platform and found.exists():
            return f" {found} is a build for another system than this one ({platform}): build for this one."
    return ""


def _is_a_folder(path: Path, platform: str) -> str:
    """A hint if the path is a folder with the program in it."""
    if platform == "darwin" or not path.is_dir():
        return ""
    kinds = ("*.exe",) if platform == "win32" else ("*.x86_64", "*.x86")
    programs = sorted(str(found) for kind in kinds for found in path.glob(kind))
    return f" It is a folder; meant is the program in it{': ' if programs else ''}{', '.join(programs)}."


def tail(path: Path | None, lines: int = 15) -> str:
    """The end of a log, indented under a line with its path; empty if there is nothing to show."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            found = file.read().decode(errors="replace").rstrip().splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join([f"\nThe end of {path}:", *(f"    {line}" for line in found)]) if found else ""
