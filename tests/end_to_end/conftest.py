"""What end-to-end tests share: commands that are ended with their test, whatever became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from page_calls import Page, RunBeside
from run_configs import Plain
from runs import MORE_PATIENCE_S, PATIENCE_S, Command
from unity_command import Editor


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the command: sums of many threads differ in their last bits from those of one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def patience_s(request: pytest.FixtureRequest) -> float:
    """Slow tests wait longer: they are run when the machine does other things as well."""
    return MORE_PATIENCE_S if request.node.get_closest_marker("slow") else PATIENCE_S


@pytest.fixture
def start(tmp_path: Path, patience_s: float) -> Iterator[Callable[..., Command]]:
    """Starts the command in the test's folder."""
    begun: list[Command] = []

    def start(*arguments, **options):
        begun.append(Command(tmp_path, *arguments, patience_s=patience_s, **options))
        return begun[-1]

    yield start
    for command in begun:
        command.end()


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Page]]:
    """Starts a run with a page beside the test, whose token is given; returns the page."""
    begun: list[RunBeside] = []

    def begin(plain: Plain, token: str = "ours", **settings):
        monkeypatch.setenv("HEADRACE_TOKEN", token)
        begun.append(RunBeside(tmp_path, plain, **settings))
        return Page(begun[-1], token)

    yield begin
    for run in begun:
        run.end()


@pytest.fixture
def press_play() -> Iterator[Callable[..., Editor]]:
    """Starts the Editor's stand-in."""
    begun: list[Editor] = []

    def press(*arguments):
        begun.append(Editor(*arguments))
        return begun[-1]

    yield press
    for editor in begun:
        editor.end()
