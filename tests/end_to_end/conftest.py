"""What end-to-end tests share: commands that are ended with their test, whatever became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from runs import Command


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the command: sums of many threads differ in their last bits from those of one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts the command in the test's folder."""
    begun: list[Command] = []

    def start(*arguments, **options):
        begun.append(Command(tmp_path, *arguments, **options))
        return begun[-1]

    yield start
    for command in begun:
        command.end()
