"""Imports: how a child process finds this Headrace, and of much at a time.

Before a run much is imported without garbage collection, which takes a sixth of the time for nothing.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.place import ROOT


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
