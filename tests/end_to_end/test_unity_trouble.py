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


def test_only_the_build_that_crashes_is_restarted(tmp_path, caplog):
    """Other faults are in tests/stages/environments/engines/unity."""
    once = ("--at-step", 40, "--once", tmp_path / "once")
    result = run_here(unity(tmp_path, "--misbehave", "die-mid-step", *once, **INLINE), tmp_path, "run")
    assert "ended with signal SIGKILL" in caplog.text
    assert restarts(caplog.text) == 1
    assert "the others continue" in caplog.text
    assert "Traceback" not in caplog.text
    assert_no_children()
    assert_saved(result.folder, 1000)


# What closes in order has not failed. ---------------------------------------------------------------------------------


def test_the_other_builds_continue_if_one_quits(tmp_path, caplog):
    caplog.set_level("INFO")
    once = ("--at-step", 40, "--once", tmp_path / "once")
    result = run_here(unity(tmp_path, "--misbehave", "stop", *once, **INLINE), tmp_path, "run")
    assert "has closed the connection" in caplog.text
    assert "The others continue." in caplog.text
    assert restarts(caplog.text) == 0
    assert_no_children()
    assert_saved(result.folder, 1000)


@pytest.mark.slow
def test_a_run_ends_with_a_checkpoint_when_its_last_build_quits(start, tmp_path):
    quits, two_actors = tmp_path / "quits", {"num_envs": 1, "pipeline__hosts__actors__replicas": 2}
    plain = unity(tmp_path, "--quits", quits, **LONG, behaviors__Simple__checkpoint_interval=1, **two_actors)
    command = start(plain)
    command.until_checkpoint(3)
    quits.touch()
    assert command.wait() == 0, command.output
    assert "No more experience is arriving, so the run is ending." in command.output
    assert restarts(command.output) == 0
    command.assert_left_nothing()
    assert_saved(command.run_folder)


def test_an_actor_whose_build_has_quit_returns_its_credits_and_stays(tmp_path, caplog):
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


def test_a_build_that_quits_before_its_first_agent_is_a_failure(tmp_path):
    with pytest.raises(
        RunFailed, match="closed before any agent requested a decision, so nothing was learned"
    ) as failed:
        run_here(unity(tmp_path, "--misbehave", "quit-at-start", num_envs=1, **INLINE), tmp_path, "run")
    assert "--resume" not in str(failed.value)
    assert_no_children()


@pytest.mark.slow
def test_a_build_that_quits_is_restarted_with_on_close_restart(start, tmp_path):
    arguments = ("--misbehave", "stop", "--at-step", 40, "--once", tmp_path / "once")
    command = start(unity(tmp_path, *arguments, num_envs=1, env_settings__on_close="restart", **INLINE))
    assert command.wait() == 0, command.output
    assert "has closed the connection: restarting it (restart 1)" in command.output
    command.assert_left_nothing()
    assert_saved(command.run_folder, 1000)


def test_a_build_that_hangs_does_not_block_the_end_of_a_run(start, tmp_path):
    """Long before its time is over; with a checkpoint of all that was learned."""
    plain = unity(tmp_path, "--misbehave", "hang", "--at-step", 150, num_envs=1, debug=True, **LONG)
    hosts = {"pipeline__hosts__learners__kind": "inline"}
    command = start(changed(plain, {"env_settings__timeout_wait": 600, **hosts}))
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    assert_saved(command.run_folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-C", "a second Ctrl-C", "kill"])
def test_a_build_that_has_not_connected_ends_with_the_run(start, tmp_path, way):
    """Nothing else would end it: it does not know its trainer."""
    command = start(unity(tmp_path, "--misbehave", "never-connects", num_envs=1, debug=True))
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    if way == "kill":
        command.process.kill()
    else:
        command.interrupt()
    if way == "a second Ctrl-C":
        command.interrupt()
    command.wait()
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_killed_build_is_restarted_up_to_the_limit(start, tmp_path):
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


def test_a_repeated_fault_ends_the_run_with_a_checkpoint(tmp_path):
    with pytest.raises(RunFailed, match="(?s)its reward is nan.*It is not restarted again"):
        arguments = ("--misbehave", "nan-reward", "--at-step", 80)
        run_here(unity(tmp_path, *arguments, num_envs=1, **LONG, **INLINE), tmp_path, "run")
    assert_no_children()
    assert_saved(tmp_path / "run")


def test_an_unsupported_version_is_refused(tmp_path, caplog):
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


def test_a_build_that_never_connects_is_named(tmp_path):
    plain = unity(tmp_path, "--misbehave", "never-connects", num_envs=1, env_settings__timeout_wait=2, **INLINE)
    with pytest.raises(RunFailed, match="hasn't connected within 2 s"):
        run_here(plain, tmp_path, "run")
    assert_no_children()
