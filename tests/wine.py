"""What Wine does otherwise than Windows, for tests that `make windows` runs."""

from __future__ import annotations

import ctypes
import sys

import pytest


def _is_here() -> bool:
    return sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")


needs_ends_of_sockets = pytest.mark.skipif(
    _is_here(), reason="of 80 sockets of killed processes Wine tells no end of 3, with Python's own calls alone too"
)
