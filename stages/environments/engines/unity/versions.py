"""The versions sent to Unity. They are separate from the protocol's messages, because those need protobuf."""

from __future__ import annotations

COMMUNICATION_VERSION = "1.5.0"
"""The version of the protocol."""
PACKAGE_VERSION = "1.1.0"
"""The release of the Python package `mlagents` that this one replaces; Unity only displays it."""
