"""Imports of much at a time, before a run: without garbage collection, which takes a sixth of the time for nothing."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


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
