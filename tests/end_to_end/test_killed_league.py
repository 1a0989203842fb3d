"""`kill -9` in the middle of a league: of main, a learner and an actor, as soon as the pool is ahead of the checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from copy import deepcopy
from typing import Any

import psutil
import pytest
from league_runs import CONFIG, League
from runs import Command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]
KILLS = 2


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
