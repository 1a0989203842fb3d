"""A Unity executable: its path, its command line, its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.unity.errors import UnityRefused

_EXTENSIONS = (".app", ".exe", ".x86_64", ".x86")
"""Of all platforms: a path may have any of them, or none."""
_LOG_FLAG = "-logfile"
_NOT_THE_GAME = "UnityCrashHandler"


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


def find_executable(path: Path, platform: str = sys.platform) -> Path:
    """Find the file to start.

    An existing file is used as it is. Otherwise any platform's extension is replaced by this platform's: on Linux
    `.x86_64`, `.x86` or none; on macOS the program in `<path>.app/Contents/MacOS`; on Windows `.exe`, or the one in the
    folder `<path>`.

    Raises:
        UnityRefused: if there is none.
    """
    looked_at = []
    for candidate in _candidates(path, platform):
        if candidate.is_file():
            return candidate.absolute()
        looked_at.append(str(candidate))
    looked = ", ".join(dict.fromkeys(looked_at))
    why = _built_for_another(path, platform) or _is_a_folder(path, platform)
    raise UnityRefused(
        f"no Unity executable at {path}: none of {looked} is a file.{why} "
        f"The path is taken from {Path.cwd()}; give it with --env or env_settings.env_path"
    )


def _bare(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _EXTENSIONS else path


def _candidates(path: Path, platform: str) -> Iterator[Path]:
    bare = _bare(path)
    if platform == "darwin":
        program = bare.with_name(f"{bare.name}.app") / "Contents" / "MacOS"
        yield program / bare.name
        yield from sorted(program.glob("*"))
        yield path
    elif platform == "win32":
        yield bare.with_name(f"{bare.name}.exe")
        yield from (found for found in sorted(bare.glob("*.exe")) if not found.name.startswith(_NOT_THE_GAME))
    else:
        if path.suffix not in (".app", ".exe"):
            yield path
        yield from (bare.with_name(f"{bare.name}{extension}") for extension in (".x86_64", ".x86", ""))


def _built_for_another(path: Path, platform: str) -> str:
    """A hint if there is a build for another platform."""
    bare = _bare(path)
    for extension, system in ((".app", "darwin"), (".exe", "win32"), (".x86_64", "linux")):
        found = bare.with_name(f"{bare.name}{extension}")
        if system != platform and found.exists():
            return f" {found} is a build for another system than this one ({platform}): build for this one."
    return ""


def _is_a_folder(path: Path, platform: str) -> str:
    """A hint if the path is a folder with the program in it."""
    if platform == "darwin" or not path.is_dir():
        return ""
    kinds = ("*.exe",) if platform == "win32" else ("*.x86_64", "*.x86")
    programs = sorted(str(found) for kind in kinds for found in path.glob(kind))
    return f" It is a folder; meant is the program in it{': ' if programs else ''}{', '.join(programs)}."


def command_line(executable: Executable, port: int, worker_id: int) -> list[str]:
    """The command line: the program, the standard arguments in ML-Agents' order, then the user's.

    Raises:
        UnityRefused: if there is no such executable.
    """
    command = [str(find_executable(executable.path))]
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
