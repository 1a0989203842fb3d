"""Runs examples as benchmarks: trains an example, then finds its training returns and its exported policies."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.config import load_config
from headrace.pipeline.policies.export import exports_by_step
from headrace.pipeline.run import RunOptions, run

ROOT = Path(__file__).resolve().parents[1]


def second_half(events: Path, max_steps: int, tag: str = "Environment/Cumulative Reward") -> float:
    """Return the mean of a statistic over the summaries of a run's second half.

    Args:
        events: results/<run-id>/<behaviour>.
        max_steps: the run's number of steps.
        tag: the statistic's name.
    """
    return float(mean(event.value for event in scalars(events, tag) if event.step > max_steps / 2))


def scalars(events: Path, tag: str) -> list[Any]:
    """Return a statistic's summaries, with `step` and `value`; arguments as in `second_half`."""
    return list(EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload().Scalars(tag))


def run_to_judge(parser: argparse.ArgumentParser, example: Path) -> tuple[Path, argparse.Namespace]:
    """Return the run folder that the command line names, and the arguments; if no run is named, train one now.

    Args:
        parser: the benchmark's parser, which may already have other arguments.
        example: path of the YAML file to train, relative to the repository's root.
    """
    parser.add_argument("run", type=Path, nargs="?", help="results/<run-id> of a finished run; left out: train one now")
    parser.add_argument("--seed", type=int, default=0, help="of the training and of the games")
    parser.add_argument("--results-dir", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="changes a key of the example")
    args = parser.parse_args()
    return args.run or _train(ROOT / example, args.results_dir, args.seed, args.set), args


def _train(example: Path, results: Path, seed: int, changes: Sequence[str]) -> Path:
    """Train from scratch, and remove an earlier run of the benchmark with this seed; return the run's folder."""
    name = f"{example.stem if example.stem != 'config' else example.parent.name}-{seed}"
    shutil.rmtree(results / name, ignore_errors=True)
    where = [f"checkpoint_settings.run_id={name}", f"checkpoint_settings.results_dir={results}"]
    print(f"{example.relative_to(ROOT)}, seed {seed}: training in {results / name}", flush=True)
    result = run(load_config(example, [f"env_settings.seed={seed}", *where, *changes]), RunOptions())
    steps = ", ".join(f"{behavior} {told.step} steps" for behavior, told in result.behaviors.items())
    print(f"{steps}: {result.elapsed_s / 60:.1f} minutes")
    return result.folder


def exports_of(run: Path, behavior: str) -> list[Path]:
    """Return the policies that a run exported, in the order of their steps.

    Raises:
        SystemExit: if there are none.
    """
    found = exports_by_step(run / behavior, behavior)
    if not found:
        raise SystemExit(f"{run / behavior}: no exported policies; expected results/<run-id> of a finished run")
    return found


def steps_of(export: Path) -> int:
    """Return the number of trainer steps in an export's name."""
    return int(export.stem.rpartition("-")[2])


def first_quarter(exports: Sequence[Path]) -> Path:
    """Return the newest export from the first quarter of a run, or the first export if there is none."""
    early = [path for path in exports if steps_of(path) <= steps_of(exports[-1]) / 4]
    return early[-1] if early else exports[0]
