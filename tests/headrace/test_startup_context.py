"""Where a run began holds until it ends, whatever is changed meanwhile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.process_tree import ProcessTree
from headrace.startup_context import absolute, keep_variable, kept_startup_context, shortened, shown, startup_context


@pytest.fixture
def began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "green")
    with kept_startup_context():
        yield tmp_path


def test_a_relative_path_means_the_folder_in_which_the_run_began(began, monkeypatch):
    (began / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert absolute("results/r") == began / "results" / "r"
    assert absolute(began / "b.yaml") == began / "b.yaml"
    assert shown(began / "results" / "r") == str(Path("results", "r"))
    assert shown(began.parent / "r") == str(began.parent / "r")


def test_a_run_within_another_has_its_surroundings(began, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with kept_startup_context():
        assert absolute("r") == began / "r"
    assert absolute("r") == began / "r"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no folder that a process is in")
def test_a_removed_working_directory_counts_as_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert startup_context().folder == ""
    assert absolute("r") == Path("r")


def test_a_child_process_gets_the_folder_and_variables_of_the_run_s_start(began, monkeypatch):
    keep_variable("MARK", "7")
    (began / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for name in ("COLOUR", "MARK", "PATH"):
        monkeypatch.delenv(name)
    says = "import os; open('said', 'w').write(f'{os.environ[\"COLOUR\"]} {os.environ[\"MARK\"]} {\"PATH\" in os.environ}')"
    assert ProcessTree([sys.executable, "-c", says], shows=True).wait() == 0
    assert (began / "said").read_text() == "green 7 True"


def test_a_folder_that_is_gone_keeps_nothing_from_being_started(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    with kept_startup_context():
        monkeypatch.chdir(tmp_path)
        gone.rmdir()
        assert ProcessTree([sys.executable, "-c", "pass"], shows=True, env=os.environ).wait() == 0


def test_a_long_message_keeps_both_ends_and_the_number_of_other_characters():
    assert shortened("x" * 8_000) == "x" * 8_000
    message = "begin" + "x" * 70_000_000 + "end"
    short = shortened(message)
    assert short[:4_000] == message[:4_000]
    assert short[-4_000:] == message[-4_000:]
    assert short[4_000:-4_000] == " … (69,992,008 characters left out) … "
