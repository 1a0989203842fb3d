"""Windows of environments are refused where nobody could see them."""

from __future__ import annotations

import socket
import sys

import pytest

from headrace.stages.environments.factory import check_window, no_screen
from headrace.stages.errors import StageError

HUMAN = {"render_mode": "human"}


@pytest.fixture(autouse=True)
def _linux_without_a_screen(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)


def test_a_machine_without_a_screen_is_refused_with_alternatives():
    with pytest.raises(
        StageError,
        match=r"^environment.options: .* no display \(neither DISPLAY nor WAYLAND_DISPLAY.*--video DIR.*--monitor",
    ):
        check_window(HUMAN)


def test_without_a_window_no_screen_is_needed():
    check_window({"render_mode": "rgb_array"})
    check_window({})


@pytest.mark.parametrize("variable", ["WAYLAND_DISPLAY", "SDL_VIDEODRIVER"])
def test_variables_that_name_a_screen_are_accepted(variable, monkeypatch):
    monkeypatch.setenv(variable, "dummy")
    check_window(HUMAN)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no displays of X")
def test_a_display_that_does_not_respond_is_refused(monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        number = server.getsockname()[1] - 6000  # X listens at 6000 and the display's number
        monkeypatch.setenv("DISPLAY", f"127.0.0.1:{number}.0")
        assert no_screen().startswith(f"no display responds at DISPLAY=127.0.0.1:{number}.0. Record the game")
        server.listen()
        assert not no_screen()
    monkeypatch.setenv("DISPLAY", ":54321")
    assert "no display responds" in no_screen(), "nor is there a file for it"


def test_other_systems_have_a_screen_without_naming_it(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not no_screen()
