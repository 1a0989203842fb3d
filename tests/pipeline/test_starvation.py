"""A trainer that gets nothing is noticed once, with who keeps it all."""

from __future__ import annotations

import logging

import pytest

from headrace.pipeline.flow import PATIENCE_UPDATES, StarvationWatch

ROWS = 100
PATIENCE = PATIENCE_UPDATES * ROWS


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> StarvationWatch:
    caplog.set_level(logging.WARNING)
    watch = StarvationWatch()
    watch.add_trainer("Ball", ROWS)
    watch.fed("Ball", 0, done=False)
    return watch


def test_stages_that_starve_the_trainer_are_named_once_with_the_greediest_first(
    watch: StarvationWatch, caplog: pytest.LogCaptureFixture
):
    watch.kept_back("Filter@actor-0", "Ball", 1)
    watch.kept_back("Sink@main", "Ball", PATIENCE - 2)
    assert not caplog.messages
    watch.kept_back("Filter@actor-0", "Ball", 1)
    watch.kept_back("Filter@actor-0", "Ball", PATIENCE)
    (told,) = caplog.messages
    assert told.startswith(
        f"The trainer of Ball has received nothing since step 0, while the stages before the trainer are holding back {PATIENCE}"
    )
    assert f"(Sink@main: {PATIENCE - 2}, Filter@actor-0: 2)" in told


def test_a_filter_that_sometimes_lets_steps_through_is_not_reported(
    watch: StarvationWatch, caplog: pytest.LogCaptureFixture
):
    for step in range(1, 5):
        watch.kept_back("Filter@actor-0", "Ball", PATIENCE - 1)
        watch.fed("Ball", step, done=False)
    assert not caplog.messages


def test_a_report_without_progress_does_not_count_as_input(watch: StarvationWatch, caplog: pytest.LogCaptureFixture):
    watch.kept_back("Filter@actor-0", "Ball", PATIENCE - 1)
    watch.fed("Ball", 0, done=False)
    watch.kept_back("Filter@actor-0", "Ball", 1)
    assert len(caplog.messages) == 1


def test_rows_held_back_and_released_later_do_not_count_as_kept(
    watch: StarvationWatch, caplog: pytest.LogCaptureFixture
):
    for _ in range(3):
        watch.kept_back("Delay@main", "Ball", PATIENCE - 1)
        watch.kept_back("Delay@main", "Ball", 1 - PATIENCE)
    assert not caplog.messages


def test_a_trainer_that_is_done_wants_nothing(watch: StarvationWatch, caplog: pytest.LogCaptureFixture):
    for _ in range(3):
        watch.kept_back("Filter@actor-0", "Ball", PATIENCE - 1)
        watch.fed("Ball", 0, done=True)
    assert not caplog.messages


def test_behaviors_are_distinguished(watch: StarvationWatch, caplog: pytest.LogCaptureFixture):
    watch.add_trainer("Goalie", 10 * ROWS)
    watch.kept_back("Filter@actor-0", "Goalie", PATIENCE)
    watch.kept_back("Filter@actor-0", "Unknown", 100 * PATIENCE)
    assert not caplog.messages
