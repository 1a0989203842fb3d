"""How tests start the stand-in of a game made with Godot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.godot.game import GodotBuild, GodotGame

GAME = Path(__file__).with_name("godot_game.py")


def build_in(folder: Path) -> Path:
    """A build of the stand-in; its path is without its extension, as users give it."""
    if sys.platform == "win32":
        pytest.skip("the stand-in's build is a script, and Windows starts none")
    script = folder / "game.x86_64"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{GAME}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return folder / "game"


def game_of(folder: Path, *arguments: str, timeout_s: float = 30.0, max_message_mib: int = 8) -> GodotGame:
    """A worker that starts the stand-in."""
    build = GodotBuild(build_in(folder), arguments, log_file=folder / "Godot-0.log")
    return GodotGame(GameSettings(0, 0, 7, timeout_s, max_message_mib), build)
