"""A real engine: our games in GDScript run in Godot 3 and are learned. Debian's package godot3-server has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from engines import needs_godot3
from runs import run_here

from headrace.pipeline.run import RunOptions

GAMES = Path(__file__).parents[2] / "examples" / "godot"

pytestmark = needs_godot3


def played(name, folder, **behavior):
    """A run of one of the example files; returns its result and the mean rewards of its summaries."""
    plain = yaml.safe_load((GAMES / f"{name}.yaml").read_text())
    plain["env_settings"] |= {"env_path": str(GAMES / "build"), "base_port": 0, "seed": 1}
    (settings,) = plain["behaviors"].values()
    settings |= behavior
    plain["pipeline"] = {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}}
    rewards = []
    result = run_here(plain, folder, "run", RunOptions(on_summary=lambda summary: rewards.append(summary.mean_reward)))
    return result, rewards


def test_several_builds_of_a_game_train_at_once_and_end_in_order(tmp_path):
    result, rewards = played("chase", tmp_path, max_steps=60_000)
    assert rewards[0] < 2 < 6 < rewards[-1]
    assert (result.folder / "Chase.onnx").exists()
    for build in (0, 1):
        log = (result.folder / "run_logs" / f"Godot-{build}.log").read_text()
        assert "The trainer has sent close; the game ends." in log


@pytest.mark.slow
def test_a_duel_is_learned_by_self_play(tmp_path):
    result, _ = played("duel", tmp_path)
    assert result.behaviors["Duel"].elo > 1700
