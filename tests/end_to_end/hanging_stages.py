"""Stages that hang in a way of one's choice; tests copy this file next to their configurations."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.stages import Stage, TrajectoryBatch

HANGS = Path(__file__).with_name("hangs")
"""A file beside the configuration that is there once something hangs."""


def hang(how: str) -> None:
    """Never return.

    Args:
        how: `compute`, `sleep`, or `lock`: within a C call that holds Python's lock.
    """
    HANGS.write_text(how)
    while how == "compute":
        pass
    if how == "lock":
        ctypes.PyDLL(None).sleep(10**6)
    time.sleep(1e9)


class Hangs(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Never comes to the end of its fifth item."""

    def __init__(self, how: str = "compute") -> None:
        self._how = how
        self._items = 0

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        self._items += 1
        if self._items == 5:
            hang(self._how)
        yield batch
