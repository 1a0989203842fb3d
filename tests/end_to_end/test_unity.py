"""Unity from end to end: the command, several stand-ins of it, what goes wrong with them, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from runs import INLINE, PATIENCE_S, changed, read_whole_checkpoint, weights_digest
from unity_runs import BUILD, free_port, is_free, reports

from pipeline.checkpoint import newest

CHANNEL = '''
import uuid
from stages.unity.side_channels import OutgoingMessage, SideChannel

class Echo(SideChannel):
    """Writes down what comes back."""

    def __init__(self):
        super().__init__(uuid.UUID("0dca4da5-1c9c-4d9b-9a4e-2a6fb1a1d3c8"))
        message = OutgoingMessage()
        message.write_string("hello")
        self.queue_message_to_send(message)

    def on_message_received(self, msg):
        with open("heard.txt", "ab") as file:
            file.write(msg.get_raw_bytes())
'''


def unity(tmp_path, *arguments, num_envs=2, **changes):
    """A tiny run on the stand-in Unity: three agents of one behaviour in each."""
    plain = {
        "env_settings": {
            "env_path": str(BUILD),
            "env_args": ["--agents", "3", "--report", str(tmp_path / "reports"), *map(str, arguments)],
            "num_envs": num_envs,
            "base_port": free_port(4),
            "timeout_wait": 30,
            "seed": 5,
        },
        "behaviors": {
            "Simple": {
                "trainer_type": "ppo",
                "max_steps": 1000,
                "time_horizon": 16,
                "summary_freq": 500,
                "checkpoint_interval": 400,
                "hyperparameters": {"buffer_size": 200, "batch_size": 50, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 16, "num_layers": 1},
            }
        },
    }
    return changed(plain, changes)


LONG = {"behaviors__Simple__max_steps": 10**7}


def restarts(command):
    return command.output.count("\nRestarting Unity worker")


def player_of(command, worker):
    """The process id of a stand-in; waits until it is there."""
    log = f"Player-{worker}.log".encode()
    found = []

    def there():
        for pid in command.processes():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if log in line and b"unity_client" in line and pid not in found:
                found.append(pid)
        return bool(found)

    command.until(there, f"Unity worker {worker}")
    return found[-1]


def assert_saved(command, at_least=1):
    """What was learned is in a whole checkpoint."""
    states = read_whole_checkpoint(command.run_folder)
    assert states.keys() == {"trainer@learner-Simple"}
    assert newest(command.run_folder / "checkpoints").steps["Simple"] >= at_least


# As it should be. ----------------------------------------------------------------------------------------------------


def test_it_trains_in_two_programs_and_leaves_a_results_folder(start, tmp_path):
    plain = unity(
        tmp_path,
        "--stats",
        engine_settings={"width": 90, "height": 60, "time_scale": 7.0},
        environment_parameters={
            "step_size": 0.5,
            "noise": {"sampler_type": "gaussian", "sampler_parameters": {"mean": 0, "st_dev": 2}},
        },
        env_settings__num_areas=3,
        env_settings__side_channels=["echo:Echo"],
    )
    (tmp_path / "echo.py").write_text(CHANNEL)
    command = start(plain)
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    assert restarts(command) == 0
    assert_saved(command, 1000)
    first, second = sorted(reports(tmp_path / "reports"), key=lambda report: report["port"])
    base = plain["env_settings"]["base_port"]
    assert [(report["port"], report["seed"], report["returncode"]) for report in (first, second)] == [
        (base, 5, 0),
        (base + 1, 6, 0),
    ]
    for report in (first, second):
        assert report["engine"]["screen"] == [90, 60]
        assert report["engine"]["time_scale"] == [7.0]
        assert report["num_areas"] == 3
        assert report["parameters"]["step_size"] == 0.5
        assert report["agent_steps"] > 100
    assert first["parameters"]["noise"]["seed"] != second["parameters"]["noise"]["seed"]
    assert (command.run_folder / "run_logs" / "Player-1.log").is_file()
    gauges = json.loads((command.run_folder / "run_logs" / "timers.json").read_text())["gauges"]
    assert {f"Simple.Client.{name}.mean" for name in ("Average", "MostRecent", "Sum", "Histogram")} <= gauges.keys()
    assert b"olleh" in (tmp_path / "heard.txt").read_bytes()


def test_two_actors_number_their_programs_one_after_the_other(start, tmp_path):
    plain = unity(tmp_path, num_envs=2, pipeline__hosts__actors__replicas=2)
    command = start(plain)
    assert command.wait() == 0, command.output
    base = plain["env_settings"]["base_port"]
    told = reports(tmp_path / "reports")
    assert sorted((report["port"] - base, report["seed"]) for report in told) == [(0, 5), (1, 6), (2, 7), (3, 8)]


def test_it_resumes_and_plays_what_was_trained(start, tmp_path):
    plain = unity(tmp_path)
    command = start(plain)
    assert command.wait() == 0, command.output
    plain["behaviors"]["Simple"]["max_steps"] = 2000
    command = start(plain, "--resume")
    assert command.wait() == 0, command.output
    assert_saved(command, 2000)
    before = len(reports(tmp_path / "reports"))
    command = start(plain, "--inference")
    command.until(lambda: "Mean Reward" in command.output, "a summary of what is played")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.until_gone()
    assert_saved(command, 2000)
    assert len(reports(tmp_path / "reports")) == before + 2


def test_a_deterministic_run_gives_the_same_weights_again(start, tmp_path):
    plain = unity(tmp_path, pipeline__deterministic=True)
    digests = set()
    for run_id in ("a", "b"):
        command = start(plain, run_id=run_id)
        assert command.wait() == 0, command.output
        digests.add(weights_digest(command.run_folder, "Simple"))
    assert len(digests) == 1


@pytest.mark.parametrize("arguments", [("--groups",), ("--new-ids",)])
def test_agents_that_come_and_go_are_trained(start, tmp_path, arguments):
    plain = unity(tmp_path, "--scene", "crowd", *arguments)
    plain["behaviors"] = {"Crowd": {**plain["behaviors"].pop("Simple"), "trainer_type": "poca"}}
    command = start(plain)
    assert command.wait() == 0, command.output
    assert "never ended" not in command.output
    assert all(report["returncode"] == 0 for report in reports(tmp_path / "reports"))


def test_two_teams_play_each_other(start, tmp_path):
    plain = unity(tmp_path, "--scene", "duel")
    settings = plain["behaviors"].pop("Simple")
    plain["behaviors"]["Duel"] = {
        **settings,
        "self_play": {"save_steps": 200, "team_change": 400, "swap_steps": 100, "window": 4},
    }
    command = start(plain)
    assert command.wait() == 0, command.output
    assert "ELO" in command.output


# What goes wrong once is mended. -------------------------------------------------------------------------------------


MENDED = {
    "die-mid-step": "ended with signal SIGKILL",
    "exit-mid-step": "ended with return code 3",
    "stop": "has closed the connection",
    "garbage": "doesn't keep to the protocol",
    "empty-message": "doesn't keep to the protocol",
    "nan-reward": "agent 0: its reward is nan",
    "duplicate-ids": "asks for a decision 2 times",
    "unknown-behavior": "a behaviour 'Stranger?team=0' that it has never announced",
}


@pytest.mark.parametrize("trouble", MENDED)
def test_one_program_s_trouble_is_mended_by_a_restart_of_it_alone(start, tmp_path, trouble):
    command = start(unity(tmp_path, "--misbehave", trouble, "--at-step", 40, "--once", tmp_path / "once", **INLINE))
    assert command.wait() == 0, command.output
    assert MENDED[trouble] in command.output
    assert restarts(command) == 1
    assert "the others go on" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    assert_saved(command, 1000)


def test_one_that_hangs_is_ended_and_started_again(start, tmp_path):
    plain = unity(
        tmp_path, "--misbehave", "hang", "--at-step", 40, "--once", tmp_path / "once", env_settings__timeout_wait=3
    )
    command = start(changed(plain, {"behaviors__Simple__max_steps": 10**7}))
    command.until(lambda: restarts(command) == 1, "a restart")
    assert "hasn't finished its step within 3 s" in command.output
    number = command.until_checkpoint(0).number
    command.until_checkpoint(number + 2)
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


def test_one_that_hangs_does_not_keep_a_run_from_ending(start, tmp_path):
    """Long before its time is over; with a checkpoint of all that was learned."""
    plain = unity(tmp_path, "--misbehave", "hang", "--at-step", 150, num_envs=1, debug=True, **LONG)
    command = start(changed(plain, {"env_settings__timeout_wait": 600}))
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    assert_saved(command)


@pytest.mark.parametrize("hosts", [{}, INLINE], ids=["processes", "inline"])
def test_a_program_that_has_not_connected_yet_is_not_left_behind_by_ctrl_c(start, tmp_path, hosts):
    """Nobody else would end it: it knows of no trainer."""
    plain = unity(tmp_path, "--misbehave", "never-connects", num_envs=1, debug=True, **hosts)
    command = start(plain)
    command.until(lambda: "The stand-in Unity hangs" in command.output, "its word, which debug shows")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


def test_one_that_is_killed_is_started_again_until_it_may_not_and_the_run_ends_with_a_checkpoint(start, tmp_path):
    command = start(unity(tmp_path, **LONG))
    command.until_checkpoint(0)
    killed = player_of(command, 1)
    os.kill(killed, signal.SIGKILL)
    command.until(lambda: restarts(command) == 1, "a restart")
    number = newest(command.run_folder / "checkpoints").number
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
    assert_saved(command, newest(command.run_folder / "checkpoints").steps["Simple"])


def test_a_killed_actor_is_replaced_and_finds_its_ports_again(start, tmp_path):
    command = start(unity(tmp_path, **LONG))
    number = command.until_checkpoint(0).number
    os.kill(command.pid_of("actor-0"), signal.SIGKILL)
    command.until_checkpoint(number + 3)
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


# What no restart mends ends the run, with a checkpoint. --------------------------------------------------------------


def test_a_behaviour_that_is_not_configured_ends_the_run_with_a_checkpoint(start, tmp_path):
    arguments = ("--behaviors", "Simple?team=0", "Simpler?team=0", "--second-at", 80)
    command = start(unity(tmp_path, *arguments, **LONG))
    assert command.wait() == 1, command.output
    assert "the environment has a behaviour 'Simpler', which is not listed here (listed: Simple)" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    assert_saved(command)


def test_trouble_that_comes_back_ends_the_run_with_a_checkpoint(start, tmp_path):
    command = start(unity(tmp_path, "--misbehave", "nan-reward", "--at-step", 80, **LONG))
    assert command.wait() == 1, command.output
    assert "its reward is nan" in command.output
    assert "It is not restarted again" in command.output
    command.assert_left_nothing()
    assert_saved(command)


def test_another_version_is_refused_and_both_are_named(start, tmp_path):
    arguments = ("--misbehave", "wrong-version", "--communication-version", "2.0.0", "--package-version", "9.1.0")
    command = start(unity(tmp_path, *arguments))
    assert command.wait() == 1, command.output
    assert "speaks version 2.0.0" in command.output
    assert "9.1.0" in command.output
    assert "1.5.0" in command.output
    assert restarts(command) == 0
    command.assert_left_nothing()


def test_a_port_in_use_is_named_with_what_to_do(start, tmp_path):
    plain = unity(tmp_path)
    with socket.socket() as busy:
        busy.bind(("", plain["env_settings"]["base_port"] + 1))
        busy.listen()
        command = start(plain)
        assert command.wait() == 1, command.output
    assert str(plain["env_settings"]["base_port"] + 1) in command.output
    assert "--base-port" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


def test_one_that_never_connects_is_named_with_what_to_look_at(start, tmp_path):
    command = start(unity(tmp_path, "--misbehave", "never-connects", env_settings__timeout_wait=2))
    assert command.wait() == 1, command.output
    assert "hasn't connected within 2 s" in command.output
    command.assert_left_nothing()


def test_a_message_of_any_size_is_taken(start, tmp_path):
    command = start(unity(tmp_path, "--misbehave", "huge-message", "--at-step", 40, "--huge-mib", 20))
    assert command.wait() == 0, command.output
    assert restarts(command) == 0


# The Editor. ---------------------------------------------------------------------------------------------------------


class Editor:
    """The stand-in as the Unity Editor: somebody else starts it, and it calls port 5004."""

    def __init__(self, *arguments):
        mark = {"UNITY_CLIENT_PYTHON": sys.executable, "HEADRACE_EDITOR": uuid.uuid4().hex}
        line = [f"{BUILD}.x86_64", "--mlagents-port", "5004", *map(str, arguments)]
        self._process = subprocess.Popen(line, env={**os.environ, **mark}, stdout=subprocess.DEVNULL)

    def wait(self):
        return self._process.wait(PATIENCE_S)

    def end(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def press_play():
    """Starts the Editor's stand-in."""
    begun = []

    def press(*arguments):
        begun.append(Editor(*arguments))
        return begun[-1]

    yield press
    for editor in begun:
        editor.end()


