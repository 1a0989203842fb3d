"""Final clips: a short video of each trained policy, recorded after a run on the built-in ball game."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from headrace.config import RunConfig
from headrace.pipeline.policies.export import load_acting_policy
from headrace.pipeline.run_folder.names import behavior_folder

log = logging.getLogger(__name__)

SECONDS = 10.0
SEED = 7
"""Seed of the recorded game. It is fixed, so every clip has the same serves."""


def write_final_clips(config: RunConfig, run_folder: Path, exports: Mapping[str, Path]) -> None:
    """Record a game of each final policy, on the left, against the scripted player; log a warning if a clip fails.

    Do nothing if the environment is not the built-in ball game.

    Args:
        config: the run's configuration.
        run_folder: `results/<run-id>`.
        exports: the file of each behaviour's final policy, keyed by behaviour name.
    """
    settings = config.environment
    if settings is None or settings.kind != "builtin" or settings.id != "Volley":
        return
    if settings.action_repeat is not None:
        log.info(
            "No video of the final policy is recorded: videos do not support actions that are held for several steps."
        )
        return
    from headrace.stages.exhibition.volley_clip import write_clip
    from headrace.stages.games.policy_player import PolicyPlayer
    from headrace.stages.games.volley import ACTIONS, ScriptedPlayer, VolleyGroup

    for behavior, export in exports.items():
        try:
            policy = load_acting_policy(export, config.source_folder)
            path = behavior_folder(run_folder, behavior) / "clip.gif"
            players = (PolicyPlayer(policy, ACTIONS, SEED, deterministic=True), ScriptedPlayer().act)
            write_clip(path, VolleyGroup(1, behavior=behavior, **settings.options), players, SECONDS, seed=SEED)
        except (OSError, ValueError) as error:
            log.warning("no video of the final policy could be recorded: %s", error)
        else:
            log.info("Recorded a video of the final policy (red, on the left) against the scripted player: %s", path)
