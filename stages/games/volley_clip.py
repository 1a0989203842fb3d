"""A short video of a game, as a GIF that loops in every browser."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor

from headrace.queues.messages import ActionBatch, Array
from headrace.stages.games.drawing import SceneImages
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.volley import LIVELY_COLOURS, TICK_S, VolleyGroup

Player = Callable[[tuple[Array, ...]], ActionBatch]
"""Function that maps observations, one agent per row, to one action per row."""

_TICKS_PER_FRAME = 2
"""Number of ticks per frame, which gives 25 frames a second."""
_COLOURS = 96
_SWATCH_SHARE = 0.02
"""Fraction of a frame's pixels that each vivid colour gets when the palette is chosen."""


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
        path: the GIF to write.
        group: the courts; only the first is recorded, although all are played, so one court is enough.
        players: the players on the left (team 0) and on the right.
        seconds: length of the video.
        width: width of the video in pixels; the height is half of that.
        seed: the seed for the group's reset; if None, each clip shows different serves.
    """
    film: list[Image.Image] = []
    images = SceneImages(group.display, width)
    ticks = itertools.count()

    def expose() -> None:
        if next(ticks) % _TICKS_PER_FRAME == 0:
            film.append(Image.fromarray(images.image(group.shapes_with_score(0))))

    frames = max(1, round(seconds / (TICK_S * _TICKS_PER_FRAME)))
    result = group.reset(seed)
    previous, group.on_tick = group.on_tick, expose
    try:
        while len(film) < frames:
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
    _write_gif(path, film[:frames])


def _write_gif(path: Path, film: list[Image.Image]) -> None:
    """Write frames with one palette and no dithering, so static parts stay equal and take no space."""
    palette = _palette(film[0])
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    frame_ms = round(1000 * TICK_S * _TICKS_PER_FRAME)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=frame_ms, loop=0, optimize=False)


def _palette(frame: Image.Image) -> Image.Image:
    """Choose the palette. Small vivid areas get more weight, because otherwise the sky would take most colours."""
    pixels = np.asarray(frame).reshape(-1, 3)
    lively = np.array([ImageColor.getrgb(colour) for colour in LIVELY_COLOURS], np.uint8)
    swatches = np.repeat(lively, int(len(pixels) * _SWATCH_SHARE), axis=0)
    sample = Image.fromarray(np.concatenate([pixels, swatches])[None])
    return sample.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT)
