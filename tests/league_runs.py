"""A league that the command runs, and what its folder has of the league."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import RunConfig
from headrace.config.league_game import league_game
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.messages import PolicyUpdate
from headrace.stages.league.controller import LeagueController
from headrace.stages.league.pool import Pool, hash_of, read_member

CONFIG: dict[str, Any] = {
    "environment": {"kind": "builtin", "id": "RockPaperScissors", "num_envs": 8},
    "env_settings": {"max_lifetime_restarts": -1, "restarts_rate_limit_n": -1},
    "behaviors": {
        "RPS": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 32, "buffer_size": 128},
            "network_settings": {"hidden_units": 8, "num_layers": 1},
            "max_steps": 10**8,
            "checkpoint_interval": 3000,
            "league": {
                "rating": 0.2,
                "learners": {
                    "exploiter": {
                        "matches": [{"match": "newest", "against": "main"}],
                        "freeze": {"at_most": 2000, "first": False},
                        "reset": {"probability": 1.0},
                    },
                    "main": {"matches": [{"match": "self"}, {"match": "pfsp"}], "freeze": {"at_most": 2000}},
                },
            },
        }
    },
    "pipeline": {"hosts": {"actors": {"kind": "process"}, "learners": {"kind": "process"}}},
}


class League:
    """What a run's folder has of its league."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = folder / "RPS" / "league"

    def names(self) -> list[str]:
        """The members' files, by the index."""
        index = self.pool / "pool.json"
        return [each["path"] for each in json.loads(index.read_text())["members"]] if index.exists() else []

    def newest(self) -> int:
        """The number of the newest checkpoint."""
        checkpoint = newest_checkpoint(self.folder / "checkpoints")
        return -1 if checkpoint is None else checkpoint.number

    def kept(self) -> dict[str, Any]:
        """The league's state in the newest checkpoint."""
        checkpoint = newest_checkpoint(self.folder / "checkpoints")
        assert checkpoint is not None
        state: dict[str, Any] = checkpoint.read("league@main")
        return state["RPS"]

    def assert_whole(self) -> None:
        """Every member's file has the weights that were frozen."""
        pool = Pool(self.pool)
        assert [member.number for member in pool.members] == [*range(len(pool.members))]
        for member in pool.members:
            update: PolicyUpdate = read_member(self.pool, member)
            assert hash_of(update) == member.hash
            assert update.behavior_id.partition("?")[0] == f"RPS.{member.learner}"

    def assert_resumes(self, copied: Path) -> None:
        """A league that is restored from the newest checkpoint has the pool and the payoffs that were saved."""
        kept = self.kept()
        shutil.copytree(self.pool, copied)
        game = league_game(RunConfig.from_plain(CONFIG))
        league = LeagueController("RPS", game.settings, Pool(copied), np.random.default_rng(0))
        league.load_state_dict(kept)
        again = league.state_dict()
        assert {key: again[key] for key in ("members", "payoffs", "progress", "mixture")} == {
            key: kept[key] for key in ("members", "payoffs", "progress", "mixture")
        }
        assert sorted(each.name for each in copied.glob("*.policy")) == [each["path"] for each in kept["members"]]
