"""A short film of what was trained, at the end of a run on an environment of our own that can be drawn."""

from __future__ import annotations

import logging
from pathlib import Path

from config import RunConfig
from pipeline.policies.export import load_acting_policy
from pipeline.run_folder.folder import folder_name

log = logging.getLogger(__name__)

SECONDS = 10.0
SEED = 7
"""Of the film's game: the same serves in each run's film."""


def write_final_clip(config: RunConfig, run_folder: Path, behavior: str, export: Path) -> Path | None:
    """Film the final policy of the built-in game, on the left, against the scripted player.

    Args:
        config: the run's configuration.
        run_folder: `results/<run-id>`.
        behavior: the behaviour name.
        export: the final policy.

    Returns:
        the GIF, or None where the environment is not the built-in game.
    """
    settings = config.environment
    if settings is None or settings.kind != "builtin" or settings.id != "Volley":
        return None
    from stages.games.volley import ScriptedPlayer, VolleyGroup, as_player
    from stages.games.volley.clip import write_clip

    policy = load_acting_policy(export, config.source_folder)
    path = run_folder / folder_name(behavior) / "clip.gif"
    players = (as_player(policy, SEED, deterministic=True), ScriptedPlayer().act)
    write_clip(path, VolleyGroup(1, behavior=behavior, **settings.options), players, SECONDS, seed=SEED)
    log.info("Filmed the final policy (red, on the left) against the scripted player: %s", path)
    return path
