"""How a child of this Python is started, and what it imports early."""

from __future__ import annotations

import gc
import sys

from headrace.pipeline.common.process import import_early, interpreter_to_start, use_one_thread

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


def test_numeric_libraries_use_one_thread_unless_the_user_has_set_another_number():
    environment = {"OMP_NUM_THREADS": "4"}
    use_one_thread(environment)
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("4", "1")


def test_a_module_that_fails_stops_no_other(tmp_path, monkeypatch):
    (tmp_path / "breaks_at_import.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "fine_at_import.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_early(["is_not_there_at_all", "breaks_at_import", "fine_at_import"])
    gc.unfreeze()
    assert "fine_at_import" in sys.modules
    del sys.modules["fine_at_import"]
