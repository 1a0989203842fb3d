"""Measures the speed of the built-in game: `python benchmarks/volley.py [seconds per figure]`.

Prints, for several numbers of courts and one thread, milliseconds per tick of the group (a decision by both players on
every court, and `frame_skip` physics ticks) and agent steps per second: medians over 5 timed stretches of random play.
Then it measures the cost of rendering an image.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from matches import RandomPlayer

from headrace.stages.games.volley import ACTIONS, VolleyGroup

STRETCHES = 5
COURTS = (1, 64, 256, 1024)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    print(f"{'courts':>7} {'ms per tick':>12} {'agent steps/s':>14}")
    for courts in COURTS:
        tick_s = seconds_per_tick(courts, seconds / STRETCHES)
        print(f"{courts:>7} {1000 * tick_s:>12.3f} {2 * courts / tick_s:>14,.0f}")
    group = VolleyGroup(1)
    group.reset(0)
    group.render()
    print(f"one picture of 600 × 300: {1000 * seconds_of(group.render, seconds / STRETCHES):.1f} ms")


def seconds_per_tick(courts: int, stretch_s: float) -> float:
    """Return the median seconds per tick over the stretches; sampling the actions is not timed."""
    group, play = VolleyGroup(courts), RandomPlayer(ACTIONS, 0)
    group.reset(0)
    shape = (np.empty((courts, 12), np.float32),)
    decisions = [{behavior_id: play(shape) for behavior_id in group.behavior_ids} for _ in range(50)]
    return statistics.median(
        seconds_of(lambda: [*map(group.step, decisions)], stretch_s) / 50 for _ in range(STRETCHES)
    )


def seconds_of(call: Callable[[], object], stretch_s: float) -> float:
    """Return the mean seconds per call, with calls repeated for a stretch of time."""
    count, begin = 0, time.perf_counter()
    while (took := time.perf_counter() - begin) < stretch_s:
        call()
        count += 1
    return took / count


if __name__ == "__main__":
    main()
