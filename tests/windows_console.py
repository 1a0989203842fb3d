"""What the console asks a process on Windows, as the system does it: by a thread in that process."""

from __future__ import annotations

import ctypes
import sys

CTRL_C, CTRL_BREAK, CLOSE = 0, 1, 2


def ask(pid: int, event: int) -> None:
    """Let the handlers of a process be called; there need be no console, which CI and Wine without a terminal lack."""
    if sys.platform == "win32":
        kernel, everything = ctypes.WinDLL("kernel32"), 0x1FFFFF
        handle, word, pointer = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
        kernel.OpenProcess.restype = kernel.CreateRemoteThread.restype = handle
        kernel.OpenProcess.argtypes = [word, ctypes.c_int, word]
        kernel.CreateRemoteThread.argtypes = [handle, pointer, ctypes.c_size_t, pointer, pointer, word, pointer]
        kernel.CloseHandle.argtypes = [handle]
        routine = ctypes.cast(ctypes.WinDLL("kernelbase").CtrlRoutine, pointer)
        process = kernel.OpenProcess(everything, 0, pid)
        thread = kernel.CreateRemoteThread(process, None, 0, routine, event, 0, None)
        assert thread, ctypes.WinError()
        kernel.CloseHandle(thread)
        kernel.CloseHandle(process)
