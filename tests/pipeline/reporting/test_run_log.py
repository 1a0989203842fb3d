"""The log in a run's folder: all that the console says, its details and its end, and no harm to the run."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.reporting.console import DETAIL, configure_logging, logged_to

log = logging.getLogger("headrace.pipeline.test")


@pytest.fixture(autouse=True)
def console() -> io.StringIO:
    out = io.StringIO()
    configure_logging(stream=out, details=False)
    return out


def lines(folder: Path) -> list[str]:
    text = (folder / "run_logs/run.log").read_text()
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in text.splitlines()]


def test_lines_have_their_time_and_details_are_there_too(tmp_path: Path, console: io.StringIO):
    with logged_to(tmp_path, append=False):
        log.info("begun")
        log.info("settings", extra={DETAIL: True})
    log.info("after it")
    assert lines(tmp_path) == ["[INFO] begun", "[INFO] settings"]
    assert console.getvalue() == "[INFO] begun\n[INFO] after it\n"


def test_a_resumed_run_appends_to_its_log_and_a_new_run_overwrites_it(tmp_path: Path):
    for words, append in (("one", False), ("two", True)):
        with logged_to(tmp_path, append=append):
            log.info(words)
    assert lines(tmp_path) == ["[INFO] one", "[INFO] two"]
    with logged_to(tmp_path, append=False):
        log.info("three")
    assert lines(tmp_path) == ["[INFO] three"]


def test_the_last_line_of_the_log_says_why_a_run_failed(tmp_path: Path, console: io.StringIO):
    with pytest.raises(RunFailed), logged_to(tmp_path, append=False):
        raise RunFailed("the disk burns\nand so on")
    assert lines(tmp_path) == ["[ERROR] the disk burns", "[ERROR] and so on"]
    assert console.getvalue() == "", "the command says it, once"


def test_a_run_continues_without_a_log_if_its_folder_is_read_only(tmp_path: Path, console: io.StringIO):
    (tmp_path / "run_logs").write_text("a file")
    with logged_to(tmp_path, append=False):
        log.info("begun")
    assert "can't be written" in console.getvalue()
    assert "begun" in console.getvalue()


def test_a_disk_that_fills_up_is_named_once(tmp_path: Path, capsys):
    (tmp_path / "run_logs").mkdir()
    (tmp_path / "run_logs/run.log").symlink_to("/dev/full")
    with logged_to(tmp_path, append=False):
        log.info("begun")
        log.info("more")
    said = capsys.readouterr().err
    assert said.count("run.log can't be written: No space left on device. Training continues.") == 1


class Heard(logging.Handler):
    """A handler of a caller from Python."""

    def __init__(self):
        super().__init__()
        self.words = []

    def emit(self, record):
        self.words.append(record.getMessage())


@pytest.fixture
def unconfigured():
    """Logging as Python has it; returns what is heard by a handler of the root, and by one of ours."""
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    before = (list(ours.handlers), ours.level, ours.propagate, root.level)
    ours.handlers[:], ours.propagate = [], True
    ours.setLevel(logging.NOTSET)
    root.setLevel(logging.WARNING)
    heard = Heard(), Heard()
    root.addHandler(heard[0])
    ours.addHandler(heard[1])
    yield heard
    root.removeHandler(heard[0])
    ours.handlers[:], level, ours.propagate, root_level = before
    ours.setLevel(level)
    root.setLevel(root_level)


def test_a_run_from_python_has_all_of_it_and_callers_hear_what_they_heard_before(unconfigured, tmp_path):
    logging.getLogger("headrace").setLevel(logging.ERROR)
    with logged_to(tmp_path, append=False):
        log.info("begun")
        log.error("ended")
        logging.getLogger("theirs").warning("theirs")
    log.info("after it")
    assert lines(tmp_path) == ["[INFO] begun", "[ERROR] ended"]
    assert unconfigured[0].words == ["ended", "theirs"]
    assert unconfigured[1].words == ["ended"]
    assert logging.getLogger("headrace").level == logging.ERROR


def test_overlapping_runs_keep_separate_logs(unconfigured, tmp_path):
    with logged_to(tmp_path / "second", append=False):
        with logged_to(tmp_path / "first", append=False):
            log.info("both")
        log.info("one")
    assert lines(tmp_path / "first") == ["[INFO] both"]
    assert lines(tmp_path / "second") == ["[INFO] both", "[INFO] one"]
    assert unconfigured[0].words == []
