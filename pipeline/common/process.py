"""This process and its child processes: imports, threads, signals, versions, resource usage."""

from __future__ import annotations

import gc
import importlib
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from headrace.paths import ROOT, on_linux
from headrace.process_tree import ProcessTree

if sys.platform != "win32":
    import resource  # imported early: at the limit on open files, no module can be opened


def allow_open_files(wanted: int) -> float:
    """Raise this process's limit on open files to `wanted`, as far as the system permits; return the new limit."""
    if sys.platform == "win32":
        return math.inf
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != limit < wanted:
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with suppress(ValueError, OSError):  # macOS has an additional limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    return math.inf if limit == resource.RLIM_INFINITY else limit


def describe_limit() -> str:
    """Return an error message for too many open files, with the limit and the remedy."""
    if sys.platform == "win32":
        return "too many files are open"
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "" if most == resource.RLIM_INFINITY else f", up to {most} without root privileges"
    return (
        f"the limit of {limit} open files has been reached. The main process needs about 100 per actor, plus 50: raise "
        f"the limit (`ulimit -n`{allowed}), or run fewer actors"
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in this context; at its end, exempt all live objects from later collections."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def import_early(modules: Sequence[str]) -> None:
    """Import modules in advance. Ignore errors, because the code that needs a module reports them."""
    with uncollected():
        for module in modules:
            with suppress(Exception):
                importlib.import_module(module)


def lacks_torch(what: str) -> str:
    """Return why PyTorch is needed and how to install it (docs/decisions/061); an empty text if it is installed."""
    if find_spec("torch") is not None:
        return ""
    return f'{what} needs PyTorch, which is not installed: run `pip install "headrace[train]"`'


def start_python(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    make: type[ProcessTree] = ProcessTree,
    **options: Any,
) -> ProcessTree:
    """Start a child process with this Python; the result's `pid` is that of the interpreter itself.

    Args:
        arguments: the arguments after the interpreter's name.
        environment: the child's environment variables.
        make: the class to create for the process.
        options: as for `ProcessTree`.

    Raises:
        OSError: if the process can't be started.
    """
    interpreter, more = interpreter_to_start()
    return make([interpreter, *arguments], shows=True, env={**environment, **more}, **options)


def interpreter_to_start(platform: str = sys.platform) -> tuple[str, dict[str, str]]:
    """Return the interpreter for a child of this Python, and the environment variables that it needs.

    In a virtual environment on Windows, `python.exe` is a launcher that starts the interpreter as a child with another
    process id. As `multiprocessing` does, we therefore start the interpreter itself and set an environment variable to
    the launcher's path, from which it finds the virtual environment. The interpreter removes that variable at once, so
    its own children don't see it.
    """
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    if platform != "win32" or os.path.normcase(base) == os.path.normcase(sys.executable):
        return sys.executable, {}
    return base, {"__PYVENV_LAUNCHER__": sys.executable}


def let_child_find_us(environment: dict[str, str]) -> None:
    """Let a child process import this copy of Headrace before it receives main's `sys.path`."""
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, environment.get("PYTHONPATH"))))


def follow_path_of_main(path: Sequence[str]) -> None:
    """Adopt main's module search path in a child prepared by `let_child_find_us`.

    Programs that this process starts inherit main's `PYTHONPATH`, without Headrace's folders.
    """
    sys.path[:] = path
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == ROOT:
        os.environ["PYTHONPATH"] = rest
        if not rest:
            del os.environ["PYTHONPATH"]


def default_in_forks(numbers: Sequence[signal.Signals]) -> None:
    """Reset signals to their default handlers in forked processes, which would otherwise ignore stop requests.

    A program started with exec gets the default handlers anyway, but would inherit ignored signals (SIG_IGN).
    """

    def restore() -> None:
        signal.set_wakeup_fd(-1)  # the descriptor belongs to our event loop
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=restore)


# For small networks, more threads only slow each other down. Libraries read these variables when NumPy is imported.
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def use_one_thread(environment: MutableMapping[str, str]) -> None:
    """Limit numeric libraries in a process with this environment to one thread, unless the user sets another number."""
    for name in VARIABLES:
        environment.setdefault(name, "1")


AUTOGROUP = Path("/proc/self/autogroup")
NICENESS = 5
"""A process that gives way gets about a third of the time that another process gets on the same core."""


