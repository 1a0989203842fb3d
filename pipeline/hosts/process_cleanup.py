"""Cleanup after processes: however a process ends, `sweeper` ends the processes it leaves behind, especially games."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from headrace.pipeline.common.process import start_python
from headrace.pipeline.hosts import sweeper
from headrace.place import on_linux
from headrace.process_tree import ProcessTree, end_children_with_this_process
from headrace.surroundings import keep_variable, surroundings

_numbers = itertools.count()


class _Sweeper(ProcessTree):
    """The sweeper's process. It outlives this process by design; Python's warning about that at exit is suppressed."""

    def __del__(self) -> None:
        pass


_OWN = os.environ.get(sweeper.VARIABLE, "")
"""This process's own mark, if it is a child of main; otherwise empty."""
_KILLED_S = 0.3
"""Seconds within which a live sweeper kills a child whose main is gone."""
_running: ProcessTree | None = None
_hosts: dict[int, str] = {}
"""Marks of host processes that may be running, keyed by process id."""
_folders: list[str] = []
_telling = threading.Lock()
"""Held while writing to the sweeper; needed because the live page's server starts a host from another thread."""


@functools.cache
def mark_of(pid: int) -> str:
    """Return this process's mark: the value of `sweeper.VARIABLE` in its children's environment."""
    return f"{pid}-{os.urandom(8).hex()}"  # a fork of this process runs its own hosts


def sweeps() -> bool:
    """Return True if this platform has a sweeper; elsewhere, main only ends a dead host's process group."""
    return on_linux() and _has_pidfd()


@functools.cache
def _has_pidfd() -> bool:
    try:
        process = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):  # an old kernel, or a sandbox that forbids it
        return False
    os.close(process)
    return True


def new_mark(host: str) -> str:
    """Return the mark for a host that is about to start, and make sure that the sweeper is running."""
    if sweeps():
        _tell("")  # if main is killed after this, the sweeper ends all processes that carry its mark
    return f"{mark_of(os.getpid())}/{host}/{next(_numbers)}"


def watch_host(pid: int, mark: str) -> None:
    """Make the sweeper end all processes that a host leaves running."""
    if sweeps():
        for ended in [each for each in _hosts if not Path(f"/proc/{each}").exists()]:
            del _hosts[ended]
        _hosts[pid] = mark
        _tell(_line(pid, mark))


def watch_this_process() -> None:
    """Make the sweeper end all processes that this process starts from now on and leaves running."""
    end_children_with_this_process()
    if sweeps():
        keep_variable(sweeper.VARIABLE, mark_of(os.getpid()))
        _tell("")


def remove_folder_at_end(folder: str) -> None:
    """Make the sweeper remove a folder after this process and its children have ended."""
    if sweeps():
        _folders.append(folder)
        _tell(_line(sweeper.FOLDER, folder))


def end_what_main_left() -> None:
    """In a child whose main is gone, restart a missing sweeper or, on a platform without one, end the process group."""
    main = _OWN.partition("/")[0]
    if not sweeps():
        end_group()
    elif main:
        if sweeper.is_there(main):
            time.sleep(_KILLED_S)
        with suppress(OSError):
            _start(main, _line(os.getpid(), _OWN))


def end_group() -> None:
    """Kill this process and its group if the platform has no sweeper; on Windows, the job object does this instead."""
    if not sweeps() and hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)


def _line(which: object, what: str) -> str:
    return f"{which} {what}\n"


def _tell(line: str) -> None:
    """Write a line to this process's sweeper; start the sweeper if it is not running yet or was killed."""
    global _running
    with _telling:
        if _running is not None and _running.poll() is None:
            _write(_running, line)
            return
        if _running is not None and _running.stdin is not None:
            with suppress(BrokenPipeError):
                _running.stdin.close()
        known = [*itertools.starmap(_line, _hosts.items()), *(_line(sweeper.FOLDER, each) for each in _folders)]
        _running = _start(mark_of(os.getpid()), "".join(known))
        threading.Thread(target=_replace, args=(_running,), name="end of the sweeper", daemon=True).start()


def _replace(killed: ProcessTree) -> None:
    """Wait for the sweeper to end, and restart it only if it was killed. One that failed by itself would fail again."""
    if killed.wait() < 0 and killed is _running:
        with suppress(OSError):
            _tell("")


def _start(mark: str, lines: str) -> ProcessTree:
    """Start a sweeper for the process with this mark and for the processes that `lines` names."""
    started = start_python(
        ["-I", "-S", str(Path(sweeper.__file__)), mark],
        {name: value for name, value in surroundings().variables.items() if name != sweeper.VARIABLE},
        _Sweeper,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # otherwise a reader of main's output would wait for the sweeper to end
        cwd="/",
    )
    _write(started, _line(mark.partition("-")[0], mark) + lines)
    return started


def _write(process: ProcessTree, lines: str) -> None:
    assert process.stdin is not None, "opened with PIPE"
    with suppress(BrokenPipeError):  # it has just been killed
        process.stdin.write(lines.encode())
        process.stdin.flush()
