"""The working directory and environment variables at the start of a run, which apply to the entire run.

User code may change both at any time, for the entire process. Relative paths are therefore resolved against the initial
directory, and programs are started with that directory and the initial variables. Like `place`, this module imports
nothing from `config`, `queues`, `stages` or `pipeline`.
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
    """The working directory and variables at the start of a process, or at the start of a run in the process."""

    folder: str
    """The absolute working directory; empty if it was removed."""
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
    """Return the surroundings kept by this module, or the current ones if none are kept."""
    return _kept or Surroundings.present()


def keep_surroundings() -> None:
    """Keep the current surroundings until this process ends, unless some are already kept.

    Call this before user code.
    """
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
    """Return two connected blocking sockets, even if `socket.setdefaulttimeout` was called.

    With a default timeout, a child would inherit a non-blocking socket, and a thread that waits on it would time out.
    """
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(True)
    return pair


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path; relative paths are resolved against the directory in which the run started."""
    return Path(surroundings().folder, path)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the folder in which the run started, if the path is inside that folder."""
    try:
        return str(Path(path).relative_to(surroundings().folder))
    except ValueError:
        return str(path)