def give_way() -> None:
    """Lower the priority of this process, which leads a session; on Windows, do nothing. Call it in the main thread."""
    if sys.platform != "win32":
        os.nice(NICENESS)
        threading.Thread(target=_let_session_give_way, name="priority", daemon=True).start()


def _let_session_give_way() -> None:
    """Lower the session's priority, which a desktop's Linux compares instead of the process's.

    A user without privileges may set one every tenth of a second, so some of several processes have to wait.
    """
    for _ in range(100):
        try:
            AUTOGROUP.write_text(str(NICENESS), encoding="ascii")
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:  # another system, or a kernel without such priorities
            return
        else:
            return


CONTROL_GROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use: those of its affinity, at most its CPU quota."""
    visible = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([visible, *map(math.ceil, cpu_quotas())]))


def cpu_quotas(groups: Path = Path("/proc/self/cgroup")) -> list[float]:
    """Return the numbers of cores to which this process's control groups limit it."""
    limits = _group_limits("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"), ("cpu.max",), groups)
    return [quota / period for quota, period in limits]


def usable_memory(information: Path = Path("/proc/meminfo"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """Return the bytes of memory that this process may use: those available, at most its limit; elsewhere infinity."""
    limits = [limit for (limit,) in _group_limits("memory", ("memory.limit_in_bytes",), ("memory.max",), groups)]
    with suppress(OSError):
        found = re.search(r"MemAvailable: +(\d+) kB", information.read_text(encoding="ascii"))
        limits += [1024 * int(found[1])] if found else []
    return min(limits, default=math.inf)


def _group_limits(
    controller: str, first: Sequence[str], second: Sequence[str], groups: Path
) -> Iterator[tuple[int, ...]]:
    """Yield the numbers in these files of each control group of this process that has a limit, of versions 1 and 2.

    In a container, the process may see its host's path, but only its own group, as the root.
    """
    with suppress(OSError):
        for line in groups.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            for mount in (controllers, controller if controllers else "unified"):
                folder = CONTROL_GROUPS / mount
                for part in ("", *path.split("/")):  # a group may use no more than those above it
                    folder /= part
                    with suppress(OSError, ValueError):  # no such group, or no limit
                        files = [
                            (folder / file).read_text(encoding="ascii") for file in (first if controllers else second)
                        ]
                        numbers = tuple(map(int, " ".join(files).split()))
                        if numbers[0] > 0:
                            yield numbers


def version_of(distribution: str, otherwise: str = "(not installed)") -> str:
    """Return a distribution's version, or `otherwise` if it is not installed, as in a checkout."""
    from importlib import metadata  # takes 20 ms, and most processes don't need it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return otherwise


def version_information() -> str:
    """Return the versions that belong in a bug report, in ML-Agents' format."""
    from headrace.stages.environments.engines.unity.versions import COMMUNICATION_VERSION

    parts = {
        "headrace": version_of("headrace"),
        "Communicator API": COMMUNICATION_VERSION,
        "PyTorch": version_of("torch"),
    }
    return "Version information:\n" + ",\n".join(f"  {name}: {version}" for name, version in parts.items())


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CPU_FIELDS = slice(11, 13)
"""Indices of user and system time in `/proc/<pid>/stat`, counted after the program's name."""


class ProcessUsage(NamedTuple):
    """The CPU time and memory that a process had used at a given time."""

    at: float
    """Time of the measurement in seconds, from the measuring process's monotonic clock."""
    cpu_s: float
    """Total CPU time in seconds, user plus system."""
    memory: int
    """Resident memory in bytes; a page that several processes share counts in each of them."""


def usage_lacks() -> str:
    """Return a message that names the package needed here to read processes' usage; empty if none is needed."""
    if on_linux() or _psutil() is not None:
        return ""
    return 'on this system, reading the CPU time and memory of processes needs psutil: pip install "headrace[monitor]"'


def read_usage(pid: int) -> ProcessUsage | None:
    """Return a process's usage; None if the process is gone or its usage can't be read here (`usage_lacks`)."""
    if not on_linux():
        return _usage_by_psutil(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    cpu_s = sum(map(int, text.rpartition(")")[2].split()[_CPU_FIELDS])) / _TICKS
    return ProcessUsage(time.monotonic(), cpu_s, pages * _PAGE)


@cache
def _psutil() -> Any:
    """Return the psutil package; None if it is not installed."""
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
