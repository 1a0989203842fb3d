"""What all tests share: virtual time for those that ask for it, fixed seeds, and hypothesis' settings."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from virtual_time import VirtualTimeLoop

# Beside other workers on few cores, two threads of torch that wait for each other take a hundred times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Returned slabs are overwritten in all tests and in the processes that they start: a use after return shows.
os.environ.setdefault("HEADRACE_POISON", "1")

# The two noisy cores of a test machine say nothing about a property, so time is no criterion.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "headrace"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: run in an event loop that never waits")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Nobody should draw from the global generators; who does at least draws the same each time."""
    random.seed(0)
    np.random.seed(0)
