"""Runs acceptance cases (tests/acceptance, `*cases.py`) over seeds; prints which ones are learned, and how well.

    python benchmarks/acceptance.py --list
    python benchmarks/acceptance.py --seeds 0 1 2 3 4                     all cases
    python benchmarks/acceptance.py "ppo*" "sac discrete" --seeds 0 1     cases whose names match

A score is the mean return of each instance's last five episodes; a case holds if four of five seeds pass. In self-play,
the score is the worse side's, and the bar states how many sides must be above the threshold (`2>`), or that exactly one
must be (`1>`), for cases in which opponents must stay frozen. Runs go in parallel, in processes with one thread each
(`--jobs`). `--set` changes keys of every behaviour, for experiments:

    python benchmarks/acceptance.py "sac 2-D*" --set hyperparameters.learning_rate=1e-3 --set max_steps=5000
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Replaces this file's folder on the path, because there `acceptance` would mean this file.
sys.path[:] = [str(ROOT), str(ROOT / "tests"), *(path for path in sys.path if Path(path) != ROOT / "benchmarks")]

from acceptance.cases import CASES as LEARNING  # noqa: E402 - the path has to be set first
from acceptance.harness import Case, try_case  # noqa: E402
from acceptance.self_play_cases import CASES as SELF_PLAY  # noqa: E402
from acceptance.self_play_cases import THRESHOLD, SelfPlayCase, try_self_play  # noqa: E402

from headrace.config.errors import ConfigError  # noqa: E402
from headrace.config.load import apply, parse  # noqa: E402

SHARE = 0.8
CASES: dict[str, Case | SelfPlayCase] = {**LEARNING, **{f"self-play {name}": case for name, case in SELF_PLAY.items()}}


@dataclass(frozen=True)
class Attempt:
    """One run of a case."""

    score: float
    accepted: bool
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        return f"error: {self.error}" if self.error else f"{self.score:6.2f}{' ' if self.accepted else '!'}"


def attempt(name: str, seed: int, changes: Sequence[str]) -> Attempt:
    """Run a case once; called in a separate process."""
    import torch

    torch.set_num_threads(1)
    case = CASES[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            score, accepted = _score(case, changes, Path(folder), seed)
        except Exception as error:
            return Attempt(float("nan"), False, time.monotonic() - began, f"{type(error).__name__}: {error}")
    return Attempt(score, accepted, time.monotonic() - began)


def _score(case: Case | SelfPlayCase, changes: Sequence[str], folder: Path, seed: int) -> tuple[float, bool]:
    case = with_changes(case, changes)
    if isinstance(case, SelfPlayCase):
        accepted, scores = try_self_play(case, folder, seed)
        return min(scores.values()), accepted
    outcome = try_case(case, folder, seed)
    return outcome.score, outcome.accepted


def with_changes(case: Case | SelfPlayCase, changes: Sequence[str]) -> Case | SelfPlayCase:
    """Return the case with keys of its behaviour changed by `path.to.key=value`, with the value in YAML."""
    overrides, mistakes = parse(changes)
    behavior, _, without_place = apply(dict(case.behavior), overrides)
    if mistakes or without_place:
        raise ConfigError([*mistakes, *without_place])
    return replace(case, behavior=behavior)


def bar_of(case: Case | SelfPlayCase) -> str:
    """Return the case's bar as a short text."""
    if isinstance(case, SelfPlayCase):
        return f"{case.solved}>{THRESHOLD}"
    return f"{'<' if case.fails else '>'}{case.threshold}"


def main() -> None:
    """Print a line per case when its seeds are done, and how many cases hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["*"], help="names, or patterns of names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="changes")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    args = parser.parse_args()
    names = [name for name in CASES if any(fnmatchcase(name, pattern) for pattern in args.cases)]
    if not names:
        parser.error(f"no case is called {' or '.join(args.cases)}; --list shows the names")
    if args.list:
        print("\n".join(names))
        return
    held = run_cases(names, args.seeds, args.jobs, args.changes)
    print(f"{held} of {len(names)} cases hold")


def run_cases(names: Sequence[str], seeds: Sequence[int], jobs: int, changes: Sequence[str]) -> int:
    """Run cases and print a line for each; return how many were accepted on 4 of 5 seeds."""
    held = 0
    print(f"{'case':38} {'bar':>6} " + " ".join(f"{f'seed {seed}':>7}" for seed in seeds) + "  passed  seconds")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        runs = {name: [pool.submit(attempt, name, seed, changes) for seed in seeds] for name in names}
        for name, futures in runs.items():
            attempts = [future.result() for future in futures]
            passed = sum(one.accepted for one in attempts)
            held += passed >= SHARE * len(seeds)
            bar = bar_of(CASES[name])
            scores = " ".join(f"{one!s:>7}" for one in attempts)
            seconds = sum(one.seconds for one in attempts) / len(attempts)
            print(f"{name:38} {bar:>6} {scores}  {passed}/{len(seeds)}  {seconds:8.1f}", flush=True)
    return held


if __name__ == "__main__":
    main()
