"""The versions sent to Unity. They are separate from the protocol's messages, because those need protobuf."""

from __future__ import annotations

COMMUNICATION_VERSION = "1.5.0"
"""The version of the protocol."""
PACKAGE_VERSION = "1.1.0"
"""The release of the Python package `mlagents` that this one replaces; Unity only displays it."""
INTERLEAVED_PACKAGES = ("3.0.0-exp.1", "3.0.0")
"""Versions of com.unity.ml-agents that send uncompressed images pixel by pixel, under a shape with the channels first.
Their models in Unity read the channels one after the other, and so do those of ML-Agents' trainer, which sees noise."""
