"""A learned action repeat beside every fixed one, on a task in which each decision costs: examples/action_repeat.

    python benchmarks/action_repeat.py               fixed repeats 1 to 8 and the learned one, three seeds each
    python benchmarks/action_repeat.py --seeds 0 --repeats 3 learned

All train for as many environment steps, so that a short repeat has more decisions to learn from. A score is the mean
return of the last 100 episodes, what the decisions cost included. Below the learned repeat stands the histogram of
`action/step_mul` in the last summary, the mean over seeds: the share of each number of steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 - the path has to be set first
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from headrace.config import load_config  # noqa: E402
from headrace.pipeline.run import RunOptions, run  # noqa: E402

EXAMPLE = ROOT / "examples" / "action_repeat" / "config.yaml"
BEHAVIOR = "Lamps"
LONGEST = 8
LEARNED = "learned"
USUAL_REPEAT = 5
"""Environment steps of a decision once the task is learned: the learned repeat gets so many times fewer decisions."""


def attempt(repeat: str, frames: int, seed: int, results: Path) -> tuple[float, Path]:
    """Train with a repeat; returns the score, and the run's folder."""
    learned = repeat == LEARNED
    steps = frames // (USUAL_REPEAT if learned else int(repeat))
    changes = [
        f"env_settings.seed={seed}",
        f"environment.action_repeat={{max: {LONGEST}}}" if learned else f"environment.action_repeat={repeat}",
        f"behaviors.{BEHAVIOR}.max_steps={steps}",
        f"checkpoint_settings.results_dir={results}",
        "pipeline.hosts.actors.kind=inline",
        "pipeline.hosts.learners.kind=inline",
    ]
    result = run(load_config(EXAMPLE, changes), RunOptions())
    score = result.behaviors[BEHAVIOR].recent_return
    assert score is not None, "no episode ended"
    return score, result.folder


def chosen(run_folder: Path) -> NDArray[np.float64]:
    """Share of each number of environment steps, [LONGEST], in the last histogram of `action/step_mul`."""
    found = EventAccumulator(str(run_folder / BEHAVIOR)).Reload()
    histogram = found.Histograms("action/step_mul_hist")[-1].histogram_value
    shares = np.zeros(LONGEST)
    for limit, count in zip(histogram.bucket_limit, histogram.bucket, strict=True):
        shares[min(int(limit + 1e-9), LONGEST - 1)] += count  # buckets are narrower than 1, and end above a choice
    return shares / shares.sum()


def main() -> None:
    """Print a line per repeat, and whether the learned one is the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", nargs="+", default=[*map(str, range(1, LONGEST + 1)), LEARNED])
    parser.add_argument("--frames", type=int, default=400_000, help="environment steps of each run")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'repeat':8} {'seeds':>24} {'lowest':>8} {'seconds':>8}")
    lowest, highest = {}, {}
    for repeat in asked.repeats:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            made = [attempt(repeat, asked.frames, seed, Path(folder) / str(seed)) for seed in asked.seeds]
            shares = np.mean([chosen(run_folder) for _, run_folder in made], axis=0) if repeat == LEARNED else None
        scores = [score for score, _ in made]
        lowest[repeat], highest[repeat] = min(scores), max(scores)
        each = " ".join(f"{score:7.1f}" for score in scores)
        print(f"{repeat:8} {each:>24} {min(scores):8.1f} {time.monotonic() - began:8.1f}", flush=True)
        if shares is not None:
            print("steps    " + " ".join(f"{k + 1:5}" for k in range(LONGEST)))
            print("share    " + " ".join(f"{share:5.0%}" for share in shares), flush=True)
    fixed = {repeat: score for repeat, score in highest.items() if repeat != LEARNED}
    if LEARNED in lowest and fixed:
        best = max(fixed, key=lambda repeat: fixed[repeat])
        print(f"the best fixed repeat is {best}; the learned one is better by {lowest[LEARNED] - fixed[best]:.1f}")


if __name__ == "__main__":
    main()
