"""Windows of environments that draw themselves on a screen (`render_mode: human` of Gymnasium and PettingZoo)."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

from headrace.stages.errors import StageError

HUMAN = "human"
"""The render mode that opens a window."""
_X_PORT = 6000
_ANSWER_S = 3.0
"""Seconds for a screen on another machine to answer."""

log = logging.getLogger(__name__)


def check_window(options: Mapping[str, Any], num_envs: int) -> None:
    """Check that the window that an environment's options ask for can be seen.

    Args:
        options: `environment.options`.
        num_envs: instances.

    Raises:
        StageError: if there is no screen.
    """
    if options.get("render_mode") != HUMAN:
        return
    if no_screen():
        raise StageError(f"environment.options: render_mode human opens a window, but {no_screen()}")
    if num_envs > 1:
        log.warning(
            "%d instances with render_mode human have a window each, or draw over each other in one, at the "
            "pace of the screen; to see one game, set num_envs: 1.",
            num_envs,
        )


def no_screen() -> str:
    """Return why no window can be opened, and what to do instead; empty if one can."""
    if sys.platform != "linux" or os.environ.get("SDL_VIDEODRIVER"):
        return ""
    instead = "Film the game with --inference --video DIR, or watch it in the browser with --monitor"
    if os.environ.get("WAYLAND_DISPLAY"):
        return ""
    display = os.environ.get("DISPLAY", "")
    if not display:
        return f"this machine has no screen (neither DISPLAY nor WAYLAND_DISPLAY is set). {instead}"
    return "" if _answers(display) else f"no screen answers at DISPLAY={display}. {instead}"


def _answers(display: str) -> bool:
    """Return False if nothing listens where an X server's clients look for it; SDL would draw for nobody then."""
    found = re.fullmatch(r"(?P<host>[^:]*):(?P<number>\d+)(\.\d+)?", display)
    if found is None:  # a form that only X itself knows
        return True
    host, number = found["host"], int(found["number"])
    if host not in ("", "unix"):
        return _connects(socket.AF_INET, (host, _X_PORT + number))
    place = f"/tmp/.X11-unix/X{number}"
    return any(_connects(socket.AF_UNIX, address) for address in (place, f"\0{place}"))


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family) as trial:
        trial.settimeout(_ANSWER_S)
        try:
            trial.connect(address)
        except OSError:
            return False
    return True
