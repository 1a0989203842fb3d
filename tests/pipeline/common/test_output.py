"""Standard streams: any text can be written to them, whatever they are and whoever reads them."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
from argparse import ArgumentParser
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from headrace import protocol
from headrace.pipeline import cli, gdrl_command
from headrace.pipeline.common.output import (
    EveryRecord,
    JsonLines,
    complain,
    json_lines,
    prepare_output,
    say,
    set_log_format,
    speaking,
)
from headrace.pipeline.reporting.console import configure_logging, log

pytestmark = pytest.mark.windows_too

ROOT = Path(__file__).resolve().parents[3]


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, text: str) -> bytes:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, newline=""))
    prepare_output()
    sys.stdout.write(text)
    sys.stdout.flush()
    return raw.getvalue()


@pytest.mark.parametrize(
    ("encoding", "text", "written"),
    [
        ("utf-8", "a → b", "a → b".encode()),
        ("ascii", "a → b × 2 – …", b"a -> b x 2 - ..."),
        ("cp1252", "ü → ×", b"\xfc -> \xd7"),
        ("cp437", "Größe 球", b"Gr\x94\xe1e \\u7403"),
        ("utf-8", "lost \udcff", b"lost \\udcff"),
    ],
)
def test_characters_that_the_encoding_lacks_are_replaced(monkeypatch, encoding, text, written):
    assert printed(monkeypatch, encoding, text) == written


@pytest.mark.parametrize(("chosen", "encoding"), [("", "utf-8"), ("cp1252", "cp1252")])
def test_on_windows_a_file_is_utf8_unless_the_user_has_chosen(monkeypatch, tmp_path, chosen, encoding):
    monkeypatch.setenv("PYTHONIOENCODING", chosen)
    with open(tmp_path / "log.txt", "w", encoding="cp1252") as file:
        monkeypatch.setattr(sys, "stdout", file)
        prepare_output("win32")
        print("a → ü")
    monkeypatch.undo()

    assert (tmp_path / "log.txt").read_text(encoding=encoding) == ("a → ü\n" if encoding == "utf-8" else "a -> ü\n")


def test_on_windows_a_pipe_keeps_the_encoding_of_other_programs(monkeypatch):
    ours, theirs = os.pipe()
    with open(ours, "rb") as reader, open(theirs, "w", encoding="cp1252") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        prepare_output("win32")
        print("a → ü", end="", flush=True)
        monkeypatch.undo()

        assert reader.read1() == b"a -> \xfc"


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors by a POSIX shell")
def test_closed_streams_take_everything_and_their_descriptors_stay_theirs(tmp_path):
    code = (
        "import os, sys; from headrace.pipeline.common.output import prepare_output; prepare_output()\n"
        "print('→', sys.stdin.read(), end='', flush=True); sys.stderr.write('→'); file = open(sys.argv[1], 'w')\n"
        "file.write(f'{file.fileno() > 2} {all(os.get_inheritable(each) for each in range(3))}')"
    )
    script = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code, str(tmp_path / "said")]

    status = subprocess.run(script, cwd=ROOT).returncode

    assert (status, (tmp_path / "said").read_text(encoding="utf-8")) == (0, "True True")


class Broken(io.StringIO):
    """A stream to a pipe without a reader, or to a full disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise self._error


def interrupted() -> int:
    sys.stdout.flush()
    return 3


@pytest.mark.parametrize(
    ("main", "error", "status"),
    [
        (lambda: 3, BrokenPipeError(), 3),
        (lambda: 0, BrokenPipeError(), 0),
        (interrupted, BrokenPipeError(), 0),
        (lambda: 0, OSError(28, "No space left on device"), 1),
        (interrupted, OSError(28, "No space left on device"), 1),
    ],
)
def test_a_command_keeps_its_exit_status_when_its_output_is_closed(monkeypatch, main, error, status):
    monkeypatch.setattr(sys, "stdout", Broken(error))
    monkeypatch.setattr(sys, "stderr", Broken(error))
    complain("nobody hears this")
    assert speaking(main)() == status
    monkeypatch.undo()


