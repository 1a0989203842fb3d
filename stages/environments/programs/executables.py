"""The executable of a game, whatever the platform that its path was written for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.stages.environments.programs.errors import ProgramRefused

_EXTENSIONS = (".app", ".exe", ".x86_64", ".x86")
"""Of all platforms: a path may have any of them, or none."""
_NOT_THE_GAME = "UnityCrashHandler"


def find_executable(path: Path, engine: str, platform: str = sys.platform) -> Path:
    """Find the file to start.

    An existing file is used as it is. Otherwise any platform's extension is replaced by this platform's: on Linux
    `.x86_64`, `.x86` or none; on macOS the program in `<path>.app/Contents/MacOS`; on Windows `.exe`, or the one in the
    folder `<path>`.

    Args:
        path: as the user gives it, with or without the extension of any platform.
        engine: the engine's name, for messages.
        platform: as `sys.platform`.

    Raises:
        ProgramRefused: if there is none.
    """
    looked_at = []
    for candidate in _candidates(path, platform):
        if candidate.is_file():
            return candidate.absolute()
        looked_at.append(str(candidate))
    looked = ", ".join(dict.fromkeys(looked_at))
    why = _built_for_another(path, platform) or _is_a_folder(path, platform)
    raise ProgramRefused(
        f"no {engine} executable at {path}: none of {looked} is a file.{why} "
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
