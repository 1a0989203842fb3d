"""Measures the speed of the built-in game: `python benchmarks/volley.py [seconds per figure]`.

Prints, for several numbers of courts and one thread, milliseconds per tick of the group (a decision of both
players on every court, `frame_skip` physics ticks) and agent steps per second: median of 5 timed stretches of
random play. Then it measures the cost of a picture.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from matches import RandomPlayer

from headrace.stages.games.volley import VolleyGroup
from headrace.stages.games.volley.group import ACTIONS

STRETCHES = 5
COURTS = (1, 64, 256, 1024)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    print(f"{'courts':>7} {'ms per tick':>12} {'agent steps/s':>14}")
    for courts in COURTS:
        tick_s = seconds_per_tick(courts, seconds / STRETCHES)
        print(f"{courts:>7} {1000 * tick_s:>12.3f} {2 * courts / tick_s:>14,.0f}")
    print(f"one picture of 600 × 300: {1000 * seconds_per_picture(seconds):.1f} ms")


def seconds_per_tick(courts: int, stretch_s: float) -> float:
    """Median over the stretches; drawing the actions is not timed."""
    group, play = VolleyGroup(courts), RandomPlayer(ACTIONS, 0)
    group.reset(0)
    shape = (np.empty((courts, 12), np.float32),)
    decisions = [{behavior_id: play(shape) for behavior_id in group.behavior_ids} for _ in range(50)]
    stretches = []
    for _ in range(STRETCHES):
        ticks, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < stretch_s:
            for actions in decisions:
                group.step(actions)
            ticks += len(decisions)
        stretches.append((time.perf_counter() - begin) / ticks)
    return statistics.median(stretches)


def seconds_per_picture(seconds: float) -> float:
    group = VolleyGroup(1)
    group.reset(0)
    group.render()
    pictures, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds / STRETCHES:
        group.render()
        pictures += 1
    return (time.perf_counter() - begin) / pictures


if __name__ == "__main__":
    main()
