"""Whole runs with environment parameters: lessons follow each other, are logged, and outlive the run."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from run_configs import INLINE, changed, taught
from run_folders import manifest
from runs import run_here

from headrace.pipeline.run import RunOptions


def worths(log: Path) -> list[float]:
    """What the environments were told, episode after episode."""
    return [float(line) for line in log.read_text(encoding="utf-8").split()]


def lessons_of(told: Sequence[float]) -> list[int]:
    """The lesson that each of `runs.taught`'s values belongs to."""
    return [{1.0: 0, 4.0: 1}.get(value, 2) for value in told]


def lesson_in_checkpoint(run_folder: Path) -> int:
    return json.loads(manifest(run_folder).read_text())["progress"]["curricula"]["lessons"]["worth"]


def lesson_in_status(run_folder: Path) -> int:
    return json.loads((run_folder / "run_logs" / "training_status.json").read_text())["worth"]["lesson_num"]


def test_a_run_goes_through_its_lessons_and_is_played_in_the_last(tmp_path, caplog):
    caplog.set_level(logging.INFO, "headrace.pipeline")
    log = tmp_path / "told.txt"
    plain = taught(
        **INLINE,
        environment__options={"base": -2.0, "log": str(log)},
        pipeline__statistics_writers=[{"use": "told_env:Notes", "with": {"file": "lessons.txt"}}],
    )
    result = run_here(plain, tmp_path, "run")
    told = worths(log)
    lessons = lessons_of(told)
    assert lessons == sorted(lessons)
    assert min(lessons.count(lesson) for lesson in range(3)) >= 24, "each as long as it had to be"
    assert all(5 <= value < 6 for value in told if value > 4)
    assert len(set(told)) == lessons.count(2) + 2, "drawn anew for each episode"
    assert lesson_in_status(result.folder) == lesson_in_checkpoint(result.folder) == 2
    notes = [line.split(" ", 2) for line in (result.folder / "lessons.txt").read_text().splitlines()]
    assert {(category, name.rpartition(" ")[0]) for _, category, name in notes} == {
        ("Guess", "Environment/Lesson Number/worth")
    }
    assert [name[-1] for _, _, name in notes][-1] == "2"
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "Parameter 'worth' is in lesson 'Low' and has value 'Float: value=1.0'." in said
    assert "lesson 2 'High' of 'worth': mean reward -1." in said
    assert "lesson 3 'Any' of 'worth': mean reward" in said
    log.unlink()
    stop = asyncio.Event()
    run_here(plain, tmp_path, "run", RunOptions(stop=stop, on_progress=lambda _: stop.set()), inference=True)
    assert set(lessons_of(worths(log))) == {2}, "it is played in the lesson that was reached"


def test_a_negative_threshold_above_the_mean_reward_is_not_passed(tmp_path):
    """Smoothed from 0, a mean of about -1.5 would begin as -1.1."""
    plain = taught(**INLINE, behaviors__Guess__max_steps=1500)
    plain["environment_parameters"]["worth"]["curriculum"][0]["completion_criteria"]["threshold"] = -0.99
    assert lesson_in_status(run_here(plain, tmp_path, "run").folder) == 0, "-1 is the best that there is"


def test_a_resumed_run_continues_with_its_lesson(tmp_path):
    log = tmp_path / "told.txt"
    plain = taught(**INLINE, environment__options={"base": -2.0, "log": str(log)}, behaviors__Guess__max_steps=1000)
    first = run_here(plain, tmp_path, "run").folder
    lesson = lesson_in_checkpoint(first)
    assert lesson > 0
    log.unlink()
    again = changed(plain, {"behaviors__Guess__max_steps": 1500})
    run_here(again, tmp_path, "run", resume=True)
    assert lessons_of(worths(log))[0] == lesson


def test_evaluation_is_always_at_the_last_lesson(tmp_path):
    log = tmp_path / "told.txt"
    plain = taught(
        **INLINE,
        environment__options={"base": -2.0, "log": str(log)},
        evaluation={"every": 1000, "episodes": 8},
    )
    plain["environment_parameters"]["worth"]["curriculum"][0]["completion_criteria"]["threshold"] = 99
    run_here(plain, tmp_path, "run")
    told = worths(log)
    assert lessons_of(told).count(2) >= 8, "the evaluation's episodes"
    assert set(lessons_of(told)) == {0, 2}, "training stays in the first lesson"


def test_a_rating_ends_a_lesson(tmp_path):
    """A game's built-in parameter, in self-play: ratings begin at 1200 and move by 16 at most."""
    criteria = {"behavior": "Evader", "measure": "elo", "threshold": 1000, "min_lesson_length": 4}
    behavior = {
        "trainer_type": "ppo",
        "max_steps": 600,
        "checkpoint_interval": 150,
        "hyperparameters": {"buffer_size": 200, "batch_size": 100, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "self_play": {"save_steps": 100, "team_change": 200, "swap_steps": 50, "window": 3},
    }
    plain = {
        "environment": {"kind": "builtin", "id": "Pursuit", "num_envs": 8, "options": {"time_limit_s": 0.6}},
        "environment_parameters": {
            "pursuer_speed": {
                "curriculum": [
                    {"name": "Slow", "value": 0.1, "completion_criteria": criteria},
                    {"name": "Fast", "value": 1.0},
                ]
            }
        },
        "behaviors": {"Pursuer": behavior, "Evader": behavior},
    }
    folder = run_here(changed(plain, INLINE), tmp_path, "run").folder
    status = json.loads((folder / "run_logs" / "training_status.json").read_text())
    assert status["pursuer_speed"]["lesson_num"] == 1
    for name in ("Pursuer", "Evader"):
        steps = [entry["steps"] for entry in status[name]["checkpoints"]]
        assert steps == sorted(set(steps)), "a policy that is exported twice at one step is listed once"