def test_a_broken_pipe_other_than_the_outputs_is_a_failure(monkeypatch):
    def fail() -> int:
        raise BrokenPipeError("a server hung up")

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(BrokenPipeError, match="hung up"):
        speaking(fail)()


@pytest.mark.parametrize("command", [cli.main, gdrl_command.main, protocol.main])
def test_every_command_prints_text_if_only_ascii_can_be_written(monkeypatch, command):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(ArgumentParser, "format_help", lambda _: "from → to")

    with pytest.raises(SystemExit):
        command(["--help"])

    stream.flush()
    assert stream.buffer.getvalue() == b"from -> to"


CHANGED = """
import io, sys
from headrace.pipeline.common.output import complain, say, speaking
from headrace.pipeline.reporting.console import configure_logging, log

def speak():
    log.warning("logged")
    say("said")
    complain("complained")

@speaking
def main():
    configure_logging()
    began = sys.stdout, sys.stderr
    for sys.stdout, sys.stderr in (io.StringIO(), None), (None, io.StringIO()), began:
        speak()
    for stream in began:
        stream.close()
    speak()
    return 0

sys.exit(main())
"""


@pytest.mark.lengthy
def test_a_command_writes_to_the_streams_that_it_began_with_were_they_replaced_removed_or_closed():
    command, environment = [sys.executable, "-c", CHANGED], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "complained\n" * 4)
    assert done.stdout == "[WARNING] logged\nsaid\n" * 4


def test_as_json_a_long_message_and_its_traceback_keep_both_ends():
    formatter = JsonLines()
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        record = logging.LogRecord("headrace", logging.ERROR, "", 0, "y" * 100_000, (), sys.exc_info())
    line = json.loads(formatter.format(record))
    assert "(92,000 characters left out)" in line["message"]
    assert "characters left out" in line["traceback"]
    assert line["traceback"].startswith("Traceback")
    assert len(line["traceback"]) < 9_000


def test_as_json_every_line_is_an_object_with_its_level_time_and_fields(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    @speaking
    def main():
        set_log_format("json")
        json_lines().fields["run_id"] = "first"
        configure_logging()
        log.warning("%s\n→ ends", "Ball", extra={"behavior": "Ball", "step": 5})
        try:
            raise ValueError("\udcff")
        except ValueError:
            log.exception("failed")
        say("[INFO] two\nlines", step=6)
        complain("[ERROR] one\n[ERROR] two")
        complain("warning: odd")
        complain("plain")
        return 0

    assert main() == 0
    warned, failed, said = map(json.loads, out.getvalue().splitlines())
    complained = [json.loads(line) for line in err.getvalue().splitlines()]
    common = {"run_id": "first", "logger": log.name, "time": warned["time"]}
    assert warned == common | {"level": "WARNING", "message": "Ball\n→ ends", "behavior": "Ball", "step": 5}
    assert datetime.fromisoformat(warned["time"]).utcoffset() == timedelta(0)
    assert failed["traceback"].endswith("ValueError: \udcff")
    assert (said["level"], said["message"], said["step"], said["run_id"]) == ("INFO", "two\nlines", 6, "first")
    told = [(line["level"], line["message"]) for line in complained]
    assert told == [("ERROR", "one\ntwo"), ("WARNING", "odd"), ("ERROR", "plain")]
    assert json_lines() is None


def test_a_record_about_a_file_whose_name_is_not_utf8_is_written():
    record = logging.LogRecord("mine", logging.INFO, "mine.py", 3, "lost %s", ("\udcff",), None)
    assert EveryRecord().format(record) == "lost \\udcff"


def test_a_command_reports_the_limit_of_open_files(capsys):
    def main() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    assert speaking(main)() == 1
    assert "[ERROR] Too many open files: " in capsys.readouterr().err


def test_a_record_of_any_length_is_written_shortened():
    record = logging.LogRecord("mine", logging.INFO, "mine.py", 3, "lost %s", ("x" * 70_000_000,), None)
    assert len(EveryRecord().format(record)) < 9_000


def test_a_refusal_of_any_length_is_written_shortened_line_by_line(capsys):
    complain("a\n" + "x" * 900_000 + "\nb")
    first, cut, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("a", "b")
    assert "(892,000 characters left out)" in cut
    assert len(cut) < 9_000
