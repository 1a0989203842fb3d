"""Signals in processes that are forked from ours and run on without another program, as those of `multiprocessing`."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence


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
