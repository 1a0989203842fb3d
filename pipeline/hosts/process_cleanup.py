"""What processes leave behind, games above all, is ended when they have ended, in whatever way; `sweeper` does it."""

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
    """The process that sweeps. It outlives this one by design, of which Python would warn at the exit."""

    def __del__(self) -> None:
        pass


_OWN = os.environ.get(sweeper.VARIABLE, "")
"""In a child: its mark."""
_KILLED_S = 0.3
"""Seconds in which a sweeper that lives has killed a child whose main is gone."""
_running: ProcessTree | None = None
_hosts: dict[int, str] = {}
"""Mark by process id, of those that may be running."""
_folders: list[str] = []
_telling = threading.Lock()
"""The page's server starts a host of its own, in a thread of its own."""


@functools.cache
def mark_of(pid: int) -> str:
    """Return the mark of this process: the value of `sweeper.VARIABLE` in the environment of what it starts."""
    return f"{pid}-{os.urandom(8).hex()}"  # a fork of this process runs hosts of its own


def sweeps() -> bool:
    """Return True if there is a sweeper; elsewhere main ends a dead host's process group, and nothing more."""
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
        for ended in [each for each in _hosts if not Path(f"/proc/{each}").exists()]:
            del _hosts[ended]
        _hosts[pid] = mark
        _tell(_line(pid, mark))


def watch_this_process() -> None:
    """Have ended what this process will leave behind: what it starts from now on, that is not there yet."""
    end_children_with_this_process()
    if sweeps():
        keep_variable(sweeper.VARIABLE, mark_of(os.getpid()))
        _tell("")


def remove_folder_at_end(folder: str) -> None:
    """Have a folder removed when this process has ended, and with it what it has started."""
    if sweeps():
        _folders.append(folder)
        _tell(_line(sweeper.FOLDER, folder))


def end_what_main_left() -> None:
    """In a child whose main is gone: end its group where nothing sweeps, and start a sweeper if that is gone too."""
    main = _OWN.partition("/")[0]
    if not sweeps():
        end_group()
    elif main:
        if sweeper.is_there(main):
            time.sleep(_KILLED_S)
        with suppress(OSError):
            _start(main, _line(os.getpid(), _OWN))


def end_group() -> None:
    """Where nothing sweeps: kill this process with its group; on Windows its job ends with main."""
    if not sweeps() and hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)


def _line(which: object, what: str) -> str:
    return f"{which} {what}\n"


def _tell(line: str) -> None:
    """Write to this process's sweeper, which is started when it is first needed, or was killed."""
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
    """Start the sweeper again as soon as it is killed; one that fails by itself would do so again."""
    if killed.wait() < 0 and killed is _running:
        with suppress(OSError):
            _tell("")


def _start(mark: str, lines: str) -> ProcessTree:
    """Start a sweeper for what a process, given by its mark, and others will leave."""
    started = start_python(
        ["-I", "-S", str(Path(sweeper.__file__)), mark],
        {name: value for name, value in surroundings().variables.items() if name != sweeper.VARIABLE},
        _Sweeper,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # whoever reads main's output to its end need not wait for the sweeper
        cwd="/",
    )
    _write(started, _line(mark.partition("-")[0], mark) + lines)
    return started


def _write(process: ProcessTree, lines: str) -> None:
    assert process.stdin is not None, "asked for with PIPE"
    with suppress(BrokenPipeError):  # it was killed this moment
        process.stdin.write(lines.encode())
        process.stdin.flush()