def in_editor(tmp_path, **changes):
    plain = unity(tmp_path, num_envs=1, **changes)
    plain["env_settings"] = {"timeout_wait": 30, "seed": 5}
    return plain


needs_port_5004 = pytest.mark.skipif(not is_free(5004), reason="somebody listens on the Editor's port")


@needs_port_5004
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_editor_being_stopped_ends_the_run_in_order(start, tmp_path, press_play, deterministic):
    command = start(in_editor(tmp_path, pipeline__deterministic=deterministic, **LONG))
    command.until(lambda: "Listening on port 5004" in command.output, "the word that it listens")
    editor = press_play("--agents", 4, "--misbehave", "stop", "--at-step", 200)
    assert command.wait() == 0, command.output
    assert editor.wait() == 0
    assert "The run ends." in command.output
    assert restarts(command) == 0
    command.assert_left_nothing()
    assert_saved(command, 400)


@needs_port_5004
def test_the_end_of_training_lets_the_editor_go_on(start, tmp_path, press_play):
    command = start(in_editor(tmp_path))
    command.until(lambda: "Listening on port 5004" in command.output, "the word that it listens")
    editor = press_play("--agents", 4)
    assert command.wait() == 0, command.output
    assert editor.wait() == 0
    assert_saved(command, 1000)
