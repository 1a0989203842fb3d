"""The folder and the environment variables with which a run began; they hold for the whole run.

Users' code may change both for the whole process at any moment. So relative paths start from that folder, and programs
start with that folder and those variables. This module lies below all packages, as `place` does.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.forks import confine_forks


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The folder and variables of a process at its start, or when a run began in it."""

    folder: str
    """The working directory, absolute; empty if it has been removed."""
    variables: Mapping[str, str]

    @classmethod
    def present(cls) -> Surroundings:
        """Return the current ones."""
        try:
            folder = os.getcwd()
        except OSError:
            folder = ""
        return cls(folder, dict(os.environ))


_kept: Surroundings | None = None


def surroundings() -> Surroundings:
    """Return the kept surroundings, or else the current ones."""
    return _kept or Surroundings.present()


def keep_surroundings() -> None:
    """Keep the current surroundings until this process ends, unless some are kept; users' code may run from now on."""
    global _kept
    _kept = surroundings()
    confine_forks()


def keep_variable(name: str, value: str) -> None:
    """Set a variable for this process and for the programs that it starts."""
    global _kept
    os.environ[name] = value
    if _kept is not None:
        _kept = Surroundings(_kept.folder, {**_kept.variables, name: value})


@contextmanager
def kept_surroundings() -> Iterator[None]:
    """Keep the current surroundings within the context, unless some are kept."""
    global _kept
    before = _kept
    keep_surroundings()
    try:
        yield
    finally:
        _kept = before


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected blocking sockets, even where `socket.setdefaulttimeout` was called.

    Otherwise a child would inherit a non-blocking socket, and a thread that waits at one would time out.
    """
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(True)
    return pair


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return a path as it was meant when the run began: absolute."""
    return Path(surroundings().folder, path)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the folder in which the run began, if it is inside."""
    try:
        return str(Path(path).relative_to(surroundings().folder))
    except ValueError:
        return str(path)
