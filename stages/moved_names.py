"""Current names of Headrace modules that old configurations, run folders and recordings refer to by an earlier name."""

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
"""Maps the earlier name of a package or module to its current name; the longest match wins. Never remove lines."""


def name_today(module: str) -> str | None:
    """Return a module's current name, given an earlier one; None if no Headrace module ever had that name."""
    inner = ""
    while module:
        if moved := _MOVED.get(module):
            today = moved + inner
            return name_today(today) or today
        module, dot, last = module.rpartition(".")
        inner = f"{dot}{last}{inner}"
    return None
