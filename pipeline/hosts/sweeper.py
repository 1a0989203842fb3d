"""The sweeper: a small program that runs alongside main and ends processes left behind by dead processes.

It runs as a script with only the standard library. Its argument is main's mark, which begins with main's process id.
For each process to watch, main writes a `pid mark` line; the first line is about main itself. The descendants of a
process carry its mark in their environment (`HEADRACE_HOST`), and most are in its session. A program that overwrites
its environment with its title, as Ray's programs do, loses its mark. The sweeper recognises this program by its process
group and by its open files in a folder that a `folder path` line names.

When a watched process has ended, in whatever way, the sweeper sends SIGTERM to the processes left behind and kills them
after `GRACE_S`; when main has ended, it kills hosts immediately. At the end it removes the folders. All this works even
if main is killed with `kill -9`. If the sweeper is killed, main restarts it; if main is gone too, a host restarts it
(`process_cleanup`). Linux only: it needs pidfd and /proc.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

VARIABLE = "HEADRACE_HOST"
"""Environment variable with the mark of the nearest watched ancestor; a host's mark begins with main's mark."""
FOLDER = "folder"
"""First word of a line that names a folder; other lines begin with a process id."""
GRACE_S = 2.0
"""Seconds from SIGTERM to SIGKILL."""
_GIVE_UP_S = 10.0
"""Seconds after which the sweeper ignores a process that survives SIGKILL, as in an endless system call."""
_LOOK_EVERY_S = 0.1
"""Seconds between scans of /proc while processes remain."""


class Sweep:
    """Ends the processes that one dead process has left behind.

    Args:
        pid: id of the dead process.
        mark: its mark.
        group: its process group; -1 if unknown.
        folders: folders to check; a process in the group with an open file in one of them also counts as left behind.
        line: the pipe that the dead process wrote to; any other process that holds the pipe open is a fork of the dead
            process.
    """

    def __init__(self, pid: int, mark: str, group: int = -1, folders: Sequence[str] = (), line: str = "") -> None:
        self._pid = pid
        self._group = group
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._line = line
        self._entry = f"{VARIABLE}={mark}".encode()
        self._leads_session = "/" in mark  # as hosts do; main's session is the user's
        self._since = time.monotonic()
        self._terminated: set[int] = set()

    def look(self) -> bool:
        """Signal the processes that remain; return True when there is nothing more to do."""
        age = time.monotonic() - self._since
        if _state_group_session(self._pid)[0] not in ("", "Z"):
            self._leads_session = False  # the group was empty, and another group now has its id
        left = [pid for pid in _pids() if self._signal(pid, kill=age > GRACE_S)]
        return not left or age > _GIVE_UP_S

    def _signal(self, pid: int, kill: bool) -> bool:
        """Signal a process if the dead process left it behind; identify it by a handle, because ids are reused."""
        if not self._is_left_behind(pid):
            return False
        try:
            process = os.pidfd_open(pid)
        except OSError:  # it has just ended
            return False
        try:
            # The id may belong to another process now.
            if self._is_left_behind(pid) and (kill or pid not in self._terminated):
                self._terminated.add(pid)
                signal.pidfd_send_signal(process, signal.SIGKILL if kill else signal.SIGTERM)
        except OSError:
            return False
        finally:
            os.close(process)
        return True

    def _is_left_behind(self, pid: int) -> bool:
        if pid in (os.getpid(), self._pid):
            return False
        for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
            if entry == self._entry or entry.startswith(self._entry + b"/"):
                return True
        state, group, session = _state_group_session(pid)
        if self._leads_session and session == self._pid and state != "Z":
            return True
        folders = self._folders if group == self._group else ()
        known = bool(folders or self._line)
        return known and any(each == self._line or each.startswith(folders) for each in _open(pid))


class Watch:
    """Watches processes, and cleans up after those that have ended.

    Args:
        lines: file descriptor from which the sweeper reads main's lines.
        main: main's process id.
    """

    def __init__(self, lines: int, main: int) -> None:
        self._lines = lines
        self._main = main
        self._unread = ""
        self._poll = select.poll()
        self._poll.register(lines, select.POLLIN)
        self._listening = True
        self._watched: dict[int, tuple[int, str, int]] = {}
        """(process id, mark, process group) for each watched process, keyed by pidfd."""
        self._sweeps: list[Sweep] = []
        self._folders: list[str] = []

    def run(self) -> None:
        """Watch until main, all other watched processes and everything that they have left behind have ended."""
        while self._listening or self._watched or self._sweeps:
            for descriptor, _ in self._poll.poll(_LOOK_EVERY_S * 1000 if self._sweeps else None):
                if descriptor == self._lines:
                    self._listen()
                else:
                    self._ended(descriptor)
            self._sweeps = [sweep for sweep in self._sweeps if not sweep.look()]
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _listen(self) -> None:
        data = os.read(self._lines, 65536)
        *lines, self._unread = (self._unread + data.decode()).split("\n")
        for line in lines:
            pid, _, mark = line.partition(" ")
            if pid == FOLDER:
                self._folders.append(mark)
                continue
            try:
                process = os.pidfd_open(int(pid))
            except ProcessLookupError:  # it has ended already
                self._sweeps.append(Sweep(int(pid), mark))
            else:
                self._watched[process] = (int(pid), mark, _state_group_session(int(pid))[1])
                self._poll.register(process, select.POLLIN)
        if not data:
            self._listen_no_more()

    def _ended(self, process: int) -> None:
        pid, mark, group = self._watched.pop(process)
        self._poll.unregister(process)
        os.close(process)
        is_main = pid == self._main
        line = os.readlink(f"/proc/self/fd/{self._lines}") if is_main else ""
        self._sweeps.append(Sweep(pid, mark, group, self._folders if is_main else (), line))
        if is_main:  # its forks may hold the other end of the pipe
            self._listen_no_more()
            for host in self._watched:  # hosts ignore SIGTERM
                with suppress(OSError):
                    signal.pidfd_send_signal(host, signal.SIGKILL)

    def _listen_no_more(self) -> None:
        if self._listening:
            self._listening = False
            self._poll.unregister(self._lines)


def is_there(mark: str) -> bool:
    """Return True if a sweeper is running for the process with this mark."""
    words = f"{os.path.basename(__file__)}\0{mark}\0".encode()
    return any(_read(f"/proc/{pid}/cmdline").endswith(words) for pid in _pids())


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _state_group_session(pid: int) -> tuple[str, int, int]:
    """Return a process's state (`Z` if it has ended but is not reaped), group and session; ("", -1, -1) if missing."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[2]), int(fields[3])) if fields else ("", -1, -1)


def _open(pid: int) -> Iterator[str]:
    """Yield the paths of a process's open files."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has just ended, or is another user's
        return
    for name in names:
        with suppress(OSError):  # it was just closed
            yield os.readlink(f"{folder}/{name}")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has just ended, or is another user's
        return b""


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # service managers send these to every process
        signal.signal(number, signal.SIG_IGN)
    Watch(sys.stdin.fileno(), int(sys.argv[1].partition("-")[0])).run()
