"""How a connect four policy plays: `python benchmarks/connect_four.py results/connect-four`.

    bin/run-pipeline config/examples/connect_four.yaml
    python benchmarks/connect_four.py results/connect-four

Each bar is 500 games, every other one begun by the policy: against random play, and against a player that looks one
move ahead (wins where it can, else hinders the other). A rate counts wins only, a draw is none. Then the policy against
its own earlier snapshots. Policies trained in PettingZoo's connect four and in the built-in one are the same to it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.export import load_acting_policy, numbered, read_export
from queues.messages import Array
from stages.environment.connect_four import Player, RandomPlayer, TacticalPlayer, as_player, play_games
from stages.environment.protocol import ActionBatch

GAMES = 500


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="results/<run-id>")
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true", help="the most likely move instead of a drawn one")
    asked = parser.parse_args()
    exports = exports_of(asked.run)
    final = exports[-1]
    print(f"{final}\n{'':40} {'won':>5} {'drawn':>5} {'lost':>5} {'rate':>7} {'bar':>6}")
    others: list[tuple[str, Player, float]] = [
        ("random play", RandomPlayer(asked.seed), 0.95),
        ("one move ahead", TacticalPlayer(asked.seed), 0.70),
    ]
    for path in exports[:-1]:
        # What it was in the first half of the run it should have outgrown.
        old = steps_of(path) <= steps_of(final) / 2
        others.append((f"itself at step {steps_of(path)}", player(path, asked.seed + 1, False), 0.60 if old else 0.0))
    for name, other, bar in others:
        tally = play_games(player(final, asked.seed, asked.deterministic), other, asked.games)
        told = f"{bar:6.0%}" if bar else f"{'':6}"
        print(f"{name:40} {tally.wins:5} {tally.draws:5} {tally.losses:5} {tally.win_rate:7.1%} {told}")


def exports_of(run: Path) -> list[Path]:
    """The policies that a run exported, in the order of their steps."""
    for folder in sorted(path for path in run.iterdir() if path.is_dir()):
        found = numbered(folder, folder.name)
        if found:
            return found
    raise SystemExit(f"{run}: no exported policies there; expected the folder of a finished run, results/<run-id>")


def steps_of(export: Path) -> int:
    """The trainer steps in an export's name."""
    return int(export.stem.rpartition("-")[2])


def player(export: Path, seed: int, deterministic: bool) -> Player:
    """An exported policy as a player, whichever shape it takes the board in."""
    (seen,) = read_export(export).design.spec.observations
    act = as_player(load_acting_policy(export), seed, deterministic)

    def shaped(observations: tuple[Array, ...], masks: NDArray[np.bool_]) -> ActionBatch:
        return act((observations[0].reshape(-1, *seen.shape),), masks)

    return shaped


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
