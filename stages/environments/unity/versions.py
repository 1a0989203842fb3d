"""The versions that are told to Unity; apart from the protocol's messages, which need protobuf."""

from __future__ import annotations

COMMUNICATION_VERSION = "1.5.0"
"""The version of the protocol."""
PACKAGE_VERSION = "1.1.0"
"""The release of the Python package `mlagents` that this one stands for; Unity only shows it."""
