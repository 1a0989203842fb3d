"""Windows features that Python does not expose: job objects and shutdown notifications.

A job object terminates a process together with everything that it started. A notification asks a process to shut down.

Import this module only on Windows.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import wintypes
from typing import Any, ClassVar

assert sys.platform == "win32"

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_native = ctypes.WinDLL("ntdll")


def _declare(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


_HANDLE, _BOOL, _DWORD, _NAME = wintypes.HANDLE, wintypes.BOOL, wintypes.DWORD, wintypes.LPCWSTR
_close_handle = _declare(_kernel.CloseHandle, _BOOL, _HANDLE)
_this_process = _declare(_kernel.GetCurrentProcess, _HANDLE)
_create_job = _declare(_kernel.CreateJobObjectW, _HANDLE, ctypes.c_void_p, _NAME)
_set_job = _declare(_kernel.SetInformationJobObject, _BOOL, _HANDLE, ctypes.c_int, ctypes.c_void_p, _DWORD)
_assign_job = _declare(_kernel.AssignProcessToJobObject, _BOOL, _HANDLE, _HANDLE)
_end_job = _declare(_kernel.TerminateJobObject, _BOOL, _HANDLE, wintypes.UINT)
_query_job = _declare(
    _kernel.QueryInformationJobObject, _BOOL, _HANDLE, ctypes.c_int, ctypes.c_void_p, _DWORD, ctypes.c_void_p
)
_open_process = _declare(_kernel.OpenProcess, _HANDLE, _DWORD, _BOOL, _DWORD)
_end_process = _declare(_kernel.TerminateProcess, _BOOL, _HANDLE, wintypes.UINT)
_resume = _declare(_native.NtResumeProcess, ctypes.c_long, _HANDLE)
_create_event = _declare(_kernel.CreateEventW, _HANDLE, ctypes.c_void_p, _BOOL, _BOOL, _NAME)
_open_event = _declare(_kernel.OpenEventW, _HANDLE, _DWORD, _BOOL, _NAME)
_set_event = _declare(_kernel.SetEvent, _BOOL, _HANDLE)
_await = _declare(_kernel.WaitForSingleObject, _DWORD, _HANDLE, _DWORD)
_sleep = _declare(_kernel.Sleep, None, _DWORD)
_session_of = _declare(_kernel.ProcessIdToSessionId, _BOOL, _DWORD, ctypes.POINTER(_DWORD))
_process_id = _declare(_kernel.GetCurrentProcessId, _DWORD)
_Handler = ctypes.WINFUNCTYPE(_BOOL, _DWORD)
_set_handler = _declare(_kernel.SetConsoleCtrlHandler, _BOOL, _Handler, _BOOL)

CREATE_SUSPENDED = 0x4
"""Process creation flag that makes the new process wait for `resume`."""
_PROCESS_IDS, _EXTENDED_LIMITS = 3, 9
_KILL_ON_JOB_CLOSE = 0x2000
_PROCESS_TERMINATE = 0x1
_FOR_EVER = 0xFFFFFFFF
_EVENT_MODIFY_STATE = 0x2
_BREAK, _CLOSE, _LOGOFF, _SHUTDOWN = 1, 2, 5, 6
"""Console events. On the last three, Windows gives the handler a few seconds before it ends the process."""


class _BasicLimits(ctypes.Structure):
    _fields_: ClassVar = [
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", _DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", _DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", _DWORD),
        ("SchedulingClass", _DWORD),
    ]


class _Limits(ctypes.Structure):
    _fields_: ClassVar = [
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


class _ProcessIds(ctypes.Structure):
    _fields_: ClassVar = [("assigned", _DWORD), ("count", _DWORD), ("ids", ctypes.c_size_t * 1024)]


class Job:
    """A job object: its processes, and everything that they start, end when the job's creator ends for any reason.

    `add` returns False if Windows can't create a job, or refuses to put a process into another job.
    """

    def __init__(self) -> None:
        self._handle = _create_job(None, None)
        limits = _Limits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
        self._works = bool(_set_job(self._handle, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)))

    def add(self, process: int | None = None) -> bool:
        """Put the process with this handle into the job; None means this process."""
        return self._works and bool(_assign_job(self._handle, _this_process() if process is None else process))

    def end(self) -> None:
        """End every process in the job."""
        _end_job(self._handle, 1)

    def end_others(self) -> None:
        """End every process in the job except this one, which the job will no longer end."""
        processes = _ProcessIds()
        _query_job(self._handle, _PROCESS_IDS, ctypes.byref(processes), ctypes.sizeof(processes), None)
        for pid in processes.ids[: processes.count]:
            if pid != _process_id() and (process := _open_process(_PROCESS_TERMINATE, False, pid)):
                _end_process(process, 1)
                _close_handle(process)
        _set_job(self._handle, _EXTENDED_LIMITS, ctypes.byref(_Limits()), ctypes.sizeof(_Limits))

    def __del__(self) -> None:
        _close_handle(self._handle)


def resume(process: int) -> None:
    """Resume the process with this handle, which was created with `CREATE_SUSPENDED`."""
    _resume(process)


_handlers: list[object] = []
"""References to the callbacks that Windows calls, to protect the callbacks from garbage collection."""


def on_console_end(ends: Callable[[], object], breaks: Callable[[], object]) -> Callable[[], None]:
    """Call functions on console events, in threads created by Windows; return a function that unregisters them.

    Args:
        ends: called when the console closes, the user logs off or Windows shuts down. Its thread is blocked until this
            process ends, because returning would end the process; Windows waits 5 seconds when a console closes.
        breaks: called on Ctrl-Break, which then has no other effect.
    """
    session, held = _DWORD(), threading.Event()
    _session_of(_process_id(), ctypes.byref(session))

    def handle(event: int) -> bool:
        if event == _LOGOFF and session.value == 0:
            return True  # a service, which is notified of every user's log-off
        if event == _BREAK:
            breaks()
            return True
        if event not in (_CLOSE, _LOGOFF, _SHUTDOWN):
            return False  # Python's own handler converts Ctrl-C to a signal
        held.set()
        ends()
        _sleep(_FOR_EVER)
        return True

    def leave() -> None:
        if not held.is_set():  # Windows may hold the lock on its handler list
            _set_handler(handler, False)

    handler = _Handler(handle)
    _handlers.append(handler)
    _set_handler(handler, True)
    return leave


@contextmanager
def requests_heard(name: str, tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell`, in a thread, whenever another process of this user calls `request` with this name."""
    event = _create_event(None, False, False, name)
    over = threading.Event()

    def hear() -> None:
        while _await(event, _FOR_EVER) == 0 and not over.is_set():
            tell()

    thread = threading.Thread(target=hear, name="requests of other processes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        _set_event(event)
        thread.join()
        _close_handle(event)


def request(name: str) -> None:
    """Trigger `tell` in the process that listens for requests with this name, if there is one."""
    event = _open_event(_EVENT_MODIFY_STATE, False, name)
    if event:
        _set_event(event)
        _close_handle(event)
