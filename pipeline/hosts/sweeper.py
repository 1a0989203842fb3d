"""The sweeper: a small program next to main that ends what dead processes have left behind, such as games.

It runs as a script with only the standard library. Its arguments are main's process id and mark. It sweeps after main
when main ends, even by `kill -9`; main names the hosts that have ended, in a line `pid mark` each on standard input. A
line `folder path` names a folder to remove after main's end. Linux only: it needs pidfd and /proc.

Linux gives orphans to their nearest ancestor that asks for them (`PR_SET_CHILD_SUBREAPER`). No process of Headrace is
an ancestor of main, so leftover processes are found by a mark in their environment (docs/decisions/011).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

VARIABLE = "HEADRACE_HOST"
"""Environment variable with the mark of the nearest ancestor that is main or a host. A host's mark begins with main's
mark and a slash, so a sweep after main includes the hosts' games."""
_ENTRY = f"{VARIABLE}=".encode()
FOLDER = "folder"
"""First word of a line that names a folder; the other lines begin with a process id."""
GRACE_S = 2.0
"""Seconds from SIGTERM to SIGKILL: enough for a game to write its files."""
_GIVE_UP_S = 10.0
"""Seconds after which a process that survives SIGKILL, as in an endless system call, is left to the system."""
_SCAN_EVERY_S = 0.1
"""Seconds between scans of /proc while processes remain. A scan takes about 0.2 ms per process on the machine."""


class Process(NamedTuple):
    """A process on this machine that has not ended."""

    started: int
    """Ticks since boot: a later process with the same id started later."""
    parent: int
    session: int
    mark: str


class Sweep:
    """Ends what one dead process has left behind.

    This is all with its mark, all in the session that it led, all that hold its pipe to the sweeper, and everything
    that any of these have started.

    Args:
        dead: id of the dead process.
        mark: its mark.
        pipe: main's pipe. Main's forks hold it, but Linux shows them with main's first environment, without a mark.
            Empty for a host, whose forks have its mark.
    """

    def __init__(self, dead: int, mark: str, pipe: str = "") -> None:
        self._session = dead
        self._marks = (mark, f"{mark}/")
        self._pipe = pipe
        self._began_s = time.monotonic()
        self._left: dict[int, int] = {}
        """Times of start, keyed by process id."""

    def poll(self, processes: Mapping[int, Process]) -> bool:
        """Signal the processes that remain; return True when there is nothing more to do."""
        if self._session in processes:
            self._session = -1  # its session was empty, or the system would not have given out its id again
        before = self._left
        left = {pid for pid, process in processes.items() if self._is_left_behind(pid, process)}
        while children := {pid for pid, process in processes.items() if process.parent in left} - left:
            left |= children
        self._left = {pid: processes[pid].started for pid in left}
        age_s = time.monotonic() - self._began_s
        for pid, started in self._left.items():
            if age_s > GRACE_S:
                _send(pid, started, signal.SIGKILL)
            elif before.get(pid) != started:
                _send(pid, started, signal.SIGTERM)
        return not left or age_s > _GIVE_UP_S

    def _is_left_behind(self, pid: int, process: Process) -> bool:
        # Whoever was left behind stays so: since the last scan, its parent may have ended, or it may have written its
        # title over its mark, as Ray's agents do.
        return (
            self._left.get(pid) == process.started
            or process.session == self._session
            or process.mark == self._marks[0]
            or process.mark.startswith(self._marks[1])
            or (self._pipe != "" and _holds(pid, self._pipe))
        )


def processes_here() -> dict[int, Process]:
    """Return the processes on this machine except this one, keyed by process id."""
    processes = {pid: _process(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()}
    return {pid: process for pid, process in processes.items() if process is not None}


def _process(pid: int) -> Process | None:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or fields[0] == b"Z":  # it has ended, but its parent has not reaped it
        return None
    marks = (entry for entry in _read(f"/proc/{pid}/environ").split(b"\0") if entry.startswith(_ENTRY))
    mark = next(marks, _ENTRY).removeprefix(_ENTRY).decode(errors="replace")
    return Process(int(fields[19]), parent=int(fields[1]), session=int(fields[3]), mark=mark)


def _holds(pid: int, file: str) -> bool:
    with suppress(OSError):  # the process has just ended or closed a file, or is another user's
        return any(os.readlink(f"/proc/{pid}/fd/{name}") == file for name in os.listdir(f"/proc/{pid}/fd"))
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has just ended, or is another user's
        return b""


def _send(pid: int, started: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless the process has ended."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)  # a signal sent by it can't reach a later process with this id
        try:
            process = _process(pid)
            if process is not None and process.started == started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def main(watched: int, mark: str) -> None:
    """Sweep after the hosts of a process and after the process itself; return when nothing remains."""
    for request in ("INT", "TERM", "HUP", "USR1", "USR2", "XCPU"):  # service managers send these to every process
        signal.signal(signal.Signals[f"SIG{request}"], signal.SIG_IGN)
    pipe = sys.stdin.fileno()
    try:
        handle = os.pidfd_open(watched)
    except ProcessLookupError:  # it has ended already
        handle = os.open(os.devnull, os.O_RDONLY)  # always ready, like the handle of an ended process
    sources, sweeps, folders = [pipe, handle], list[Sweep](), list[str]()
    while sources or sweeps:
        ready = select.select(sources, [], [], _SCAN_EVERY_S if sweeps else None)[0]
        if pipe in ready:
            for line in os.read(pipe, 1 << 16).decode().splitlines():  # all lines in the pipe, and only whole ones
                word, _, rest = line.partition(" ")
                if word == FOLDER:
                    folders.append(rest)
                else:
                    sweeps.append(Sweep(int(word), rest))
        if handle in ready:
            sweeps.append(Sweep(watched, mark, os.readlink(f"/proc/self/fd/{pipe}")))
            sources = []  # main's forks may hold the other end of the pipe
        if sweeps:
            processes = processes_here()
            sweeps = [sweep for sweep in sweeps if not sweep.poll(processes)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
