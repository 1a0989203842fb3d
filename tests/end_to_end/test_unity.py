"""Unity from end to end: the command, several stand-ins of it or the Editor, and what is left behind."""

from __future__ import annotations

import pytest
from run_configs import INLINE
from run_folders import tags
from runs import assert_no_children, run_here
from unity_command import LONG, NEEDS_PORT_5004, assert_saved, in_editor, restarts, unity
from unity_runs import reports

from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_handle import StopRequest

CHANNEL = '''
import uuid
from headrace.stages.environments.engines.unity.side_channels import OutgoingMessage, SideChannel

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


PATIENT = {"pipeline__supervision__grace_s": 120.0}
"""For tests that read what each program reports as it ends: on a loaded machine that takes a while."""


# As it should be. ----------------------------------------------------------------------------------------------------


def test_a_run_trains_in_two_builds_and_leaves_a_results_folder(tmp_path, monkeypatch, caplog):
    plain = unity(
        tmp_path,
        "--stats",
        "--step-ms",
        10,  # so that statistics, which hosts send once a second, come before the last summary
        "--companions",
        2,
        engine_settings={"width": 90, "height": 60, "time_scale": 7.0},
        environment_parameters={
            "step_size": 0.5,
            "noise": {"sampler_type": "gaussian", "sampler_parameters": {"mean": 0, "st_dev": 2}},
        },
        env_settings__num_areas=3,
        env_settings__side_channels=["echo:Echo"],
        **PATIENT,
        **INLINE,
    )
    (tmp_path / "echo.py").write_text(CHANNEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run_folder = run_here(plain, tmp_path, "run").folder
    assert_no_children()
    assert restarts(caplog.text) == 0
    assert_saved(run_folder, 1000)
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
    assert (run_folder / "run_logs" / "Player-1.log").is_file()
    assert {f"Client/{name}" for name in ("Average", "MostRecent", "Sum", "Histogram")} <= tags(run_folder, "Simple")
    assert b"olleh" in (tmp_path / "heard.txt").read_bytes()


@pytest.mark.slow
def test_builds_of_two_actors_are_numbered_consecutively(start, tmp_path):
    plain = unity(tmp_path, "--companions", 4, num_envs=2, pipeline__hosts__actors__replicas=2, **PATIENT)
    command = start(plain)
    assert command.wait() == 0, command.output
    base = plain["env_settings"]["base_port"]
    told = reports(tmp_path / "reports")
    assert sorted((report["port"] - base, report["seed"]) for report in told) == [(0, 5), (1, 6), (2, 7), (3, 8)]


def test_a_run_is_resumed_and_played(tmp_path, caplog):
    caplog.set_level("INFO")
    short = {"behaviors__Simple__max_steps": 400, "behaviors__Simple__summary_freq": 200}
    plain = unity(tmp_path, num_envs=1, **short, **INLINE)
    run_here(plain, tmp_path, "run")
    plain["behaviors"]["Simple"]["max_steps"] = 800
    run_folder = run_here(plain, tmp_path, "run", resume=True).folder
    assert_saved(run_folder, 800)
    before = len(reports(tmp_path / "reports"))
    stop = StopRequest()

    def stop_when_episodes_have_ended(summary):
        if summary.mean_reward is not None:
            stop.set()

    caplog.clear()
    played = RunOptions(console=True, stop=stop, on_summary=stop_when_episodes_have_ended)
    assert run_here(plain, tmp_path, "run", played, inference=True).interrupted
    assert "Mean Reward" in caplog.text
    assert_no_children()
    assert_saved(run_folder, 800)
    assert len(reports(tmp_path / "reports")) == before + 1


def test_agents_that_come_and_go_are_trained(tmp_path, caplog):
    plain = unity(tmp_path, "--scene", "crowd", "--groups", num_envs=1, **INLINE)
    plain["behaviors"] = {"Crowd": {**plain["behaviors"].pop("Simple"), "trainer_type": "poca", "max_steps": 500}}
    run_here(plain, tmp_path, "run")
    assert "has not ended" not in caplog.text
    assert all(report["returncode"] == 0 for report in reports(tmp_path / "reports"))


def test_two_teams_play_each_other(tmp_path):
    plain = unity(tmp_path, "--scene", "duel", num_envs=1, **INLINE)
    settings = plain["behaviors"].pop("Simple")
    plain["behaviors"]["Duel"] = {
        **settings,
        "self_play": {
            "save_steps": 100,
            "team_change": 400,
            "swap_steps": 100,
            "window": 4,
            "play_against_latest_model_ratio": 0,  # who plays against itself is not rated
        },
    }
    assert run_here(plain, tmp_path, "run").behaviors["Duel"].elo is not None


# The Editor. ---------------------------------------------------------------------------------------------------------


@NEEDS_PORT_5004
def test_stopping_the_editor_ends_the_run_normally(start, tmp_path, press_play):
    command = start(in_editor(tmp_path, **INLINE, **LONG))
    command.until(lambda: "Listening on port 5004" in command.output, "the word that it listens")
    editor = press_play("--agents", 4, "--misbehave", "stop", "--at-step", 200)
    assert command.wait() == 0, command.output
    assert editor.wait() == 0
    assert "so the run is ending." in command.output
    assert restarts(command.output) == 0
    command.assert_left_nothing()
    assert_saved(command.run_folder, 400)


@pytest.mark.slow
@NEEDS_PORT_5004
def test_the_editor_survives_the_end_of_training(start, tmp_path, press_play):
    command = start(in_editor(tmp_path, **INLINE))
    command.until(lambda: "Listening on port 5004" in command.output, "the word that it listens")
    editor = press_play("--agents", 4)
    assert command.wait() == 0, command.output
    assert editor.wait() == 0
    assert_saved(command.run_folder, 1000)
