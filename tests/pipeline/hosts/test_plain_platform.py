"""`HEADRACE_PLATFORM=plain`: nothing that Linux alone has is used, as elsewhere."""

from __future__ import annotations

import ctypes
import os

import pytest

from headrace.paths import has_process_handles
from headrace.pipeline.hosts.parent_death import die_with
from headrace.pipeline.hosts.run_host import keep_freed_memory
from headrace.queues.platform import create_segment


@pytest.fixture
def refused(monkeypatch):
    """What was called of Linux alone."""
    called = []
    for module, name in ((os, "memfd_create"), (os, "pidfd_open"), (ctypes, "CDLL")):
        monkeypatch.setattr(module, name, lambda *_, name=name: called.append(name), raising=False)
    monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
    return called


def test_plain_turns_off_what_linux_alone_has(refused):
    create_segment(4096).close()
    die_with(os.getppid())
    assert not keep_freed_memory()
    assert not has_process_handles()
    assert refused == []
