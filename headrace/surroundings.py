"""The working directory and environment variables at the start of a run; they hold for the whole run.

User code may change both for the whole process at any time. So relative paths are resolved against that directory, and
programs are started with that directory and those variables. Like `place`, this module imports no package.
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
    """The working directory and variables of a process at its start, or at the start of a run in it."""

    folder: str
    """The working directory, absolute; empty if it has been removed."""
    variables: Mapping[str, str]

    @classmethod
    def present(cls) -> Surroundings:
        """Return the current directory and variables."""
        try:
            folder = os.getcwd()
        except OSError:
            folder = ""
        return cls(folder, dict(os.environ))


_kept: Surroundings | None = None


def surroundings() -> Surroundings:
    """Return the kept surroundings; the current ones if none are kept."""
    return _kept or Surroundings.present()


def keep_surroundings() -> None:
    """Keep the current surroundings until this process ends, unless some are already kept. Call it before user code."""
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
    """Keep the current surroundings within the context, unless some are already kept."""
    global _kept
    before = _kept
    keep_surroundings()
    try:
        yield
    finally:
        _kept = before


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected blocking sockets, even where `socket.setdefaulttimeout` was called.

    Otherwise a child would inherit a non-blocking socket, and a thread waiting on it would time out.
    """
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(True)
    return pair


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path; a relative one is resolved against the directory in which the run began."""
    return Path(surroundings().folder, path)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the folder in which the run began, if it is inside."""
    try:
        return str(Path(path).relative_to(surroundings().folder))
    except ValueError:
        return str(path)
