"""Measures the two durations of `benchmarks/compare.py` that are compared with another checkout: start and main job."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compare_runs import Finished, Measured, command

START_STEPS = 3 * 2048
GAMES = 500


def start(checkout: Path, hosts: Sequence[str], seed: int) -> Measured:
    """Measure the time from the command to the first summary after an update, in the CartPole example with `hosts`."""
    sets = [*hosts, f"behaviors.CartPole.max_steps={START_STEPS}", "behaviors.CartPole.summary_freq=2048"]
    with tempfile.TemporaryDirectory() as results:
        run = command(checkout / "config/examples/cartpole.yaml", sets, seed, Path(results), checkout)
        learned = run.scalars("CartPole", "Losses/Policy Loss")
        if not learned:
            raise SystemExit(f"{checkout}: no summary of an update in {START_STEPS} steps; expected one")
        return until(run, learned[0][1], 0.0)


def main_job(checkout: Path, seed: int, steps: int, wins: float) -> Measured:
    """Measure the time from the command to the first exported policy with this win rate against the script."""
    sets = [] if not steps else [f"behaviors.Volley.max_steps={steps}"]
    sets += ["behaviors.Volley.checkpoint_interval=125000", "behaviors.Volley.keep_checkpoints=100"]
    with tempfile.TemporaryDirectory() as results:
        run = command(checkout / "config/examples/volley.yaml", sets, seed, Path(results), checkout)
        return until(run, *reached(run, wins))


def reached(run: Finished, wins: float) -> tuple[float, float]:
    """Return when the first policy with enough wins was written, and its win rate.

    If no policy wins enough games, return the run's end and the best policy's win rate, and print a note.
    """
    import torch
    from main_job import player
    from matches import play_volley

    from headrace.pipeline.policies.export import exports_by_step
    from headrace.stages.games.volley import ScriptedPlayer

    torch.set_num_threads(1)
    best = 0.0
    for export in exports_by_step(run.folder / "Volley", "Volley"):
        rate = play_volley(player(export), ScriptedPlayer().act, GAMES, seed=11).win_rate
        if rate >= wins:
            return export.stat().st_mtime, rate
        best = max(best, rate)
    print(f"no policy of a main job won {wins:.0%} of {GAMES} games; the best won {best:.0%}", file=sys.stderr)
    return run.ended, best


def until(run: Finished, moment: float, score: float) -> Measured:
    """Return a run's measurements from the command to a moment, as if that span were one step."""
    took, used = moment - run.began, run.cpu_s(run.began, moment)
    return Measured(
        1 / took,
        1e6 * max(used.values()),
        1e6 * sum(used.values()),
        score=score,
        memory_mb=run.memory_mb,
        first_update_s=took,
        seconds=run.ended - run.began,
    )
