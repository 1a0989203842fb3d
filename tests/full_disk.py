"""A disk without room, by the system's own limit on the size of files: what goes beyond it is refused."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Let every write of this process beyond `size` bytes of a file fail with `EFBIG`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
