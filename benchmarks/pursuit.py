"""Checks that both sides of an asymmetric game learn by self-play: trains config/examples/pursuit.yaml, then plays.

    python benchmarks/pursuit.py                      at most 10 minutes on two cores
    python benchmarks/pursuit.py results/pursuit      only plays, with a finished run's policies

The bar: against the other side's snapshot from the first quarter of the run, each side's final policy does better than
its own snapshot from that time, with p < 0.01 by Fisher's one-sided exact test over 500 games each. Then all policies
play each other and the scripted players. Policies sample their actions, as in training. The benchmark fails if a bar is
missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from matches import Player, RandomPlayer, Tally, play_pursuit
from scipy.stats import fisher_exact
from trained import exports_of, first_quarter, run_to_judge, steps_of

from headrace.config import RunConfig
from headrace.pipeline.policies.export import load_acting_policy
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.pursuit import ACTIONS, ScriptedEvader, ScriptedPursuer

EXAMPLE = Path("config/examples/pursuit.yaml")
GAMES = 500
SIGNIFICANT = 0.01


def main() -> None:
    """Train if necessary, then print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=GAMES)
    run, asked = run_to_judge(parser, EXAMPLE)
    pursuers, evaders = (exports_of(run, behavior) for behavior in ("Pursuer", "Evader"))
    early_pursuer, early_evader = first_quarter(pursuers), first_quarter(evaders)
    config = RunConfig.from_plain(yaml.safe_load((run / "configuration.yaml").read_text()))
    assert config.environment is not None, "a run of Pursuit has an environment"
    options = config.environment.options

    def meet(pursuer: Player, evader: Player) -> Tally:
        return play_pursuit(pursuer, evader, asked.games, asked.seed, **options)

    # Players are made again for each pairing, so that no result depends on the pairings before it.
    hunting: dict[str, Callable[[], Player]] = {
        "final": lambda: player(pursuers[-1]),
        f"at step {steps_of(early_pursuer)}": lambda: player(early_pursuer),
        "scripted": ScriptedPursuer,
        "random": lambda: RandomPlayer(ACTIONS, 1),
    }
    fleeing: dict[str, Callable[[], Player]] = {
        "final": lambda: player(evaders[-1]),
        f"at step {steps_of(early_evader)}": lambda: player(early_evader),
        "scripted": ScriptedEvader,
        "random": lambda: RandomPlayer(ACTIONS, 2),
    }
    print(f"\nwon by the pursuers, of {asked.games} games\n{'pursuers':20}", *(f"{name:>16}" for name in fleeing))
    results: list[list[int]] = []
    for name, pursuer in hunting.items():
        results.append([meet(pursuer(), evader()).wins for evader in fleeing.values()])
        print(f"{name:20}", *(f"{caught / asked.games:16.1%}" for caught in results[-1]), flush=True)
    before, games = results[1][1], asked.games
    sides = {"pursuers": (results[0][1], before), "evader": (games - results[1][0], games - before)}
    print(f"\nagainst the other's first quarter {'final':>8} {'its own first quarter':>22} {'p':>10}")
    missed = 0
    for side, (final, early) in sides.items():
        p = fisher_exact([[final, games - final], [early, games - early]], alternative="greater").pvalue
        mark = "" if p < SIGNIFICANT else "  missed"
        print(f"{side:33} {final / games:8.1%} {early / games:22.1%} {p:10.2g}{mark}")
        missed += bool(mark)
    raise SystemExit(1 if missed else 0)


def player(export: Path) -> Player:
    """Return an exported policy as a player."""
    return PolicyPlayer(load_acting_policy(export), ACTIONS, seed=5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
