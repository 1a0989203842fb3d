"""Files that a run can do without: an error of the disk is a warning, said once."""

from __future__ import annotations

import logging

import pytest

from headrace.queues.files import QUIET_S, FileGuard

log = logging.getLogger(__name__)


class Disk:
    """A disk that refuses at times, and a clock."""

    def __init__(self):
        self.now_s = 0.0
        self.guard = FileGuard(log, lambda: self.now_s)

    def write(self, path, refuses=False):
        with self.guard.writing(path, "the curves are behind"):
            if refuses:
                raise OSError(28, "No space left on device")


@pytest.fixture
def disk(caplog):
    caplog.set_level(logging.INFO)
    return Disk()


def test_each_file_that_is_refused_is_named_once_with_what_is_lost(disk, caplog):
    for _ in range(3):
        disk.write("a", refuses=True)
        disk.write("b", refuses=True)
    assert caplog.messages == [
        f"{name} can't be written: No space left on device. Training continues. "
        "Until the file can be written again, the curves are behind."
        for name in "ab"
    ]


def test_a_file_that_can_be_written_again_for_a_while_is_reported(disk, caplog):
    disk.write("a", refuses=True)
    disk.write("a")
    disk.write("a", refuses=True)
    assert len(caplog.messages) == 1, "a disk that is almost full takes some writes"
    disk.now_s += QUIET_S
    disk.write("a")
    disk.write("a")
    assert caplog.messages[1:] == ["a can be written again."]
    disk.write("a", refuses=True)
    assert len(caplog.messages) == 3


def test_other_errors_pass(disk):
    with pytest.raises(ValueError, match="no error of the disk"), disk.guard.writing("a", "nothing"):
        raise ValueError("no error of the disk")
