"""Threads that decode: for libraries that release the interpreter's lock while they do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

MOST_THREADS = 4
"""Other processes want the cores, too."""


def decode_each(decode: Callable[[int], None], count: int) -> None:
    """Call a function with each number below a count, in several threads, and wait for all.

    Raises:
        Exception: what the call with the least number raised of those that raised; the others are made all the same.
    """
    threads = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MOST_THREADS, count)
    if threads < 2:
        for number in range(count):
            decode(number)
        return
    errors: list[tuple[int, Exception]] = []

    def decode_part(first: int) -> None:
        for number in range(first, count, threads):
            try:
                decode(number)
            except Exception as error:  # for the caller, who wants the first one
                errors.append((number, error))

    list(_pool(threads).map(decode_part, range(threads)))
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "decoding")
