"""Games that environments start: they end as the environment asks them to, and none is left by a host that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from run_configs import INLINE, changed, troubled
from runs import NEEDS_LINUX

GAME_ENV = Path(__file__).with_name("game_env.py")
PROCESSES = {"pipeline__hosts__learners__kind": "inline", "pipeline__hosts__actors__replicas": 1}
"""Games are the actors' affair; with the number of actors given, no game is measured before the run."""
WAYS = [
    pytest.param({}, PROCESSES, id="in the actor's group", marks=pytest.mark.slow),
    pytest.param({"session": True}, INLINE, id="of an inline host", marks=NEEDS_LINUX),
]
OF_ACTORS = [
    pytest.param({}, id="in the actor's group", marks=pytest.mark.slow),
    pytest.param({"session": True, "deaf": True}, id="in a session, deaf to SIGTERM", marks=NEEDS_LINUX),
]
LONG = 10**7


def playing(folder, hosts, max_steps=LONG, **options):
    plain = troubled()
    plain["environment"] |= {"factory": "game_env:GameEnv", "options": {"folder": str(folder), **options}}
    plain["environment"] |= {"num_envs": 2}
    return changed(plain, {**hosts, "behaviors__CartPole__max_steps": max_steps})


def games(folder):
    """The process ids that games have written down."""
    texts = [file.read_text().split() for file in Path(folder).glob("game-*")]
    return [int(pid) for text in texts if len(text) == 2 for pid in text]


@pytest.mark.slow
def test_an_environment_may_end_its_game_as_it_closes(start, tmp_path):
    command = start(playing(tmp_path, PROCESSES, max_steps=1000), beside=[GAME_ENV])
    assert command.wait() == 0, command.output
    assert "did not end within" not in command.output
    assert len(games(tmp_path)) == 4
    command.assert_left_nothing()


@pytest.mark.parametrize(("options", "hosts"), WAYS)
def test_a_killed_main_leaves_no_game(start, tmp_path, options, hosts):
    command = start(playing(tmp_path, hosts, **options), beside=[GAME_ENV])
    command.until_checkpoint(0)
    command.process.kill()
    command.wait()
    assert len(games(tmp_path)) == 4
    command.assert_left_nothing()


@pytest.mark.parametrize("options", OF_ACTORS)
def test_a_killed_actor_leaves_no_game_and_is_replaced(start, tmp_path, options):
    command = start(playing(tmp_path, PROCESSES, **options), beside=[GAME_ENV])
    number = command.until_checkpoint(0).number
    before = games(tmp_path)
    os.kill(command.pid_of("actor-0"), signal.SIGKILL)
    command.until(lambda: len(games(tmp_path)) == 8, "a game of the replacement")
    command.until_checkpoint(number + 3)
    command.until(lambda: not set(before) & set(command.processes()), "end of the games before")
    assert set(games(tmp_path)) - set(before) <= set(command.processes()), "those of the replacement were ended, too"
    if options.get("deaf"):  # it would wait for its game
        command.process.kill()
        command.wait()
    else:
        command.interrupt()
        assert command.wait() == 0, command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_without_a_sweeper_main_ends_the_group_of_a_killed_actor(start, tmp_path):
    """As on systems that have no handles of processes, or no /proc."""
    command = start(playing(tmp_path, PROCESSES), beside=[GAME_ENV], environment={"HEADRACE_PLATFORM": "plain"})
    command.until_checkpoint(0)
    before = games(tmp_path)
    os.kill(command.pid_of("actor-0"), signal.SIGKILL)
    command.until(lambda: not set(before) & set(command.processes()), "end of the games before")
    command.until(lambda: len(games(tmp_path)) == 8, "a game of the replacement")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
