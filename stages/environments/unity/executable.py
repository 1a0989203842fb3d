"""A Unity executable: its path, its command line, its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.stages.environments.programs.process import find_executable

ENGINE = "Unity"
_LOG_FLAG = "-logfile"


@dataclass(frozen=True, slots=True)
class Executable:
    """A Unity executable and its options, equal for all workers except `no_graphics`."""

    path: Path
    """As given by the user, with or without the extension of any platform."""
    arguments: tuple[str, ...] = ()
    """The user's arguments, after ours."""
    no_graphics: bool = False
    """Without rendering, and so without camera observations."""
    log_folder: Path | None = None
    """Folder of `Player-<worker>.log`; None for Unity's default."""
    show_output: bool = False
    """Show its standard output and error among ours, instead of dropping them."""


def command_line(executable: Executable, port: int, worker_id: int) -> list[str]:
    """The command line: the program, the standard arguments in ML-Agents' order, then the user's.

    Raises:
        ProgramRefused: if there is no such executable.
    """
    command = [str(find_executable(executable.path, ENGINE))]
    if executable.no_graphics:
        command += ["-nographics", "-batchmode"]
    command += ["--mlagents-port", str(port)]
    if executable.log_folder is not None and not _has_log_flag(executable.arguments):
        command += ["-logFile", str(_own_log(executable.log_folder, worker_id))]
    return [*command, *executable.arguments]


def player_log(executable: Executable, worker_id: int) -> Path | None:
    """The log file named on the command line; None without one, or if it is standard output."""
    after = iter(executable.arguments)
    for argument in after:
        if argument.lower() == _LOG_FLAG:
            value = next(after, "-")
            return None if value == "-" else Path(value)
    return None if executable.log_folder is None else _own_log(executable.log_folder, worker_id)


def _has_log_flag(arguments: Sequence[str]) -> bool:
    return any(argument.lower() == _LOG_FLAG for argument in arguments)


def _own_log(folder: Path, worker_id: int) -> Path:
    return folder.absolute() / f"Player-{worker_id}.log"
