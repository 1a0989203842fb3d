"""Checks the main job's bars: how well a finished run's self-play policy plays.

    bin/run-pipeline config/examples/volley.yaml
    python benchmarks/main_job.py results/volley

Plays 1000 games each (500 on either side of the net): the scripted player against random play, against the untrained
policy and against itself; the final policy against the scripted player and against its own snapshot from the first
quarter of the run. Then the final policy plays 500 games against each snapshot from the first half of the run;
snapshots are the policies exported every `checkpoint_interval`. A win rate counts only wins; a score counts a draw as
half a win. The benchmark fails if a bar is missed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import yaml
from matches import Player, RandomPlayer, Tally, play_volley
from trained import exports_of, first_quarter, scalars, steps_of

from headrace.config import RunConfig
from headrace.pipeline.policies.export import load_acting_policy, read_export
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.volley import ACTIONS, ScriptedPlayer
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import TrainerContext

GAMES = 1000
SNAPSHOT_GAMES = 500
SNAPSHOT_BAR = 0.60
EVEN = 0.05
"""Maximum difference between a score and the expected score."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="results/<run-id>")
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--snapshot-games", type=int, default=SNAPSHOT_GAMES)
    args = parser.parse_args()
    config = RunConfig.from_plain(yaml.safe_load((args.run / "configuration.yaml").read_text()))
    assert config.environment is not None, "a Volley run has an environment"
    options = config.environment.options
    (behavior,) = config.behaviors
    exports = exports_of(args.run, behavior)
    final = exports[-1]
    scripted = ScriptedPlayer().act
    print(f"{args.run}: {steps_of(final)} steps, first-quarter snapshot at {steps_of(first_quarter(exports))}")
    bars = [
        ("scripted against random play", scripted, RandomPlayer(ACTIONS, 1), "wins", 0.95),
        ("scripted against the untrained policy", scripted, untrained(config, behavior, final), "wins", 0.90),
        ("scripted against itself", scripted, scripted, "score", 0.5),
        ("final against scripted", player(final), scripted, "wins", 0.90),
        ("final against its first quarter", player(final), player(first_quarter(exports)), "wins", 0.75),
    ]
    print(f"{'':38} {'won':>5} {'drawn':>5} {'lost':>5} {'rate':>7} {'bar':>6}")
    held = [
        told(name, play_volley(one, other, args.games, seed=11, **options), what, bar)
        for name, one, other, what, bar in bars
    ]
    for export in exports:
        if (step := steps_of(export)) <= steps_of(final) / 2:
            tally = play_volley(player(final), player(export), args.snapshot_games, seed=11, **options)
            held.append(told(f"final against its snapshot at {step}", tally, "wins", SNAPSHOT_BAR))
    ratings = scalars(args.run / behavior, "Self-play/ELO")
    print(f"ELO: {ratings[0].value:.0f} in the first summary, {ratings[-1].value:.0f} in the last")
    raise SystemExit(not all(held))


def told(name: str, tally: Tally, what: str, bar: float) -> bool:
    """Print a row; return True if its bar is reached."""
    rate = tally.win_rate if what == "wins" else tally.score
    # A score has a bar on both sides, because a player that plays itself can't be better than itself.
    held = rate >= bar if what == "wins" else abs(rate - bar) <= EVEN
    mark = "" if held else "  missed"
    print(f"{name:38} {tally.wins:5} {tally.draws:5} {tally.losses:5} {rate:7.1%} {bar:6.0%}{mark}", flush=True)
    return held


def player(export: Path) -> Player:
    """Return an exported policy as a player."""
    return PolicyPlayer(load_acting_policy(export), ACTIONS, seed=5)


def untrained(config: RunConfig, behavior: str, export: Path) -> Player:
    """Return the policy as it was before the first update."""
    spec = read_export(export).design.spec
    settings = config.behavior_settings(behavior)
    policy = make_policy(design_of(spec, settings))
    policy.load(PPOTrainer(TrainerContext(behavior, settings, spec, seed=3)).policy())
    return PolicyPlayer(policy, ACTIONS, seed=5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
