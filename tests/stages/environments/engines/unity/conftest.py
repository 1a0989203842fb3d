"""What tests of Unity share: a free port, and word of a worker that listens for the Editor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
import unity_runs


@pytest.fixture
def free_port() -> int:
    """One that is free."""
    return unity_runs.free_port()


@pytest.fixture
def listening(caplog: pytest.LogCaptureFixture) -> Iterator[asyncio.Event]:
    """Set as the worker says that it listens, which is what its user acts on."""
    event = asyncio.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Listening on port"):
                event.set()

    caplog.set_level("INFO")
    logging.getLogger("headrace.stages.environments.engines.game").addHandler(handler := Watch())
    yield event
    logging.getLogger("headrace.stages.environments.engines.game").removeHandler(handler)
