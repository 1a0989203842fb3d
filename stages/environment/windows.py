"""Windows of environments that draw themselves on a screen (`render_mode: human` of Gymnasium and PettingZoo)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from stages.errors import StageError

HUMAN = "human"
"""The render mode that opens a window."""
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
"""Variables of which one is set where there is something to open a window on; the last one chooses it for SDL."""

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
    if sys.platform != "linux" or any(map(os.environ.get, _SCREENS)):
        return ""
    return (
        f"this machine has no screen ({', '.join(_SCREENS[:-1])}: none is set). Film the game with --inference --video "
        "DIR, or watch it in the browser with --monitor"
    )
