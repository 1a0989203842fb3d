"""Versions of the installed packages, for `--version`, the first lines of a run, and its status file."""

from __future__ import annotations

from importlib import metadata


def version_of(distribution: str, otherwise: str = "(not installed)") -> str:
    """Return the version of an installed distribution; a checkout may be run without being installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return otherwise


def version_information() -> str:
    """Return the versions that a bug report should state, in lines as ML-Agents has them."""
    from headrace.stages.environments.unity.versions import COMMUNICATION_VERSION

    parts = {
        "headrace": version_of("headrace"),
        "Communicator API": COMMUNICATION_VERSION,
        "PyTorch": version_of("torch"),
    }
    return "Version information:\n" + ",\n".join(f"  {name}: {version}" for name, version in parts.items())
