"""How a child of this Python is started, and what it imports early."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.paths import on_linux
from headrace.pipeline.common import process
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


@pytest.mark.parametrize("place", ["a/b", "a", "."])
@pytest.mark.parametrize("version", [1, 2])
def test_the_quota_of_a_control_group_or_of_one_above_it_limits_the_number_of_cores(
    tmp_path, monkeypatch, version, place
):
    monkeypatch.setattr(process, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    listed = tmp_path / "listed"
    listed.write_text("5:memory:/a/b\n4:cpu,cpuacct:/a/b\n" if version == 1 else "0::/a/b\n", encoding="ascii")
    root = tmp_path / "cpu,cpuacct" if version == 1 else tmp_path
    (root / "a" / "b").mkdir(parents=True)
    assert process.cpu_quotas(listed) == []
    for folder, quota in ((root / "a", "400000"), (root / "a" / "b", "-1" if version == 1 else "max")):
        limit(folder, version, quota)
    assert process.cpu_quotas(listed) == [4.0]
    limit(root / place, version, "150000")
    assert min(process.cpu_quotas(listed)) == 1.5


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_is_available_and_at_most_the_limit_of_a_control_group(tmp_path, monkeypatch, version):
    monkeypatch.setattr(process, "CONTROL_GROUPS", tmp_path)
    listed, information = tmp_path / "listed", tmp_path / "meminfo"
    assert process.usable_memory(information, listed) == math.inf  # another system
    information.write_text("MemTotal:       9000 kB\nMemAvailable:       3000 kB\n", encoding="ascii")
    listed.write_text("5:memory:/a\n" if version == 1 else "0::/a\n", encoding="ascii")
    assert process.usable_memory(information, listed) == 3000 * 1024
    folder = tmp_path / "memory" / "a" if version == 1 else tmp_path / "unified" / "a"
    folder.mkdir(parents=True)
    (folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text("2048000\n", encoding="ascii")
    assert process.usable_memory(information, listed) == 2048000


def limit(folder: Path, version: int, quota: str) -> None:
    """Give a control group a quota of microseconds per tenth of a second."""
    if version == 1:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n", encoding="ascii")
        (folder / "cpu.cfs_period_us").write_text("100000\n", encoding="ascii")
    else:
        (folder / "cpu.max").write_text(f"{quota} 100000\n", encoding="ascii")


@pytest.mark.skipif(not on_linux(), reason="other systems have no control groups")
def test_a_container_s_quota_is_rounded_up_to_whole_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for version, root in ((1, tmp_path / "cpu"), (2, tmp_path), (2, tmp_path / "unified")):
        root.mkdir(exist_ok=True)
        limit(root, version, "250000")
    assert process.usable_cores() == 3


@pytest.mark.skipif(sys.platform == "win32", reason="priorities there are other ones")
def test_a_process_and_its_session_give_way():
    program = (
        "import os, threading; from headrace.pipeline.common import process; process.give_way(); "
        "[thread.join() for thread in threading.enumerate() if thread.daemon]; "
        "print(os.nice(0), process.AUTOGROUP.exists() and process.AUTOGROUP.read_text().split()[-1])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True, check=True
    )
    niceness, of_session = ran.stdout.split()
    assert int(niceness) == os.nice(0) + process.NICENESS
    assert of_session in ("False", str(process.NICENESS))
