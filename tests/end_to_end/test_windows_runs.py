"""Whole runs on Windows of what nothing there but the system sets apart: self-play, SAC with its memory, the page."""

from __future__ import annotations

import pytest
from page_calls import Page
from run_configs import sac, volley
from run_folders import read_whole_checkpoint

pytestmark = [pytest.mark.windows, pytest.mark.timeout(300)]


def test_teams_play_each_other_and_a_resumed_run_goes_on(start):
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
