"""What the real command does on Windows as elsewhere: self-play, SAC with its memory, the page, the server, the Editor."""

from __future__ import annotations

import re

import pytest
from page_calls import Page
from run_configs import sac, volley
from run_folders import read_whole_checkpoint
from serving_samples import expected, post, served, write_model
from unity_command import LONG, NEEDS_PORT_5004, assert_saved, in_editor
from windows_console import CTRL_BREAK, ask

pytestmark = [pytest.mark.windows, pytest.mark.timeout(300)]


def test_self_play_of_teams_runs_and_can_be_resumed(start):
    command = start(volley())
    assert command.wait() == 0, command.output
    assert (command.run_folder / "Volley" / "league.json").is_file()
    again = start(volley(behaviors__Volley__max_steps=9000), "--resume")
    assert again.wait() == 0, again.output
    assert read_whole_checkpoint(command.run_folder)["trainer@learner-Volley"]["trainer"]["step"] >= 9000


def test_sac_resumes_with_its_replay_memory(start):
    command = start(sac())
    assert command.wait() == 0, command.output
    again = start(sac(behaviors__Pendulum__max_steps=900), "--resume")
    assert again.wait() == 0, again.output
    assert "Resuming" in again.output
    assert "Traceback" not in again.output


def test_the_page_shows_a_run_in_processes_and_ends_it(start):
    plain = volley(behaviors__Volley__max_steps=10**8, behaviors__Volley__summary_freq=500)
    page = Page(start(plain, "--monitor=0", "--monitor-control"))
    page.until(lambda state: state["behaviors"] and state["behaviors"][0]["step"] > 2000, "some steps")
    assert page.call("/api/runs/live/stop", body={})[0] == 200
    assert page.command.wait() == 0, page.command.output
    page.command.assert_left_nothing()


def test_a_policy_server_answers_until_ctrl_break(tmp_path):
    write_model(tmp_path / "results" / "first")
    with served(tmp_path, "results\\first", "--listen", "127.0.0.1:0", "--deterministic") as (process, said):
        url = re.search(r"HTTP: (http://127\.0\.0\.1:\d+/)", said)[1]
        status, answer = post(f"{url}api/models/Ball/act", {"observations": [[[1, 2, 3]]]})
        assert status == 200
        decision = expected([[[1, 2, 3]]])
        assert answer["continuous"][0] == pytest.approx(decision.actions.continuous[0].tolist(), rel=1e-5)
        ask(process.pid, CTRL_BREAK)
        assert process.wait(60) == 0


@NEEDS_PORT_5004
def test_the_editor_being_stopped_ends_the_run_in_order(start, tmp_path, press_play):
    command = start(in_editor(tmp_path, **LONG))
    command.until(lambda: "Listening on port 5004" in command.output, "the word that it listens")
    editor = press_play("--agents", 4, "--misbehave", "stop", "--at-step", 200)
    assert command.wait() == 0, command.output
    assert editor.wait() == 0
    assert "so the run is ending." in command.output
    command.assert_left_nothing()
    assert_saved(command.run_folder, 400)
