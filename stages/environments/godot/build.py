"""A build of a game made with Godot: its path, its command line, its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.stages.environments.programs.executables import find_executable

ENGINE = "Godot"
_WITHOUT_WINDOW = ("--disable-render-loop", "--headless")
_FIXED_FPS = "--fixed-fps"
_SEED = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class GodotBuild:
    """A build and its options, equal for all of a run's but for the seed and the parameters."""

    path: Path
    """As given by the user, with or without the extension of any platform."""
    arguments: tuple[str, ...] = ()
    """The user's arguments, after ours."""
    headless: bool = True
    """Without a window, and so without pictures of cameras."""
    speedup: float | None = 1.0
    """Times as fast as the game is meant to be: its physics' rate and its time scale; None: as its scene says."""
    fixed_fps: int | None = None
    """Frames per second of game time, however long they take: as fast as the machine can; None: in real time."""
    action_repeat: int | None = None
    """Physics frames between decisions; None: as its scene says."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Environment parameters at its start, as arguments."""
    log_folder: Path | None = None
    """Folder of `Godot-<worker>.log`, with its output; None for no log."""
    show_output: bool = False
    """Show its output among ours, instead of writing it to a log."""


def command_line(build: GodotBuild, port: int, seed: int) -> list[str]:
    """The command line: the program, then what the engine and the addon read, then the user's arguments.

    Raises:
        ProgramRefused: if there is no such executable.
    """
    command = [str(find_executable(build.path, ENGINE)), f"--port={port}", f"--env_seed={seed & _SEED}"]
    if build.headless:
        command += _WITHOUT_WINDOW
    if build.fixed_fps is not None:
        command += [_FIXED_FPS, str(build.fixed_fps)]
    if build.action_repeat is not None:
        command.append(f"--action_repeat={build.action_repeat}")
    if build.speedup is not None:
        command.append(f"--speedup={build.speedup:g}")
    command += [f"--{name}={value:g}" for name, value in build.parameters.items()]
    return [*command, *build.arguments]


def log_of(build: GodotBuild, worker_id: int) -> Path | None:
    """The file that a build's output goes to; None without one."""
    if build.log_folder is None or build.show_output:
        return None
    return build.log_folder.absolute() / f"Godot-{worker_id}.log"
