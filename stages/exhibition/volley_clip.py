"""A short video of a game, as a GIF that loops in every browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.queues.messages import ActionBatch, Array
from headrace.stages.exhibition.recorder import GifFile
from headrace.stages.games.drawing import SceneImages
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.volley import TICK_S, VolleyGroup

Player = Callable[[tuple[Array, ...]], ActionBatch]
"""Function that maps observations, one agent per row, to one action per row."""

_TICKS_PER_FRAME = 2
"""Number of ticks per frame, which gives 25 frames a second."""


def write_clip(
    path: Path,
    group: VolleyGroup,
    players: tuple[Player, Player],
    seconds: float = 10.0,
    width: int = 300,
    seed: int | None = None,
) -> None:
    """Reset the group, play, and record its first court.

    Args:
        path: the GIF to write, with the suffix `.gif`.
        group: the courts; only the first is recorded, although all are played, so one court is enough.
        players: the players on the left (team 0) and on the right.
        seconds: length of the video, at most `GIF_S`.
        width: width of the video in pixels; the height is half of that.
        seed: the seed for the group's reset; if None, each clip shows different serves.
    """
    gif = GifFile(path.with_suffix(""), 1 / (TICK_S * _TICKS_PER_FRAME))
    images = SceneImages(group.display, width)
    ticks, last = 0, _TICKS_PER_FRAME * max(1, round(seconds / (TICK_S * _TICKS_PER_FRAME)))

    def expose() -> None:
        nonlocal ticks
        if ticks < last and ticks % _TICKS_PER_FRAME == 0:
            gif.add(images.image(group.shapes_with_score(0)))
        ticks += 1

    result = group.reset(seed)
    previous, group.on_tick = group.on_tick, expose
    try:
        while ticks < last:
            steps = [result.steps[behavior_id] for behavior_id in group.behavior_ids]
            for player, seen in zip(players, steps, strict=True):
                if isinstance(player, PolicyPlayer):
                    player.forget(seen.env_ids[: seen.ended].astype(np.int64))
            decided = [
                player(tuple(o[seen.ended :] for o in seen.observations))
                for player, seen in zip(players, steps, strict=True)
            ]
            result = group.step(dict(zip(group.behavior_ids, decided, strict=True)))
    finally:
        group.on_tick = previous
    gif.close()
