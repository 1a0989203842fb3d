"""Specifications of the plain lines, literally."""

from __future__ import annotations

import io
import logging
import re

import pytest

from headrace.pipeline.common.global_state_guard import OURS
from headrace.pipeline.reporting.console import ConsoleWriter, configure_logging, summary_line
from headrace.pipeline.reporting.statistics import StatisticsCollector, Summary


@pytest.fixture(autouse=True)
def _logger_as_before():
    logger = logging.getLogger(OURS)
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


def summaries(**values: list[float]) -> dict[str, Summary]:
    names = {
        "reward": "Environment/Cumulative Reward",
        "group": "Environment/Group Cumulative Reward",
        "elo": "Self-play/ELO",
        "training": "Is Training",
        "held_out": "Policy/Held-out Log Likelihood",
    }
    collector = StatisticsCollector()
    for short, numbers in values.items():
        collector.extend("Tennis", names[short], numbers)
    return collector.summaries("Tennis")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"reward": [1.0, 2.0]}, "Mean Reward: 1.500. Std of Reward: 0.500. Training."),
        (
            {"reward": [1.0], "elo": [1201.0, 1202.0]},
            "Mean Reward: 1.000. Std of Reward: 0.000. Training. ELO: 1201.500.",
        ),
        ({"reward": [1.0], "training": [0.0]}, "Mean Reward: 1.000. Std of Reward: 0.000. Not Training."),
        ({"reward": [1.0], "group": [3.0]}, "Mean Reward: 1.000. Mean Group Reward: 3.000. Training."),
        ({}, "No episode was completed since last summary. Training."),
        ({"held_out": [-0.5, -0.25]}, "Held-out Log Likelihood: -0.375. Training."),
    ],
)
def test_the_line_of_a_summary_is_ml_agents(values, line):
    start = "Tennis. Step: 10000. Time Elapsed: 12.346 s. "
    assert summary_line("Tennis", summaries(**values), 10000, 12.3456) == start + line


def test_lines_are_plain_by_default():
    out = io.StringIO()
    configure_logging(stream=out)
    ConsoleWriter(lambda: 1.5).write("Tennis", summaries(reward=[2.0]), 100)
    logging.getLogger("headrace.pipeline.x").debug("per batch")
    assert out.getvalue() == (
        "[INFO] Tennis. Step: 100. Time Elapsed: 1.500 s. Mean Reward: 2.000. Std of Reward: 0.000. Training.\n"
    )


def test_each_line_of_a_warning_has_its_level_and_blocks_of_information_stay_as_they_are():
    out = io.StringIO()
    configure_logging(stream=out)
    logging.getLogger("headrace.stages.x").warning("it has died\nIts last words:\n\nhelp")
    logging.getLogger("headrace.stages.x").info("Hyperparameters:\n\tlambd: 1")
    assert out.getvalue() == (
        "[WARNING] it has died\n[WARNING] Its last words:\n[WARNING] \n[WARNING] help\n"
        "[INFO] Hyperparameters:\n\tlambd: 1\n"
    )


def test_debug_lines_carry_time_and_place():
    out = io.StringIO()
    configure_logging(debug=True, stream=out)
    logging.getLogger("headrace.stages.x").debug("a batch of %d", 7)
    pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d DEBUG \[test_console\.py:\d+\] a batch of 7\n"
    assert re.fullmatch(pattern, out.getvalue())


def test_warnings_of_other_libraries_are_printed_with_their_level(monkeypatch):
    err = io.StringIO()
    configure_logging(stream=io.StringIO())
    other = logging.Logger("somebody.else")  # not below the root, to which pytest adds handlers
    monkeypatch.setattr("sys.stderr", err)
    other.warning("old\nand slow")
    assert err.getvalue() == "[WARNING] old\n[WARNING] and slow\n"


def test_lines_follow_a_redirected_standard_output(monkeypatch):
    configure_logging()
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    logging.getLogger("headrace.pipeline").info("hello")
    assert out.getvalue() == "[INFO] hello\n"


def test_hyperparameters_are_one_tab_indented_block():
    out = io.StringIO()
    configure_logging(stream=out)
    settings = {"trainer_type": "ppo", "hyperparameters": {"batch_size": 64, "schedule": {"kind": "linear"}}}
    ConsoleWriter(lambda: 0.0).add_property("Tennis", "hyperparameters", settings)
    assert out.getvalue() == (
        "[INFO] Hyperparameters for behavior name Tennis:\n"
        "\ttrainer_type:\tppo\n"
        "\thyperparameters:\t\n"
        "\t  batch_size:\t64\n"
        "\t  schedule:\t\n"
        "\t    kind:\tlinear\n"
    )


def test_details_are_omitted_unless_requested():
    for details, debug, expected in ((False, False, False), (True, False, True), (False, True, True)):
        out = io.StringIO()
        configure_logging(debug, out, details)
        ConsoleWriter(lambda: 0.0).add_property("Tennis", "hyperparameters", {"trainer_type": "ppo"})
        assert ("trainer_type" in out.getvalue()) == expected
