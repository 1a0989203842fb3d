"""Current names of our modules that old configurations, run folders and recordings name by an earlier place."""

from __future__ import annotations

from headrace.place import PARTS

_MOVED = {
    **{part: f"headrace.{part}" for part in PARTS},
    **{
        f"headrace.stages.environment.{game}": f"headrace.stages.games.{game}"
        for game in ("connect_four", "pursuit", "volley")
    },
    "headrace.stages.environment": "headrace.stages.environments",
    **{
        f"headrace.stages.{room}": f"headrace.stages.environments.{room}"
        for room in ("godot", "open_protocol", "programs", "unity")
    },
    **{
        f"headrace.stages.environments.unity.side_channels.{channel}": (
            "headrace.stages.environments.unity.side_channels.standard"
        )
        for channel in ("engine", "parameters", "properties", "raw_bytes", "stats")
    },
}
"""Earlier name of a package or module → its current name; a longer match wins. Never remove lines."""


def name_today(module: str) -> str | None:
    """The current name of a module, by an earlier one; None for a name that none of our modules has had."""
    inner = ""
    while module:
        if moved := _MOVED.get(module):
            today = moved + inner
            return name_today(today) or today
        module, dot, last = module.rpartition(".")
        inner = f"{dot}{last}{inner}"
    return None
