"""Specifications of the live table."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from headrace.pipeline.reporting.console import (
    BehaviorProgress,
    ConsoleHandler,
    Progress,
    ProgressSnapshot,
    QueueProgress,
    render,
)
from headrace.pipeline.reporting.time_shares import Bottleneck

TENNIS = BehaviorProgress("Tennis", 50_000, 200_000, 1000.0, 0.12345, 1234.56, 0.987, 24, 0.5, 81.26)
CART = BehaviorProgress("Cart", 50_000, 200_000, 1000.0, 0.12345, None, 0.987, 24, 0.5, 81.26)
QUEUE = QueueProgress("trajectories/Tennis", 3, 4, 4, 0.256, 0.0)


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rendered(snapshot: ProgressSnapshot, detailed: bool = True) -> list[str]:
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(render(snapshot, detailed, snapshot.queues if detailed else ()))
    return [line.rstrip() for line in console.export_text().splitlines()]


def terminal(file: io.StringIO | None = None) -> Console:
    return Console(file=file or io.StringIO(), width=100, height=30, force_terminal=True)


def raw(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def written(console: Console) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw(console))


def test_the_table_shows_what_is_learned_first_then_how_fast():
    assert rendered(ProgressSnapshot(61.4, (TENNIS,), (QUEUE,)), detailed=False) == [
        "0:01:01 elapsed, about 0:02:30 left",
        "behavior             steps       reward   ± SD     ELO  length  steps/s  updates",
        "Tennis    50,000 / 200,000  25%   0.123  0.500  1234.6    81.3    1,000       24",
    ]


def test_during_a_pause_speeds_and_the_time_left_show_the_pause():
    assert rendered(ProgressSnapshot(61.4, (TENNIS,), (), paused=True), detailed=False) == [
        "0:01:01 elapsed, paused",
        "behavior             steps       reward   ± SD     ELO  length  steps/s  updates",
        "Tennis    50,000 / 200,000  25%   0.123  0.500  1234.6    81.3   paused       24",
    ]


def test_the_rating_column_appears_only_with_self_play():
    assert rendered(ProgressSnapshot(61.4, (CART,)), detailed=False)[1:] == [
        "behavior             steps       reward   ± SD  length  steps/s  updates",
        "Cart      50,000 / 200,000  25%   0.123  0.500    81.3    1,000       24",
    ]
    assert rendered(ProgressSnapshot(61.4, (CART, TENNIS)))[2].split()[6:8] == ["0.500", "-"]


def test_the_bottleneck_is_wrapped_above_the_table():
    cause = Bottleneck("Learner: 90 % busy; actors wait 81 % of the time for it. Fewer epochs would help.")
    lines = render(ProgressSnapshot(61.4, (CART,), bottleneck=cause), False, (), 60).plain.split("\n")
    assert lines[1:3] == ["Learner: 90 % busy; actors wait 81 % of the time for it.", "Fewer epochs would help."]
    assert lines[3].startswith("behavior")


def test_for_debugging_it_shows_the_lag_and_all_queues():
    assert rendered(ProgressSnapshot(61.4, (TENNIS,), (QUEUE,))) == [
        "0:01:01 elapsed, about 0:02:30 left",
        "behavior             steps       reward   ± SD     ELO  length  steps/s  updates   lag",
        "Tennis    50,000 / 200,000  25%   0.123  0.500  1234.6    81.3    1,000       24  0.99",
        "queue                depth  high water  producers wait  consumers wait",
        "trajectories/Tennis  3 / 4           4             26%              0%",
    ]


def test_unknown_values_are_shown_as_dashes():
    lines = rendered(ProgressSnapshot(0.0, (BehaviorProgress("Tennis", 0, 200_000, 0.0),)), detailed=False)
    assert lines == [
        "0:00:00 elapsed",
        "behavior        steps      reward  ± SD  length  steps/s  updates",
        "Tennis    0 / 200,000  0%       -     -       -        0        0",
    ]


def test_a_queue_has_a_row_while_its_producers_wait_and_for_a_few_seconds_afterwards():
    clock, console = Clock(), terminal()
    idle = replace(QUEUE, producers_wait=0.05, consumers_wait=0.9)
    seen = []
    with Progress(True, clock, console) as progress:
        for clock.now, queue in ((0, idle), (1, QUEUE), (2, idle), (5.9, idle), (6.1, idle)):
            before = len(written(console))
            progress.update(ProgressSnapshot(clock.now, (TENNIS,), (queue,)))
            seen.append("trajectories/Tennis" in written(console)[before:])
    assert seen == [False, True, True, True, False]


def test_the_time_left_is_that_of_the_slowest_behavior_and_not_guessed_while_one_stands_still():
    slow = BehaviorProgress("Slow", 0, 1000, 1.0)
    still = BehaviorProgress("Still", 0, 1000, 0.0)
    assert ProgressSnapshot(0.0, (TENNIS, slow)).seconds_left == 1000.0
    assert ProgressSnapshot(0.0, (TENNIS, still)).seconds_left is None


def test_a_behavior_without_an_end_has_neither_bar_nor_time_left():
    endless = BehaviorProgress("Endless", 5000, None, 100.0)
    assert ProgressSnapshot(0.0, (endless,)).seconds_left is None
    assert ProgressSnapshot(0.0, (BehaviorProgress("Slow", 0, 1000, 1.0), endless)).seconds_left == 1000.0
    (line,) = [line for line in rendered(ProgressSnapshot(0.0, (endless,)), detailed=False) if "Endless" in line]
    assert line.split()[:3] == ["Endless", "5,000", "-"]


def test_long_names_give_way_to_the_numbers_and_keep_their_ends():
    long = "a_very_long_behaviour_name_for_the_left_wing_striker_number_"
    behaviors = tuple(
        BehaviorProgress(name, 120_000, 4_000_000, 1234.0, 12.345)
        for name in (f"{long}0", f"{long}1", "球" * 60, "Goalie")
    )
    queue = QueueProgress(f"trajectories/{long}0 (actor-0)", 2, 4, 4, 0.5, 0.0)
    for width in (60, 80, 100):
        lines = render(ProgressSnapshot(1.0, behaviors, (queue,)), False, (queue,), width).plain.splitlines()
        assert [line for line in lines if cell_len(line) > max(width, 76)] == []
        first, second, wide, short = lines[2:6]
        assert (first.split()[0][-2:], second.split()[0][-2:]) == ("_0", "_1")
        assert "12.345" in first
        assert "12.345" in wide
        assert "…" in wide
        assert short.startswith("Goalie ")


def test_the_last_snapshot_is_shown_at_the_end_though_one_was_just_shown():
    clock, console = Clock(), terminal()
    with Progress(True, clock, console) as progress:
        progress.update(ProgressSnapshot(0.0, (TENNIS,)))
        progress.update(ProgressSnapshot(3600.0, (TENNIS,)))
        assert "1:00:00 elapsed" not in written(console)
    assert "1:00:00 elapsed" in written(console)


@pytest.mark.parametrize(
    ("enabled", "is_terminal"), [(False, True), (True, False)], ids=["switched off", "no terminal"]
)
def test_nothing_is_shown_without_a_terminal_or_when_switched_off(enabled, is_terminal):
    clock = Clock()
    console = Console(file=io.StringIO(), width=100, force_terminal=is_terminal)
    with Progress(enabled, clock, console) as progress:
        assert not progress.due()
        progress.update(ProgressSnapshot(0.0, (TENNIS,)))
    assert written(console) == ""


def test_log_lines_appear_above_the_table():
    clock, console = Clock(), terminal()
    handler = ConsoleHandler()
    record = logging.LogRecord("headrace.pipeline", logging.INFO, "x.py", 1, "Tennis. [INFO] Step: 1.", None, None)
    with Progress(True, clock, console) as progress:
        progress.update(ProgressSnapshot(61.0, (TENNIS,)))
        before = len(written(console))
        handler.emit(record)
        after = written(console)[before:]
    assert after.index("Tennis. [INFO] Step: 1.") < after.index("0:01:01 elapsed")


def test_the_table_disappears_when_the_run_fails(capsys):
    def failing_run():
        with progress:
            progress.update(ProgressSnapshot(0.0, (TENNIS,)))
            raise KeyError

    progress = Progress(True, Clock(), terminal())
    with pytest.raises(KeyError):
        failing_run()
    print("afterwards")
    assert not progress.due()
    assert capsys.readouterr().out == "afterwards\n"


class Gone(io.StringIO):
    """A terminal whose window is closed at some moment."""

    closed_window = False

    def write(self, text: str) -> int:
        if self.closed_window:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("when", ["before", "meanwhile", "at the end"])
def test_a_closed_terminal_ends_only_the_table(capsys, when):
    file, clock = Gone(), Clock()
    file.closed_window = when == "before"
    with Progress(True, clock, terminal(file)) as progress:
        file.closed_window |= when == "meanwhile"
        progress.update(ProgressSnapshot(0.0, (TENNIS,)))
        file.closed_window = True
    print("afterwards")
    assert not progress.due()
    assert capsys.readouterr().out == "afterwards\n"
