"""Cleanup after processes: however a process ends, the processes that it leaves behind end too, especially games.

On Linux, a small process next to main ends them (`sweeper`). Elsewhere, main ends a dead host's process group, or on
Windows its job.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from headrace.paths import has_process_handles
from headrace.pipeline.common.process import start_python
from headrace.pipeline.hosts import sweeper
from headrace.process_tree import ProcessTree, end_children_with_this_process
from headrace.startup_context import keep_variable, startup_context


class _Sweeper(ProcessTree):
    """The sweeper's process. By design, it outlives this process, without Python's warnings about that."""

    def __del__(self) -> None:
        if self.stdin is not None:
            self.stdin.close()


_inherited_mark = os.environ.get(sweeper.VARIABLE, "")
_numbers = itertools.count()
_running: ProcessTree | None = None
_folders: list[str] = []
_starting = threading.Lock()
"""Held while the sweeper starts: the live page's server starts a host from another thread."""


@functools.cache
def mark_of(pid: int) -> str:
    """Return this process's mark: the value of `sweeper.VARIABLE` in its children's environment.

    It begins with the mark that this process has inherited, so a sweep after an ancestor finds its children too.
    """
    mark = f"{pid}-{os.urandom(8).hex()}"  # a fork of this process runs its own hosts
    return f"{_inherited_mark}/{mark}" if _inherited_mark else mark


def new_mark() -> str:
    """Return the mark for a host that is about to start."""
    return f"{mark_of(os.getpid())}/{next(_numbers)}"


def mark_of_main() -> str:
    """In a host, return main's mark."""
    return _inherited_mark.rpartition("/")[0]


def sweep_after_this_process() -> None:
    """Let the sweeper sweep after this process: start it, unless it is running already."""
    global _running
    with _starting:
        if not has_process_handles() or (_running is not None and _running.poll() is None):
            return
        _running = start_python(
            ["-I", "-S", str(Path(sweeper.__file__)), str(os.getpid()), mark_of(os.getpid())],
            {name: value for name, value in startup_context().variables.items() if name != sweeper.VARIABLE},
            _Sweeper,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # otherwise a reader of main's output would wait for the sweeper to end
            cwd="/",
        )
        _write("".join(f"{sweeper.FOLDER} {folder}\n" for folder in _folders))


def watch_this_process() -> None:
    """End all processes that this process starts from now on and leaves running when it ends."""
    end_children_with_this_process()
    if has_process_handles():
        keep_variable(sweeper.VARIABLE, mark_of(os.getpid()))
        sweep_after_this_process()


def remove_folder_at_end(folder: str) -> None:
    """Remove a folder after this process and its children have ended, on Linux even after `kill -9`."""
    if has_process_handles():
        sweep_after_this_process()
        _folders.append(folder)
        _write(f"{sweeper.FOLDER} {folder}\n")


def end_left_behind(host: ProcessTree, mark: str) -> None:
    """End everything that a dead host has left running."""
    if not has_process_handles():
        host.kill_all()
        return
    with suppress(OSError):  # at a system limit, which stops the host's replacement, with a message
        sweep_after_this_process()
        _write(f"{host.pid} {mark}\n")


def _write(lines: str) -> None:
    assert _running is not None, "it has been started"
    assert _running.stdin is not None, "opened with PIPE"
    with suppress(BrokenPipeError):  # it has just been killed
        os.write(_running.stdin.fileno(), lines.encode())  # at once, and in one piece
