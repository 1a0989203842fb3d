"""What is learned from rows that come late: the tables of docs/learning.md.

    python benchmarks/late_rows.py lunarlander --lags 0 1 --seeds 21 22 23 24 25
    python benchmarks/late_rows.py halfcheetah --lags 1 --set behaviors.HalfCheetah.hyperparameters.decoupled=false

With process hosts it depends on the machine, and on what else that does, how far the actor is ahead of the trainer.
Here a stage holds back the rows of as many updates as the lag says, in a deterministic run: every row comes that many
updates late, the most that `max_policy_lag` allows. Runs config/examples/<task>.yaml; `--set` changes keys. Prints the
training return, its mean over the summaries of the second half of the steps, and the evaluation, the final policy's
mean return in 30 deterministic episodes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import torch
from bare_loop import evaluate_policy
from trained import second_half

from headrace.config import load_config
from headrace.config.hyperparameters import Hyperparameters
from headrace.pipeline.policies.export import load_acting_policy
from headrace.pipeline.run import run
from headrace.stages import Stage, TrajectoryBatch

EXAMPLES = Path(__file__).resolve().parent.parent / "config/examples"


class HoldBack(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Passes a batch on when so many newer rows have come."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._held: deque[TrajectoryBatch] = deque()
        self._count = 0

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Keep a batch, and pass on the oldest."""
        self._held.append(batch)
        self._count += batch.num_rows
        while self._held and self._count - self._held[0].num_rows >= self._rows:
            oldest = self._held.popleft()
            self._count -= oldest.num_rows
            yield oldest


def learn(task: str, lag: int, seed: int, changes: list[str]) -> tuple[float, float, float]:
    """Mean lag and mean training return over the second half of a run, and the evaluation."""
    path = EXAMPLES / f"{task}.yaml"
    asked = load_config(path, changes)
    ((name, behavior),) = asked.behaviors.items()
    assert isinstance(behavior.hyperparameters, Hyperparameters), "only trainers of the table"
    assert asked.environment is not None, "all tasks are environments"
    environment_id = asked.environment.id
    assert environment_id is not None, "all of them have names"
    assert behavior.hyperparameters.rows_per_update is not None, "only trainers that learn on policy"
    rows = lag * behavior.hyperparameters.rows_per_update
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"env_settings.seed={seed}",
            f"checkpoint_settings.run_id={task}",
            f"checkpoint_settings.results_dir={folder}",
            "pipeline.deterministic=true",
            "pipeline.max_policy_lag=0",
            f"pipeline.stages=[{{use: late_rows:HoldBack, with: {{rows: {rows}}}}}]",
        ]
        result = run(load_config(path, [*changes, *overrides]))
        export = result.behaviors[name].export
        assert export is not None, "a run that ended well has exported"
        score = evaluate_policy(environment_id, load_acting_policy(export), 30, seed)
        events = Path(folder, task, name)
        seen = second_half(events, behavior.max_steps, "Policy/Lag")
        returned = second_half(events, behavior.max_steps)
    return seen, returned, score


def main() -> None:
    """Print a line for each run, and the means for each lag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24, 25])
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[int, list[tuple[float, float]]] = {lag: [] for lag in asked.lags}
    print(f"{'seed':>4} {'lag':>5} {'training':>9} {'evaluation':>11} {'seconds':>8}")
    for seed in asked.seeds:
        for lag in asked.lags:
            began = time.monotonic()
            seen, *returns = learn(asked.task, lag, seed, asked.set)
            found[lag].append((returns[0], returns[1]))
            took = time.monotonic() - began
            print(f"{seed:>4} {seen:>5.2f} {returns[0]:>9.1f} {returns[1]:>11.1f} {took:>8.1f}", flush=True)
    for lag, of_lag in found.items():
        print(f"lag {lag}: " + ", ".join(map(_spread, zip(*of_lag, strict=True))))


def _spread(values: tuple[float, ...]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
