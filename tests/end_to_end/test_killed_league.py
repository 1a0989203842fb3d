"""`kill -9` in the middle of a league: of main, a learner and an actor, as soon as the pool is ahead of the checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from runs import Command

from headrace.config import RunConfig
from headrace.config.league_game import league_game
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.messages import PolicyUpdate
from headrace.stages.league.controller import LeagueController
from headrace.stages.league.pool import Pool, hash_of, read_member

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]
KILLS = 2
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


def games_of_members(state: dict[str, Any]) -> dict[tuple[int, int], int]:
    """The number of games of each pair of members, which never falls."""
    return {(a, b): games for a, b, games, *_ in state["payoffs"]["pairs"] if a >= 0 and b >= 0}


def until_ahead(command: Command, league: League) -> None:
    """Wait for a checkpoint, and then for a member that it does not have."""
    number = command.until_checkpoint().number
    command.until_checkpoint(number + 1)
    command.until(lambda: len(league.names()) > len(league.kept()["members"]), "a member after the checkpoint")


def assert_went_on(before: dict[str, Any], after: dict[str, Any]) -> None:
    members = len(before["members"])
    assert after["members"][:members] == before["members"]
    games, more = games_of_members(before), games_of_members(after)
    assert all(more.get(pair, 0) >= count for pair, count in games.items())
    assert sum(more.values()) > sum(games.values())


def test_a_league_resumes_after_main_is_killed(start, tmp_path):
    command = start(CONFIG)
    league = League(command.run_folder)
    for number in range(KILLS):
        until_ahead(command, league)
        os.kill(command.process.pid, signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        command.until_gone()
        before, ahead = league.kept(), len(league.names())
        league.assert_whole()
        league.assert_resumes(tmp_path / f"copy-{number}")
        print(f"killed at {ahead} members, of which the checkpoint has {len(before['members'])}")
        command = start(CONFIG, "--resume")
        until_ahead(command, league)
        assert_went_on(before, league.kept())
    command.interrupt()
    assert command.wait() == 0, command.output
    league.assert_whole()
    command.assert_left_nothing()


@pytest.mark.parametrize(("victim", "learning"), [("learner-RPS.main", "all"), ("actor-0", "turns")])
def test_a_league_continues_after_a_host_is_killed(start, victim, learning):
    plain = deepcopy(CONFIG)
    plain["behaviors"]["RPS"]["league"]["learning"] = learning
    command = start(plain)
    league = League(command.run_folder)
    for _ in range(KILLS):
        until_ahead(command, league)
        before, pid = league.names(), command.pid_of(victim)
        kept = league.kept()
        psutil.Process(pid).kill()
        command.until(lambda: command.hosts().get(victim, pid) != pid, "a replacement")  # noqa: B023
        number = command.until_checkpoint().number
        command.until_checkpoint(number + 2)
        assert league.names()[: len(before)] == before
        assert_went_on(kept, league.kept())
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    league.assert_whole()
    command.assert_left_nothing()
