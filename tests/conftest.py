"""What all tests share: virtual time for those that ask for it, fixed seeds, and hypothesis' settings."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import numpy as np
import properties  # registers the profiles  # noqa: F401
import pytest
from hypothesis import settings
from virtual_time import VirtualTimeLoop

from headrace import startup_context
from headrace.pipeline.common import global_state_guard

TESTS = Path(__file__).parent
WHOLE_RUNS = ("end_to_end", "chaos")
ON_WINDOWS_TOO = ("config", "queues", "stages")
"""What `make windows` runs of these folders: all but the slow and, of stages, the lengthy."""
SLOW_S = 1800
"""The time limit of a slow test that names none: a busy machine is no failure."""

# Beside other workers on few cores, two threads of torch that wait for each other take a hundred times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Returned slabs are overwritten in all tests and in the processes that they start: a use after return shows.
os.environ.setdefault("HEADRACE_POISON", "1")

# Trainers refuse a trajectory that comes twice, in all tests and the processes that they start.
os.environ.setdefault("HEADRACE_DELIVERIES", "once")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: run in an event loop that never waits")
    settings.load_profile("thorough" if runs_slow_tests(config) else "quick")


def runs_slow_tests(config: pytest.Config) -> bool:
    return config.getoption("markexpr") == "slow"


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = _folder(item.path)
        if folder in WHOLE_RUNS:
            item.add_marker("lengthy")
        if folder in ON_WINDOWS_TOO and not (folder == "stages" and item.get_closest_marker("lengthy")):
            item.add_marker("windows_too")
        if sys.platform != "win32" and item.get_closest_marker("windows"):
            item.add_marker(pytest.mark.skip(reason="needs Windows; `make windows` runs it, under Wine"))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))
        if runs_slow_tests(config) and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("slow")
    items.sort(key=place_in_order(items))


@functools.cache  # many tests share a file
def _folder(path: Path) -> str:
    """The folder below `tests` that a test lies in; empty for one that lies elsewhere."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin to read a folder at another place: what one has compiled by then, the others need not."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory):
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = report.result[first:] + report.result[:first]
    return report


def place_in_order(items: list[pytest.Item]) -> Callable[[pytest.Item], tuple[int, int, Path]]:
    """Files of many long tests first, so that what workers do last, each for itself, is short.

    All workers have the same order.
    """
    long = Counter(item.path for item in items if _is_long(item))
    count = Counter(item.path for item in items)
    return lambda item: (-long[item.path], -count[item.path], item.path)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("lengthy") is not None and item.get_closest_marker("slow") is None


def pytest_sessionstart() -> None:
    gc.disable()  # nothing that is imported or collected is garbage, and looking for it takes a fifth of the time


def pytest_collection_finish() -> None:
    for logger in map(logging.getLogger, [*logging.root.manager.loggerDict]):
        if logger.name.startswith(("torch", "c10d", "strobelight")):
            logger.propagate = True  # else pytest adds handlers to each of forty, six times a test: a millisecond
    gc.freeze()  # else each full collection looks through ten thousand tests, and the modules that they import
    gc.enable()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)  # one for all of it: eleven thousand tests pay for each
def a_process_of_its_own() -> Iterator[None]:
    """What a host or a command changes for good in its process, which in tests is this one, is as it was before.

    Tests should not draw from the global generators; those that do draw the same each time.
    """
    random.seed(0)
    np.random.seed(0)
    ours = logging.getLogger("headrace")
    level, propagate, handlers = ours.level, ours.propagate, [*ours.handlers]
    yield
    global_state_guard._kept = startup_context._kept = None
    ours.setLevel(level)
    ours.propagate, ours.handlers = propagate, handlers
    logging.lastResort.setFormatter(None)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls a command's `main` with arguments, looks at its exit status and returns what it has said."""

    def call(main: Callable[[list[str]], int], *arguments: str, status: int = 0) -> str:
        with monkeypatch.context() as patch:
            for name, value in os.environ.items():
                patch.setenv(name, value)  # what the command sets is for its own process
            ended = main([*arguments])
        told = "".join(capsys.readouterr())
        assert ended == status, told
        return told

    return call
