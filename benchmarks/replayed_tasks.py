"""What `impala` forgets of a task while it learns another one, with replay and without: CLEAR's experiment.

    python benchmarks/replayed_tasks.py --seeds 0 1 2 3 4 --out docs

Two tasks A and B of one shape, A, B and A again, each for a third of the run (Rolnick et al. 2019, "Experience Replay
for Continual Learning"): examples/replayed_tasks. A policy for both exists, but one that has to learn B alone may turn
all of its weights around. Of each policy that the run exports, the score is the mean return of deterministic episodes
in A and in B. Writes the scores to replayed-tasks.csv and draws them in replayed-tasks.svg.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "replayed_tasks")]

import torch  # noqa: E402 - the path has to be set first
from curves import Panel, draw  # noqa: E402
from trained import exports_of, steps_of  # noqa: E402
from two_carts import LONGEST, score  # noqa: E402

from headrace.config import load_config  # noqa: E402
from headrace.pipeline.policies.export import load_acting_policy  # noqa: E402
from headrace.pipeline.run import run  # noqa: E402

EXAMPLE = ROOT / "examples" / "replayed_tasks" / "config.yaml"
STEPS = 100_000
"""Of each of the three stretches."""
EVERY, EPISODES = 5_000, 50
WAYS: dict[str, dict[str, float]] = {
    "replay and cloning": {},
    "replay alone": {"policy_cloning_cost": 0, "value_cloning_cost": 0},
    "no replay": {
        "batch_size": 16,
        "batch_size_from_replay": 0,
        "policy_cloning_cost": 0.01,
        "value_cloning_cost": 0.005,
    },
}
"""What each changes in the example; all learn from as many fresh unrolls in an update."""
KEPT = 0.8

Scores = dict[int, tuple[float, float]]
"""By step, the scores in A and in B."""


def learned(way: str, seed: int, changes: Sequence[str]) -> Scores:
    """Train on one thread, the same again with the same seed, and judge each policy that was exported."""
    with tempfile.TemporaryDirectory() as results:
        overrides = [
            *(f"behaviors.Carts.hyperparameters.{key}={value}" for key, value in WAYS[way].items()),
            f"env_settings.seed={seed}",
            f"behaviors.Carts.checkpoint_interval={EVERY}",
            "behaviors.Carts.keep_checkpoints=1000",
            f"checkpoint_settings.results_dir={results}",
            "pipeline.deterministic=true",
        ]
        folder = run(load_config(EXAMPLE, [*overrides, *changes])).folder
        return {steps_of(path): scores(path) for path in exports_of(folder, "Carts")}


def scores(export: Path) -> tuple[float, float]:
    """The scores of a policy in A and in B."""
    policy = load_acting_policy(export)
    return score(policy, False, EPISODES), score(policy, True, EPISODES)


def kept(found: Scores) -> tuple[float, float, float, float]:
    """The best score in A before B, and that after B; the score in B then; the share of A's that is kept."""
    peak = max(a for step, (a, _) in found.items() if step <= STEPS + EVERY)
    after, in_b = next(both for step, both in sorted(found.items()) if step >= 2 * STEPS)
    return peak, after, in_b, after / peak


def main() -> None:
    """Run all ways with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="changes a key of the example")
    parser.add_argument("--out", type=Path, help="folder for the files; without it nothing is written")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Scores]] = {}
    for way in asked.ways:
        for seed in asked.seeds:
            one = learned(way, seed, asked.set)
            found.setdefault(way, []).append(one)
            peak, after, in_b, share = kept(one)
            print(f"{way} {seed}: A {peak:.0f}, after B {after:.0f} ({share:.0%}), B {in_b:.0f}", flush=True)
        shares = [kept(each)[3] for each in found[way]]
        print(f"{way}: {sum(share >= KEPT for share in shares)} of {len(shares)} keep {KEPT:.0%}; {median(shares):.0%}")
    if asked.out is not None:
        write(asked.out / "replayed-tasks.csv", asked.seeds, found)
        (asked.out / "replayed-tasks.svg").write_text(draw(panels(found)))


def write(path: Path, seeds: Sequence[int], found: Mapping[str, Sequence[Scores]]) -> None:
    """Write a line for each policy that was judged."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("way", "seed", "step", "score in A", "score in B"))
        for way, runs in found.items():
            for seed, one in zip(seeds, runs, strict=True):
                lines.writerows((way, seed, step, f"{a:.1f}", f"{b:.1f}") for step, (a, b) in sorted(one.items()))


def panels(found: Mapping[str, Sequence[Scores]]) -> list[Panel]:
    """A diagram for each task; steps are rounded, as each run has its own."""
    spans = {"learns A": (0, STEPS), "learns B": (STEPS, 2 * STEPS), "learns A again": (2 * STEPS, 3 * STEPS)}
    return [
        Panel(
            f"score in {task}: mean of {EPISODES} episodes",
            {way: _by_step(runs, which) for way, runs in found.items()},
            "steps",
            float(LONGEST),
            spans=spans,
        )
        for which, task in enumerate("AB")
    ]


def _by_step(runs: Sequence[Scores], which: int) -> dict[float, list[float]]:
    rounded: dict[float, list[float]] = {}
    for one in runs:
        near: dict[float, list[float]] = {}
        for step, both in one.items():
            near.setdefault(float(EVERY * round(step / EVERY)), []).append(both[which])
        for at, values in near.items():
            rounded.setdefault(at, []).append(mean(values))
    return rounded


if __name__ == "__main__":
    main()
