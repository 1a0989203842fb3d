"""A Unity executable: where it lies, what it is started with, and where its log is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.unity.errors import UnityRefused

_EXTENSIONS = (".app", ".exe", ".x86_64", ".x86")
"""Of all platforms: a path is taken with any of them, and with none."""
_LOG_FLAG = "-logfile"
_NOT_THE_GAME = "UnityCrashHandler"


@dataclass(frozen=True, slots=True)
class Executable:
    """A Unity executable and how it is started; the same for all workers but for `no_graphics`."""

    path: Path
    """As the user gave it; with or without the extension of any platform."""
    arguments: tuple[str, ...] = ()
    """The user's own, after ours."""
    no_graphics: bool = False
    """Without a picture at all, which also means without observations of cameras."""
    log_folder: Path | None = None
    """Where `Player-<worker>.log` goes; None leaves that to Unity."""
    show_output: bool = False
    """Show its standard output and error among ours, instead of dropping them."""


def find_executable(path: Path, platform: str = sys.platform) -> Path:
    """Find the file to start.

    A file that is given exactly is taken. Otherwise the extension, of whichever platform, is replaced by this one's:
    on Linux `.x86_64`, `.x86` or none; on macOS the program in `<path>.app/Contents/MacOS`; on Windows `.exe`, or the
    one in the folder `<path>`.

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
    """Say so where there is a build, but of another platform."""
    bare = _bare(path)
    for extension, system in ((".app", "darwin"), (".exe", "win32"), (".x86_64", "linux")):
        found = bare.with_name(f"{bare.name}{extension}")
        if system != platform and found.exists():
            return f" {found} is a build for another system than this one ({platform}): build for this one."
    return ""


def _is_a_folder(path: Path, platform: str) -> str:
    """Name the program in a folder that was given in its place."""
    if platform == "darwin" or not path.is_dir():
        return ""
    kinds = ("*.exe",) if platform == "win32" else ("*.x86_64", "*.x86")
    programs = sorted(str(found) for kind in kinds for found in path.glob(kind))
    return f" It is a folder; meant is the program in it{': ' if programs else ''}{', '.join(programs)}."


def command_line(executable: Executable, port: int, worker_id: int) -> list[str]:
    """What to start: the program, the standard arguments in the order that Unity's users know, then their own.

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
    """The log that the executable was told to write; None if it wasn't told, or told to write to standard output."""
    after = iter(executable.arguments)
    for argument in after:
        if argument.lower() == _LOG_FLAG:
            said = next(after, "-")
            return None if said == "-" else Path(said)
    return None if executable.log_folder is None else _own_log(executable.log_folder, worker_id)


def _has_log_flag(arguments: Sequence[str]) -> bool:
    return any(argument.lower() == _LOG_FLAG for argument in arguments)


def _own_log(folder: Path, worker_id: int) -> Path:
    return folder.absolute() / f"Player-{worker_id}.log"


def tail(path: Path | None, lines: int = 15) -> str:
    """The end of a log, indented under a line that says whose it is; empty where there is nothing to show."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            found = file.read().decode(errors="replace").rstrip().splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join([f"\nThe end of {path}:", *(f"    {line}" for line in found)]) if found else ""
