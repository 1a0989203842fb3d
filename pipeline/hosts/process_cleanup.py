"""What processes leave behind, games above all, is ended when they have ended, in whatever way; `sweeper` does it."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from headrace.pipeline.common.process import start_python
from headrace.pipeline.hosts import sweeper
from headrace.process_tree import ProcessTree, end_children_with_this_process
from headrace.surroundings import keep_variable, surroundings

_numbers = itertools.count()


class _Sweeper(ProcessTree):
    """The process that sweeps. It outlives this one by design, of which Python would warn at the exit."""

    def __del__(self) -> None:
        pass


_running: ProcessTree | None = None
_telling = threading.Lock()
"""The page's server starts a host of its own, in a thread of its own."""


@functools.cache
def mark_of(pid: int) -> str:
    """Return the mark of this process: the value of `sweeper.VARIABLE` in the environment of what it starts."""
    return f"{pid}-{os.urandom(8).hex()}"  # a fork of this process runs hosts of its own


def sweeps() -> bool:
    """Return True if there is a sweeper; elsewhere main ends a dead host's process group, and nothing more."""
    from headrace.queues.platform import on_linux  # not above: the first child is marked before much is imported

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
    """Return the mark of a host that is about to be started."""
    if sweeps():
        _tell("")  # from here on the sweeper ends what carries a mark of this process, should main be killed
    return host_mark(host)


def host_mark(host: str) -> str:
    """Return a mark, of which nobody is told yet."""
    return f"{mark_of(os.getpid())}/{host}/{next(_numbers)}"


def watch_host(pid: int, mark: str) -> None:
    """Have ended what a host will leave behind."""
    if sweeps():
        _tell(f"{pid} {mark}\n")


def watch_this_process() -> None:
    """Have ended what this process will leave behind: what it starts from now on, that is not there yet."""
    end_children_with_this_process()
    if sweeps():
        keep_variable(sweeper.VARIABLE, mark_of(os.getpid()))
        _tell("")


def remove_folder_at_end(folder: str) -> None:
    """Have a folder removed when this process has ended, and with it what it has started."""
    if sweeps():
        _tell(f"{sweeper.FOLDER} {folder}\n")


def end_group() -> None:
    """Where nothing sweeps: kill this process with its group; on Windows its job ends with main."""
    if not sweeps() and hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)


def _tell(line: str) -> None:
    """Write to this process's sweeper, which is started when it is first needed, or was killed."""
    with _telling:
        _write(line)


def _write(line: str) -> None:
    global _running
    if _running is None or _running.poll() is not None:
        _running = start_python(
            ["-I", "-S", str(Path(sweeper.__file__))],
            {name: value for name, value in surroundings().variables.items() if name != sweeper.VARIABLE},
            _Sweeper,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # whoever reads main's output to its end need not wait for the sweeper
            cwd="/",
        )
        line = f"{os.getpid()} {mark_of(os.getpid())}\n{line}"
    assert _running.stdin is not None, "asked for with PIPE"
    with suppress(BrokenPipeError):  # it was killed this moment
        _running.stdin.write(line.encode())
        _running.stdin.flush()
