"""A disk without room, by the system's own limit on the size of files: what goes beyond it is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Let every write of this process beyond `size` bytes of a file fail with `EFBIG`."""
    resource = pytest.importorskip("resource", reason="there is no such limit on Windows")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
