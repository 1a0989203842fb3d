"""Freed memory stays with a learner's process, for its next tensors."""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # numbers of glibc's malloc.h
_ALWAYS, _OF_OLDER = 1 << 30, 1 << 25  # older ones of glibc take no more than the latter
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process keep memory that it frees instead of giving it back to the system; True if that is so.

    The system clears each page that it gives out: of an update from pictures, whose tensors are of tens of megabytes
    each and live for milliseconds, that is a sixth. Only glibc can be told; elsewhere nothing is changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    kept = mallopt(_MMAP_THRESHOLD, _ALWAYS) or mallopt(_MMAP_THRESHOLD, _OF_OLDER)
    return bool(kept and mallopt(_TRIM_THRESHOLD, _NEVER))
