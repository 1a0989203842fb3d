"""Measures how strong connect four gets by self-play: trains examples/connect_four/config.yaml, then plays.

    python benchmarks/connect_four.py                           at most 20 minutes on two cores
    python benchmarks/connect_four.py results/connect-four      only plays, with a finished run's policies

Each bar is measured over 500 games, in which the policy begins every other game: against random play, and against a
player that looks one move ahead (it wins if it can, otherwise blocks the opponent's win, otherwise plays at random). A
rate counts only wins, not draws. Then the policy plays its own earlier snapshots, without a bar: if both players are
perfect, neither can win more than half of the games, because the player that begins wins.

The final policy takes its most likely moves, and the snapshots sample theirs as in training; with `--drawn`, all of
them sample. Policies may be trained in PettingZoo's connect four or in the built-in game. The benchmark fails if a bar
is missed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matches import MaskedPlayer, play_connect_four
from numpy.typing import NDArray
from trained import ROOT, exports_of, run_to_judge, steps_of

from headrace.pipeline.policies.export import load_acting_policy, read_export
from headrace.queues.messages import ActionBatch, Array
from headrace.stages.games.connect_four import ACTIONS, RandomPlayer, TacticalPlayer
from headrace.stages.games.policy_player import PolicyPlayer

EXAMPLE = Path("examples/connect_four/config.yaml")
GAMES = 500


def main() -> None:
    """Train if necessary, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--drawn", action="store_true", help="the final policy draws its moves, too")
    run, asked = run_to_judge(parser, EXAMPLE)
    behavior = next(path.name for path in sorted(run.iterdir()) if list(path.glob(f"{path.name}-*.pt")))
    exports = exports_of(run, behavior)
    final = exports[-1]
    others: list[tuple[str, MaskedPlayer, float]] = [
        ("random play", RandomPlayer(asked.seed), 0.95),
        ("one move ahead", TacticalPlayer(asked.seed), 0.70),
    ]
    others += [(f"itself at step {steps_of(path)}", player(path, asked.seed + 1, False), 0.0) for path in exports[:-1]]
    print(f"{final}\n{'':30} {'won':>5} {'drawn':>5} {'lost':>5} {'rate':>7} {'bar':>6}")
    missed = 0
    for name, other, bar in others:
        tally = play_connect_four(player(final, asked.seed, not asked.drawn), other, asked.games)
        told = f"{tally.wins:5} {tally.draws:5} {tally.losses:5} {tally.win_rate:7.1%}"
        mark = "" if not bar else f" {bar:6.0%}" if tally.win_rate >= bar else f" {bar:6.0%}  missed"
        print(f"{name:30} {told}{mark}", flush=True)
        missed += tally.win_rate < bar
    raise SystemExit(1 if missed else 0)


def player(export: Path, seed: int, deterministic: bool) -> MaskedPlayer:
    """Return an exported policy as a player, for either shape of the board."""
    folder = (ROOT / EXAMPLE).parent  # the folder of its network's module
    (seen,) = read_export(export, folder).design.spec.observations
    act = PolicyPlayer(load_acting_policy(export, folder), ACTIONS, seed, deterministic)

    def shaped(observations: tuple[Array, ...], masks: NDArray[np.bool_]) -> ActionBatch:
        return act((observations[0].reshape(-1, *seen.shape),), masks)

    return shaped


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
