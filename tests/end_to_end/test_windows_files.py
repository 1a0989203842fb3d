"""Windows' own ways with output and files: redirected output, files that somebody has open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import COMMAND

from headrace.queues.files import FileOperations, write_atomic

pytestmark = [pytest.mark.windows, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).resolve().parents[2] / "config" / "examples" / "cartpole.yaml"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}


def test_validate_prints_utf8_into_a_file_and_the_systems_code_page_into_a_pipe(tmp_path):
    words = [sys.executable, str(COMMAND), str(EXAMPLE), "--validate", "--no-env-check"]
    with (tmp_path / "log.txt").open("wb") as log:
        assert subprocess.run(words, stdout=log, stderr=log, env=ENVIRONMENT).returncode == 0
    piped = subprocess.run(words, capture_output=True, env=ENVIRONMENT)
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert "actors → trainer" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert b"actors -> trainer" in piped.stdout


class Waiting(FileOperations):
    """Closes a file, which somebody has open, while it is waited for."""

    def __init__(self, file):
        self.file, self.pauses = file, 0

    def pause(self, seconds):
        self.pauses += 1
        if self.pauses == 2:
            self.file.close()


def test_a_file_that_is_open_is_replaced_and_removed_once_it_is_closed(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with path.open("rb") as file:
        write_atomic(path, b"new", files=(files := Waiting(file)))
    assert (path.read_bytes(), files.pauses) == (b"new", 2)
    with path.open("rb") as file:
        Waiting(file).remove_tree(tmp_path)
    assert not tmp_path.exists()


class Impatient(FileOperations):
    """Does not wait between attempts."""

    def pause(self, seconds):
        pass


def test_a_file_that_stays_open_is_named_with_what_to_do(tmp_path):
    (tmp_path / "state").write_bytes(b"old")
    with (tmp_path / "state").open("rb"), pytest.raises(PermissionError, match=r"close that program.*state"):
        write_atomic(tmp_path / "state", b"new", files=Impatient())
    assert [*tmp_path.iterdir()] == [tmp_path / "state"], "nothing is left beside it"
