"""The process of a game, in a session of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from headrace.stages.environments.programs.errors import ProgramRefused

_STDERR = 2


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
