"""A second thread for halves of a step that do not need each other: the same bits as one after the other, sooner."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

One = TypeVar("One")
Other = TypeVar("Other")


class SideThread:
    """Calls two functions at once, or one after the other as long as there is one thread to compute with.

    NumPy and torch let other threads go on while they compute. Unlike theirs this thread sleeps until there is work:
    where an actor needs the core as well, OpenMP's threads, which spin, take ten times as long as a single one.
    """

    def __init__(self) -> None:
        self._threads = 1
        self._executor: ThreadPoolExecutor | None = None

    def use(self, threads: int) -> None:
        """Compute with so many threads from now on: half of them on either side."""
        torch.set_num_threads(max(1, threads // 2))
        if threads != self._threads:
            self._threads = threads
            self._executor = (
                ThreadPoolExecutor(1, initializer=_begin, initargs=(threads // 2,)) if threads > 1 else None
            )

    def both(self, here: Callable[[], One], there: Callable[[], Other]) -> tuple[One, Other]:
        """Return what two functions return, the second of which may be called by the other thread."""
        if self._executor is None:
            return here(), there()
        other = self._executor.submit(there)
        try:
            one = here()
        except BaseException:
            other.exception()  # it writes to what the caller may use again
            raise
        return one, other.result()


def _begin(threads: int) -> None:
    """Compute as the thread of an update does: see `flushed_denormals`, and what is not finite is looked for later."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    np.seterr(all="ignore")
