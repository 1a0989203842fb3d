"""Files that another program has open, as on Windows: tried again for some seconds, then named."""

from __future__ import annotations

import sys

import pytest

from headrace.queues.files import PAUSES_S, once_released


def held(number: int = 32) -> PermissionError:
    error = PermissionError(13, "The process cannot access the file", "results/a")
    setattr(error, "winerror", number)  # noqa: B010 - only Windows' have it
    return error


class File:
    """A file that is held for some tries, and how long was waited for it."""

    def __init__(self, tries: int, error: OSError) -> None:
        self.tries, self.error, self.pauses = tries, error, []

    def replace(self) -> str:
        if self.tries == 0:
            return "replaced"
        self.tries -= 1
        raise self.error


@pytest.mark.parametrize("number", [5, 32, 33, 145])
def test_a_file_that_is_held_for_a_while_is_tried_again(number):
    file = File(4, held(number))
    assert once_released(file.replace, file.pauses.append) == "replaced"
    assert file.pauses == [*PAUSES_S[:4]]


def test_a_file_that_is_held_for_good_is_named_with_what_to_do():
    file = File(99, held())
    with pytest.raises(PermissionError, match=r"results/a") as caught:
        once_released(file.replace, file.pauses.append)
    assert sum(file.pauses) == pytest.approx(5, abs=0.1)
    assert "another program has kept the file open" in str(caught.value)
    assert "close that program" in str(caught.value)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), OSError(28, "full"), PermissionError(13, "on Linux")])
def test_other_errors_are_raised_at_once(error, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    file = File(1, error)
    with pytest.raises(type(error)):
        once_released(file.replace, file.pauses.append)
    assert file.pauses == []
