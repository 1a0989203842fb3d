"""This process, and how a child becomes one of ours: imports, threads, signals, versions, usage."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from headrace.place import ROOT, on_linux
from headrace.process_tree import ProcessTree

if sys.platform != "win32":
    import resource  # here, for at the limit nothing can be imported


def describe_limit() -> str:
    """Say that too many files are open, how many may be, and what to do."""
    if sys.platform == "win32":
        return "too many files are open"
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "" if most == resource.RLIM_INFINITY else f", without special rights up to {most}"
    return (
        f"the limit of {limit} open files is reached. Main needs some 100 for each actor and 50 more: raise the limit "
        f"(`ulimit -n`{allowed}), or let fewer actors run"
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage within; what is there at the end is not looked through by later collections either."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def import_early(modules: Sequence[str]) -> None:
    """Import modules that will be needed; where one fails, whoever needs it will say what is wrong."""
    with uncollected():
        for module in modules:
            with suppress(Exception):
                importlib.import_module(module)


def start_python(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    make: type[ProcessTree] = ProcessTree,
    shows: bool = True,
    **options: Any,
) -> ProcessTree:
    """Start this Python once more; its `pid` is that of the interpreter.

    Args:
        arguments: what follows the interpreter's name.
        environment: the child's.
        make: the class of the process.
        shows: as for `ProcessTree`.
        options: as for `ProcessTree`.

    Raises:
        OSError: if it can't be started.
    """
    interpreter, more = interpreter_to_start()
    return make([interpreter, *arguments], shows=shows, env={**environment, **more}, **options)


def interpreter_to_start(platform: str = sys.platform) -> tuple[str, dict[str, str]]:
    """Return the interpreter that a child of this Python is, and the variables that it needs.

    In a virtual environment on Windows `python.exe` is a launcher, which has the interpreter for a child and another
    process id. As `multiprocessing` does, the interpreter is started in its place, and told the launcher's name, by
    which it finds the environment; it drops that variable at once, so programs that it starts don't see it.
    """
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    if platform != "win32" or os.path.normcase(base) == os.path.normcase(sys.executable):
        return sys.executable, {}
    return base, {"__PYVENV_LAUNCHER__": sys.executable}


def let_child_find_us(environment: dict[str, str]) -> None:
    """Let a child process import this Headrace before it is told main's `sys.path`."""
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, environment.get("PYTHONPATH"))))


def follow_path_of_main(path: Sequence[str]) -> None:
    """Find modules where main does, in a child that `let_child_find_us` has prepared.

    Programs that this process starts inherit main's `PYTHONPATH`, so that they find no folder of ours there.
    """
    sys.path[:] = path
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == ROOT:
        os.environ["PYTHONPATH"] = rest
        if not rest:
            del os.environ["PYTHONPATH"]


def default_in_forks(numbers: Sequence[signal.Signals]) -> None:
    """Give forked processes the defaults: they would not end when they are terminated, as our handlers mean the run.

    What is started as a program has the defaults anyway, unless a signal is ignored (SIG_IGN), which it would inherit.
    """

    def restore() -> None:
        signal.set_wakeup_fd(-1)  # it leads to our own event loop
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=restore)


# For small networks more threads only get into each other's way. Libraries read these variables when NumPy is imported.
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def use_one_thread(environment: MutableMapping[str, str]) -> None:
    """Let numeric libraries in a process of this environment use one thread, unless the user has set another number."""
    for name in VARIABLES:
        environment.setdefault(name, "1")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version_of(distribution: str, otherwise: str = "(not installed)") -> str:
    """Return the version of an installed distribution; a checkout may be run without being installed."""
    from importlib import metadata  # twenty milliseconds, which most processes can do without

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return otherwise


def version_information() -> str:
    """Return the versions that a bug report should state, in lines as ML-Agents has them."""
    from headrace.stages.environments.unity.versions import COMMUNICATION_VERSION

    parts = {
        "headrace": version_of("headrace"),
        "Communicator API": COMMUNICATION_VERSION,
        "PyTorch": version_of("torch"),
    }
    return "Version information:\n" + ",\n".join(f"  {name}: {version}" for name, version in parts.items())


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CPU_FIELDS = slice(11, 13)
"""User and system time, counted behind the name of the program."""


class ProcessUsage(NamedTuple):
    """What a process used up to some time."""

    at: float
    """When, by the monotonic clock of who looked, or was told."""
    cpu_s: float
    """CPU time in all."""
    memory: int
    """Resident bytes; pages that several processes share count in each."""


def usage_lacks() -> str:
    """Return what reading the usage of processes lacks here; empty if nothing."""
    if _reads_proc() or _psutil() is not None:
        return ""
    return "CPU and memory of processes are read by the package psutil here: pip install 'headrace[monitor]'"


def read_usage(pid: int) -> ProcessUsage | None:
    """Return what a process uses; None if it is gone, or nothing tells (`usage_lacks`)."""
    if not _reads_proc():
        return _usage_by_psutil(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    cpu_s = sum(map(int, text.rpartition(")")[2].split()[_CPU_FIELDS])) / _TICKS
    return ProcessUsage(time.monotonic(), cpu_s, pages * _PAGE)


def _reads_proc() -> bool:
    return on_linux()


@cache
def _psutil() -> Any:
    """The package psutil; None if it is not installed."""
    return importlib.import_module("psutil") if find_spec("psutil") is not None else None


def _usage_by_psutil(pid: int) -> ProcessUsage | None:
    psutil = _psutil()
    if psutil is None:
        return None
    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info().rss
    except psutil.Error:
        return None
    return ProcessUsage(time.monotonic(), times.user + times.system, memory)
