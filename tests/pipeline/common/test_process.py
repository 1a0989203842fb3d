"""How a child of this Python is started."""

from __future__ import annotations

import sys

from headrace.pipeline.common.process import interpreter_to_start

LAUNCHER, INTERPRETER = r"C:\venv\Scripts\python.exe", r"C:\Python311\python.exe"


def test_in_a_virtual_environment_on_windows_the_interpreter_is_started_and_not_its_launcher(monkeypatch):
    monkeypatch.setattr(sys, "executable", LAUNCHER)
    monkeypatch.setattr(sys, "_base_executable", INTERPRETER)
    assert interpreter_to_start("win32") == (INTERPRETER, {"__PYVENV_LAUNCHER__": LAUNCHER})
    assert interpreter_to_start("linux") == (LAUNCHER, {})


def test_without_one_the_interpreter_is_started_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "executable", INTERPRETER)
    monkeypatch.setattr(sys, "_base_executable", INTERPRETER)
    assert interpreter_to_start("win32") == (INTERPRETER, {})
