"""What one Unity program's trouble does to a run, and what it does not."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from run_configs import INLINE, changed
from runs import assert_no_children, run_here
from unity_command import LONG, assert_saved, player_of, restarts, unity

from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.pipeline.run_handle import StopRequest

# What goes wrong once is mended. -------------------------------------------------------------------------------------


MENDED = {
    "die-mid-step": "ended with signal SIGKILL",
    "exit-mid-step": "ended with return code 3",
    "garbage": "violates the protocol",
    "empty-message": "violates the protocol",
    "nan-reward": "agent 0: its reward is nan",
    "duplicate-ids": "requests a decision 2 times",
    "unknown-behavior": "a behaviour 'Stranger?team=0' that it has not announced",
}


ALWAYS = {"die-mid-step"}
"""The others are read and refused in the same way; they are tried under `-m slow`, and alone in tests/stages/environments/engines/unity."""


@pytest.mark.parametrize(
    "trouble", [each if each in ALWAYS else pytest.param(each, marks=pytest.mark.slow) for each in MENDED]
)
def test_one_program_s_trouble_is_mended_by_a_restart_of_it_alone(tmp_path, caplog, trouble):
    once = ("--at-step", 40, "--once", tmp_path / "once")
    result = run_here(unity(tmp_path, "--misbehave", trouble, *once, **INLINE), tmp_path, "run")
    assert MENDED[trouble] in caplog.text
    assert restarts(caplog.text) == 1
    assert "the others continue" in caplog.text
    assert "Traceback" not in caplog.text
    assert_no_children()
    assert_saved(result.folder, 1000)


# What closes in order has not failed. ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quits", "words"),
    [("stop", "has closed the connection"), pytest.param("quit-in-step", "has quit", marks=pytest.mark.slow)],
)
def test_the_others_go_on_without_a_program_that_quits(tmp_path, caplog, quits, words):
    caplog.set_level("INFO")
    once = ("--at-step", 40, "--once", tmp_path / "once")
    result = run_here(unity(tmp_path, "--misbehave", quits, *once, **INLINE), tmp_path, "run")
    assert words in caplog.text
    assert "The others continue." in caplog.text
    assert restarts(caplog.text) == 0
    assert_no_children()
    assert_saved(result.folder, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "many",
    [
        {"num_envs": 2, **INLINE},
        {"num_envs": 1, "pipeline__hosts__actors__replicas": 2},
        {"num_envs": 1, **INLINE, "pipeline__deterministic": True},
    ],
    ids=["one actor", "two actors", "deterministic"],
)
def test_the_run_ends_with_the_last_program_also_in_the_middle_of_checkpoints(start, tmp_path, many):
    quits = tmp_path / "quits"
    plain = unity(tmp_path, "--quits", quits, **LONG, behaviors__Simple__checkpoint_interval=1, **many)
    command = start(plain)
    command.until_checkpoint(3)
    quits.touch()
    assert command.wait() == 0, command.output
    assert "No more experience is arriving, so the run is ending." in command.output
    assert restarts(command.output) == 0
    command.assert_left_nothing()
    assert_saved(command.run_folder)


def test_an_actor_whose_program_has_quit_leaves_its_credits_to_the_others_and_stays_until_the_last_one_quits(
    tmp_path, caplog
):
    """With a lag of 0 the trainer needs all credits for its next update; an actor that left would be blamed for it."""
    caplog.set_level("INFO")
    quits, later = tmp_path / "quits", []

    def quit_some_checkpoints_later(checkpoint):
        if "has closed the connection" in caplog.text:
            later.append(checkpoint.number)
        if len(later) == 5:
            quits.touch()

    once = ("--misbehave", "stop", "--at-step", 20, "--once", tmp_path / "once")
    plain = unity(tmp_path, *once, "--quits", quits, **LONG, num_envs=1, behaviors__Simple__checkpoint_interval=1)
    plain = changed(plain, {**INLINE, "pipeline__hosts__actors__replicas": 2, "pipeline__max_policy_lag": 0})
    result = run_here(plain, tmp_path, "run", RunOptions(on_checkpoint=quit_some_checkpoints_later))
    assert "No more experience is arriving, so the run is ending." in caplog.text
    assert restarts(caplog.text) == 0
    assert_no_children()
    assert_saved(result.folder)


def test_a_program_that_quits_before_an_agent_has_shown_is_no_success(tmp_path):
    with pytest.raises(
        RunFailed, match="closed before any agent requested a decision, so nothing was learned"
    ) as failed:
        run_here(unity(tmp_path, "--misbehave", "quit-at-start", num_envs=1, **INLINE), tmp_path, "run")
    assert "--resume" not in str(failed.value)
    assert_no_children()


@pytest.mark.slow
def test_a_program_that_quits_is_started_again_if_that_is_wanted(start, tmp_path):
    arguments = ("--misbehave", "stop", "--at-step", 40, "--once", tmp_path / "once")
    command = start(unity(tmp_path, *arguments, num_envs=1, env_settings__on_close="restart", **INLINE))
    assert command.wait() == 0, command.output
    assert "has closed the connection: restarting it (restart 1)" in command.output
    command.assert_left_nothing()
    assert_saved(command.run_folder, 1000)


@pytest.mark.slow
def test_one_that_hangs_is_ended_and_started_again(tmp_path, caplog):
    stop, later = StopRequest(), []

    def stop_two_checkpoints_later(checkpoint):
        if restarts(caplog.text):
            later.append(checkpoint.number)
        if len(later) == 2:
            stop.set()

    once = ("--misbehave", "hang", "--at-step", 40, "--once", tmp_path / "once")
    plain = unity(tmp_path, *once, env_settings__timeout_wait=3, **LONG, **INLINE)
    run_here(plain, tmp_path, "run", RunOptions(stop=stop, on_checkpoint=stop_two_checkpoints_later))
    assert restarts(caplog.text) == 1
    assert "hasn't finished its step within 3 s" in caplog.text
    assert_no_children()


def test_one_that_hangs_does_not_keep_a_run_from_ending(start, tmp_path):
    """Long before its time is over; with a checkpoint of all that was learned."""
    plain = unity(tmp_path, "--misbehave", "hang", "--at-step", 150, num_envs=1, debug=True, **LONG)
    hosts = {"pipeline__hosts__learners__kind": "inline"}
    command = start(changed(plain, {"env_settings__timeout_wait": 600, **hosts}))
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    assert_saved(command.run_folder)


@pytest.mark.slow  # the one before hangs, too; tests/stages/environments/engines/unity ends it alone
@pytest.mark.parametrize("hosts", [pytest.param({}, id="processes"), pytest.param(INLINE, id="inline")])
def test_a_program_that_has_not_connected_yet_is_not_left_behind_by_ctrl_c(start, tmp_path, hosts):
    """Nobody else would end it: it knows of no trainer."""
    plain = unity(tmp_path, "--misbehave", "never-connects", num_envs=1, debug=True, **hosts)
    command = start(plain)
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["main", "actor-0", "all by a second Ctrl-C"])
def test_nor_by_a_kill(start, tmp_path, who):
    command = start(unity(tmp_path, "--misbehave", "never-connects", num_envs=1, debug=True))
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    player = player_of(command, 0)
    if who == "main":
        command.process.kill()
    elif who == "actor-0":
        os.kill(command.pid_of(who), signal.SIGKILL)
        command.until(lambda: player not in command.processes(), "end of the program")
        command.interrupt()
    else:
        command.interrupt()
        command.interrupt()
    command.wait()
    command.assert_left_nothing()


@pytest.mark.slow
def test_one_that_is_killed_is_started_again_until_it_may_not_and_the_run_ends_with_a_checkpoint(start, tmp_path):
    command = start(unity(tmp_path, **LONG, **INLINE))
    command.until_checkpoint(0)
    killed = player_of(command, 1)
    os.kill(killed, signal.SIGKILL)
    command.until(lambda: restarts(command.output) == 1, "a restart")
    number = newest_checkpoint(command.run_folder / "checkpoints").number
    command.until_checkpoint(number + 2)
    other = player_of(command, 0)
    command.until(lambda: player_of(command, 1) != killed, "another worker 1")
    os.kill(player_of(command, 1), signal.SIGKILL)
    assert command.wait() == 1, command.output
    assert "It is not restarted again: it was restarted once within 60 s" in command.output
    assert "restarts_rate_limit_n is 1" in command.output
    assert "--run-id run --resume" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    assert not Path(f"/proc/{other}").exists()
    assert_saved(command.run_folder, newest_checkpoint(command.run_folder / "checkpoints").steps["Simple"])


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_finds_its_ports_again(start, tmp_path):
    command = start(unity(tmp_path, **LONG))
    number = command.until_checkpoint(0).number
    os.kill(command.pid_of("actor-0"), signal.SIGKILL)
    command.until_checkpoint(number + 3)
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


# What no restart mends ends the run, with a checkpoint. --------------------------------------------------------------


def test_a_behaviour_that_is_not_configured_ends_the_run_with_a_checkpoint(tmp_path, caplog):
    arguments = ("--behaviors", "Simple?team=0", "Simpler?team=0", "--second-at", 80)
    expected = r"the environment has a behaviour 'Simpler', which is not listed here \(listed: Simple\)"
    with pytest.raises(RunFailed, match=expected):
        run_here(unity(tmp_path, *arguments, num_envs=1, **LONG, **INLINE), tmp_path, "run")
    assert "Traceback" not in caplog.text
    assert_no_children()
    assert_saved(tmp_path / "run")


def test_trouble_that_comes_back_ends_the_run_with_a_checkpoint(tmp_path):
    with pytest.raises(RunFailed, match="(?s)its reward is nan.*It is not restarted again"):
        arguments = ("--misbehave", "nan-reward", "--at-step", 80)
        run_here(unity(tmp_path, *arguments, num_envs=1, **LONG, **INLINE), tmp_path, "run")
    assert_no_children()
    assert_saved(tmp_path / "run")


def test_another_version_is_refused_and_both_are_named(tmp_path, caplog):
    arguments = ("--misbehave", "wrong-version", "--communication-version", "2.0.0", "--package-version", "9.1.0")
    with pytest.raises(RunFailed, match=r"speaks version 2\.0\.0") as failed:
        run_here(unity(tmp_path, *arguments, num_envs=1, **INLINE), tmp_path, "run")
    assert "9.1.0" in str(failed.value)
    assert "1.5.0" in str(failed.value)
    assert restarts(caplog.text) == 0
    assert_no_children()


def test_a_port_in_use_is_named_with_what_to_do(tmp_path):
    plain = unity(tmp_path, **INLINE)
    port = plain["env_settings"]["base_port"] + 1
    with socket.socket() as busy:
        busy.bind(("", port))
        busy.listen()
        with pytest.raises(RunFailed, match=f"{port}.*--base-port"):
            run_here(plain, tmp_path, "run")
    assert_no_children()


def test_one_that_never_connects_is_named_with_what_to_look_at(tmp_path):
    plain = unity(tmp_path, "--misbehave", "never-connects", num_envs=1, env_settings__timeout_wait=2, **INLINE)
    with pytest.raises(RunFailed, match="hasn't connected within 2 s"):
        run_here(plain, tmp_path, "run")
    assert_no_children()


def test_a_message_of_any_size_is_taken(tmp_path, caplog):
    arguments = ("--misbehave", "huge-message", "--at-step", 40, "--huge-mib", 20)
    assert_saved(run_here(unity(tmp_path, *arguments, num_envs=1, **INLINE), tmp_path, "run").folder, 1000)
    assert restarts(caplog.text) == 0
