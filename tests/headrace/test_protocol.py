"""`python -m headrace.protocol`: tests a game, or plays it by random actions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from open_runs import GAME

from headrace.protocol import main

PROGRAM = [sys.executable, str(GAME)]


@pytest.mark.lengthy
def test_a_game_that_keeps_the_protocol_passes(capfd):
    assert main(["check", "--steps=200", *PROGRAM, "--game=switch"]) == 0
    said = capfd.readouterr().out
    assert "ok   announces Agent: seen float32[2]; branch of 2 choices" in said
    assert "ok   answers 200 steps" in said
    assert "ok   ends within 10 s of close" in said
    assert "FAIL" not in said


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan", "sent null at index 1 of observations[0]"),
        ("key", "sent statistic in a state: expected only the keys type, number, agents, statistics"),
        ("exit5", "ended with return code 5"),
        ("version", "speaks version 99"),
        ("hang", "hasn't sent its next state within 1 s"),
    ],
)
def test_a_game_that_breaks_it_fails_with_the_reason(capfd, fault, words):
    assert main(["check", "--timeout", "1" if fault == "hang" else "30", *PROGRAM, f"--fault={fault}"]) == 1
    failed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 1
    assert words in failed[0]


def test_endless_episodes_and_constant_zero_rewards_are_noted(capfd):
    assert main(["check", "--steps=2", *PROGRAM, "--game=duel"]) == 0
    said = capfd.readouterr().out
    assert "note Agent: no episode has ended" in said
    assert "note Agent: all rewards were 0" in said


@pytest.mark.lengthy
def test_the_check_plays_until_the_game_ends(capfd):
    assert main(["play", *PROGRAM, "--fault=end", "--fault_at=1500"]) == 0
    said = capfd.readouterr().out
    assert "mean return" in said
    assert "has ended: the player has left" in said


@pytest.mark.lengthy
def test_the_client_that_the_docs_show_keeps_the_protocol(tmp_path, capfd):
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    (tmp_path / "walker.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    assert main(["check", "--steps=200", sys.executable, str(tmp_path / "walker.py")]) == 0
    said = capfd.readouterr().out
    assert "episodes of 50.0 decisions" in said
