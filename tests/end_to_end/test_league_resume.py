"""A league in deterministic runs: the same each time, and bit for bit the same where it was resumed."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from headrace import run

CONFIG: dict[str, Any] = {
    "environment": {"kind": "builtin", "id": "RockPaperScissors", "num_envs": 16},
    "env_settings": {"seed": 5},
    "behaviors": {
        "RockPaperScissors": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 256, "learning_rate": 1e-3, "num_epoch": 2},
            "network_settings": {"hidden_units": 16, "num_layers": 1},
            "max_steps": 5000,
            "checkpoint_interval": 2000,
            "league": {
                "payoff": "mean_return",
                "rating": 0.2,
                "meta_solver": "replicator",
                "learners": {
                    "main": {
                        "matches": [
                            {"match": "self", "weight": 0.5},
                            {"match": "pfsp", "weight": 0.3},
                            {"match": "verify", "weight": 0.2},
                        ],
                        "freeze": {"at_most": 700},
                    },
                    "exploiter": {
                        "matches": [{"match": "newest", "against": "main"}],
                        "freeze": {"at_most": 500, "first": False},
                        "reset": {"probability": 0.5},
                    },
                },
            },
        }
    },
    "pipeline": {"deterministic": True},
}
LEARNERS = ("RockPaperScissors.main", "RockPaperScissors.exploiter")


def started(results: Path, run_id: str, learning: str, resume: bool = False) -> Path:
    """The folder of a run that has ended."""
    plain = deepcopy(CONFIG)
    plain["behaviors"]["RockPaperScissors"]["league"]["learning"] = learning
    run({**plain, "checkpoint_settings": {"run_id": run_id, "results_dir": str(results), "resume": resume}})
    return results / run_id


def result(folder: Path) -> list[bytes]:
    """What is the same in runs that are the same: the trainers' parts of the last checkpoint, and the pool."""
    newest = max((folder / "checkpoints").glob("0*"))
    parts = [(newest / f"trainer%40learner-{name}.part").read_bytes() for name in LEARNERS]
    return [*parts, *(path.name.encode() for path in sorted((folder / "RockPaperScissors/league").glob("*.policy")))]


@pytest.mark.slow
@pytest.mark.parametrize("learning", ["all", "turns"])
def test_a_deterministic_league_is_reproducible_even_after_a_resume(tmp_path, learning):
    first, second = (started(tmp_path, run_id, learning) for run_id in ("first", "second"))
    assert result(first) == result(second)
    newest = max((second / "checkpoints").glob("0*"))
    shutil.rmtree(newest)
    assert result(started(tmp_path, "second", learning, resume=True)) == result(first)
