"""Self-play alone beside self-play mixed with games against the scripted player: the table of docs/self-play.md.

    python benchmarks/mixture.py --seeds 0 1 2

Trains config/examples/volley.yaml by self-play, and the same with `self_play.brains` (`--share` of the games against
the scripted player), once for each seed; then plays 1000 games (500 on either side of the net) of each final policy
against each of a common set of opponents: the scripted player, random play, and the policies of one more run by
self-play alone, of another seed, after a quarter, a half, three quarters and all of its steps. Last, each policy of the
mixture meets each by self-play alone. A score counts a draw as half. The difference of the means has a standard error
from the spread of the seeds. Runs that are there already (`--results-dir`) are measured as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, variance

import torch
from matches import Player, RandomPlayer, play_volley
from trained import exports_of, steps_of

from headrace.config import load_config
from headrace.pipeline.policies.export import load_acting_policy
from headrace.pipeline.run import RunOptions, run
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.volley import ScriptedPlayer
from headrace.stages.games.volley.group import ACTIONS

EXAMPLE = Path(__file__).resolve().parents[1] / "config/examples/volley.yaml"
GAMES = 1000
YARDSTICK = 100
"""Seed of the run whose snapshots all are measured against."""


def main() -> None:
    """Train what is missing, and print the tables; fails if a mean is lower by more than two standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--share", type=float, default=0.1, help="of the games against the scripted player")
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--results-dir", type=Path, default=Path("results/mixture"))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="changes a key of all runs")
    asked = parser.parse_args()
    mixed = [f"behaviors.Volley.self_play.brains=[{{use: scripted, weight: {asked.share:g}}}]"]
    train = lambda name, seed, more: trained(asked.results_dir, f"{name}-{seed}", seed, [*asked.set, *more])  # noqa: E731
    yardstick = train("alone", YARDSTICK, [])
    alone = [train("alone", seed, [])[-1] for seed in asked.seeds]
    mixture = [train(f"mixture-{asked.share:g}", seed, mixed)[-1] for seed in asked.seeds]
    held = compare(alone, mixture, opponents(yardstick), asked.games)
    meet(alone, mixture, asked.games)
    raise SystemExit(not held)


def trained(results: Path, name: str, seed: int, changes: Sequence[str]) -> list[Path]:
    """The policies that a run has exported, trained now if it is not there."""
    if not (results / name / "Volley.onnx").is_file():
        where = [f"checkpoint_settings.run_id={name}", f"checkpoint_settings.results_dir={results}"]
        fresh = ["checkpoint_settings.force=true"] if (results / name).exists() else []
        told = run(load_config(EXAMPLE, [f"env_settings.seed={seed}", *where, *fresh, *changes]), RunOptions())
        print(f"{name}: {told.behaviors['Volley'].step} steps in {told.elapsed_s:.0f} s", flush=True)
    return exports_of(results / name, "Volley")


def opponents(yardstick: Sequence[Path]) -> Mapping[str, Callable[[], Player]]:
    """The common set, each made anew for each match."""
    last = steps_of(yardstick[-1])
    marks = [next(path for path in yardstick if steps_of(path) >= share * last) for share in (0.25, 0.5, 0.75, 1)]
    return {
        "scripted": lambda: ScriptedPlayer().act,
        "random": lambda: RandomPlayer(ACTIONS, 1),
        **{f"self-play after {steps_of(path):,} steps": lambda path=path: player(path) for path in marks},
    }


def compare(
    alone: Sequence[Path], mixture: Sequence[Path], met: Mapping[str, Callable[[], Player]], games: int
) -> bool:
    """Print how both fare against each opponent; True if the mixture is nowhere lower by two standard errors."""
    print(f"{'against':38} {'self-play alone':>28} {'mixture':>28} {'difference':>18}")
    held = True
    for name, make in met.items():
        scores = [[score(path, make(), games) for path in paths] for paths in (alone, mixture)]
        difference = mean(scores[1]) - mean(scores[0])
        error = sqrt(sum(variance(each) / len(each) for each in scores)) if len(alone) > 1 else float("nan")
        held &= not difference < -2 * error
        print(f"{name:38} {shown(scores[0]):>28} {shown(scores[1]):>28} {difference:+8.1%} ± {error:5.1%}", flush=True)
    return held


def meet(alone: Sequence[Path], mixture: Sequence[Path], games: int) -> None:
    """Let each policy of the mixture meet each by self-play alone."""
    rows = [[score(path, player(other), games) for other in alone] for path in mixture]
    means = mean(map(mean, rows))
    print(f"mixture against self-play alone, seed by seed: {'; '.join(map(shown, rows))}: {means:.1%}")


def score(path: Path, opponent: Player, games: int) -> float:
    """The score of a policy."""
    return play_volley(player(path), opponent, games, seed=11).score


def shown(scores: Sequence[float]) -> str:
    """Scores and their mean."""
    return f"{mean(scores):.1%} ({' '.join(f'{100 * each:.1f}' for each in scores)})"


def player(export: Path) -> Player:
    """An exported policy as a player."""
    return PolicyPlayer(load_acting_policy(export), ACTIONS, seed=5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
