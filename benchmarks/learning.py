"""Measures learning progress over several seeds: the table of docs/learning.md.

    python benchmarks/learning.py cartpole --seeds 0 1 2 3 4
    python benchmarks/learning.py lunarlander --seeds 0 1 2
    python benchmarks/learning.py halfcheetah --seeds 0 1 2
    python benchmarks/learning.py pendulum --seeds 0 1 2                      (SAC, as are the next two)
    python benchmarks/learning.py halfcheetah-sac --seeds 0 1 2
    python benchmarks/learning.py cartpole-sac --seeds 0 1 2

Runs config/examples/<task>.yaml with default hosts and lag (`--set` changes keys), then plays the final policy for 30
deterministic episodes on fresh environments. `training` is the mean training return in the second half of the steps,
and `seconds` the time from the command's start to the end of its last checkpoint. `solved` is the step at which the
mean return of the last 100 training episodes first reached the task's mark, if the task has one (checked once a second,
and at the end).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch
from trained import ROOT, second_half

from headrace.config import load_config
from headrace.pipeline.prediction.evaluate import evaluate
from headrace.pipeline.reporting.console import ProgressSnapshot
from headrace.pipeline.run import RunOptions, run

SOLVED = {"cartpole": 475.0, "cartpole-sac": 475.0}
"""By task: the mean return at which the task counts as solved."""
TASKS = (*SOLVED, "acrobot", "lunarlander", "halfcheetah", "pendulum", "halfcheetah-sac")


class LearningResult(NamedTuple):
    """A run's returns, steps and duration."""

    steps: int
    training: float
    """Mean training return in the second half of the run."""
    last: float
    """Mean return of the last 100 training episodes."""
    evaluation: float
    solved: int | None
    """The step at which the benchmark first saw the mark reached; None if it was never reached."""
    seconds: float


def learn(task: str, seed: int, results: Path, changes: list[str]) -> LearningResult:
    """Run an example and evaluate its final policy."""
    path = ROOT / "config/examples" / f"{task}.yaml"
    overrides = [
        f"env_settings.seed={seed}",
        f"checkpoint_settings.run_id={task}-{seed}",
        f"checkpoint_settings.results_dir={results}",
        *changes,
    ]
    config = load_config(path, overrides)
    assert config.environment is not None, "all tasks are environments"
    assert config.environment.id is not None, "all of them have names"
    environment_id, mark = config.environment.id, SOLVED.get(task, float("inf"))
    solved: list[int] = []

    def watch(snapshot: ProgressSnapshot) -> None:
        solved.extend(b.steps for b in snapshot.behaviors if (b.mean_reward or 0.0) >= mark)

    began = time.monotonic()
    result = run(config, RunOptions(on_progress=watch))
    took = time.monotonic() - began
    ((name, behavior),) = result.behaviors.items()
    last = behavior.recent_return or 0.0
    if last >= mark:
        solved.append(behavior.step)
    # This seed gives episodes that did not occur in training.
    score = evaluate(result, environment_id, 30, seed=10_000 + seed).mean
    training = second_half(results / f"{task}-{seed}" / name, config.behaviors[name].max_steps)
    return LearningResult(behavior.step, training, last, score, min(solved, default=None), took)


def main() -> None:
    """Print the table and the means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # for inline hosts, which learn in this process
    found = []
    columns = ("seed", "steps", "training", "last 100", "evaluation", "solved", "seconds")
    print("{:>4} {:>8} {:>10} {:>10} {:>11} {:>8} {:>8}".format(*columns))
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            learned = learn(args.task, seed, Path(folder), args.set)
            found.append(learned)
            returns = f"{learned.training:>10.1f} {learned.last:>10.1f} {learned.evaluation:>11.1f}"
            print(
                f"{seed:>4} {learned.steps:>8} {returns} {learned.solved or '-':>8} {learned.seconds:>8.1f}", flush=True
            )
    for name in ("training", "evaluation", "seconds"):
        values = [getattr(learned, name) for learned in found]
        print(f"{name}: mean over seeds {mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else ""))


if __name__ == "__main__":
    main()
