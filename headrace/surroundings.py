"""Where a run began, and with which environment variables; they hold for as long as it lasts.

Code of users may change both for the whole process, at any moment. So relative paths are taken from that folder, and
what is started has that folder and those variables. Below all packages, as `place` is.
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
    """What a process was started with, or had when a run began in it."""

    folder: str
    """The working directory, absolute; empty if it has been removed."""
    variables: Mapping[str, str]

    @classmethod
    def present(cls) -> Surroundings:
        """Those of now."""
        try:
            folder = os.getcwd()
        except OSError:
            folder = ""
        return cls(folder, dict(os.environ))


_kept: Surroundings | None = None


def surroundings() -> Surroundings:
    """Return those that are kept, else those of now."""
    return _kept or Surroundings.present()


def keep_surroundings() -> None:
    """Keep those of now for as long as this process lives, unless some are kept; code of users may run from now on."""
    global _kept
    _kept = surroundings()
    confine_forks()


def keep_variable(name: str, value: str) -> None:
    """Set a variable for this process and for what it starts."""
    global _kept
    os.environ[name] = value
    if _kept is not None:
        _kept = Surroundings(_kept.folder, {**_kept.variables, name: value})


@contextmanager
def kept_surroundings() -> Iterator[None]:
    """Keep those of now within, unless some are kept."""
    global _kept
    before = _kept
    keep_surroundings()
    try:
        yield
    finally:
        _kept = before


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that block, also where `socket.setdefaulttimeout` was called.

    A child that takes one over would otherwise find it non-blocking, and a thread that waits at one would be woken.
    """
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(True)
    return pair


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return a path as it was meant when the run began."""
    return Path(surroundings().folder, path)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as people write it who are in the folder in which the run began."""
    try:
        return str(Path(path).relative_to(surroundings().folder))
    except ValueError:
        return str(path)
