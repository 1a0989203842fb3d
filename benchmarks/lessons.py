"""Measures the benefit of lessons: a corridor of 60 steps, with and without lessons for each seed.

    python benchmarks/lessons.py                     five seeds; under a minute for each run, on one core
    python benchmarks/lessons.py --seeds 0 1

A score is the mean return of the last five episodes of each of 16 instances, after 150 000 steps of PPO; those of the
whole corridor only, so a run that ends in an earlier lesson scores nothing. Above 0.8 is solved. The task, the lessons
and the settings are in tests/acceptance/lesson_tasks.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Replaces this file's folder, where `acceptance` means something else.
sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(path for path in sys.path if Path(path) != ROOT / "benchmarks")]

import torch  # noqa: E402 - the path has to be set first
from acceptance.lesson_tasks import DISTANCES, LENGTH, THRESHOLD, attempt, lessons  # noqa: E402

WAYS = {"lessons": lessons(), "at once": LENGTH}


def main() -> None:
    """Print a line per run, then how many seeds were solved each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    solved = dict.fromkeys(WAYS, 0)
    print(f"{'seed':>4} {'way':8} {'lesson':>8} {'score':>6} {'seconds':>8}")
    for seed in args.seeds:
        for way, distance in WAYS.items():
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                lesson, score = attempt(distance, Path(folder), seed)
            solved[way] += score > THRESHOLD
            reached = "" if lesson is None else f"{lesson + 1} of {len(DISTANCES) + 1}"
            print(f"{seed:4} {way:8} {reached:>8} {score:6.2f} {time.monotonic() - began:8.1f}", flush=True)
    for way, count in solved.items():
        print(f"{way}: solved with {count} of {len(args.seeds)} seeds")


if __name__ == "__main__":
    main()
