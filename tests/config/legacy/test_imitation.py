"""Trainers that only imitated are `bc`; what they counted is counted on."""

from __future__ import annotations

import pytest

from headrace.config import BCHyperparameters

OFFLINE = (
    "batch_size: 32, batches_per_epoch: 4, learning_rate: 1e-3, max_steps: 5e3, summary_freq: 100, hidden_units: 8"
)


def test_offline_bc_learns_from_demonstrations_as_many_steps_as_it_did(take):
    taken = take(f"Ball: {{trainer: offline_bc, demo_path: Demos/Ball.demo, num_layers: 3, {OFFLINE}}}")
    ball = taken.config.behaviors["Ball"]
    bc = ball.hyperparameters
    assert isinstance(bc, BCHyperparameters)
    assert (bc.demo_path, bc.batch_size, bc.buffer_size, bc.num_epoch) == ("Demos/Ball.demo", 32, 128, 1)
    assert (bc.learning_rate, bc.learning_rate_schedule, bc.held_out) == (1e-3, "constant", 0)
    assert (ball.max_steps, ball.summary_freq) == (5000 * 128, 100 * 128)
    assert "max_steps: 640000  # 5000 * 128: it counts learned steps" in taken.text
    assert any(
        "max_steps: used to count environment steps, each with 128 learned steps" in note for note in taken.notes
    )


@pytest.mark.parametrize("trainer", ["online_bc", "imitation", "bc"])
def test_online_bc_imitates_another_behavior(take, trainer: str):
    taken = take(
        f"""
        default: {{trainer: ppo, time_horizon: 32}}
        Teacher: {{}}
        Pupil: {{trainer: {trainer}, brain_to_imitate: Teacher, {OFFLINE}}}
        """
    )
    pupil = taken.config.behaviors["Pupil"]
    bc = pupil.hyperparameters
    assert isinstance(bc, BCHyperparameters)
    assert (bc.teacher, bc.demo_path, bc.num_epoch, pupil.max_steps) == ("Teacher", None, 4, 5000)
    assert any("brain_to_imitate: is now 'hyperparameters.teacher'" in note for note in taken.notes)


def test_a_teacher_that_was_a_player_is_refused_by_name_with_what_to_do(refuse):
    (mistake,) = refuse(f"Pupil: {{trainer: online_bc, brain_to_imitate: Player, {OFFLINE}}}")
    assert mistake.startswith("old.yaml:1: behaviors.Pupil.hyperparameters.teacher: 'Player' is not listed")
    assert "record a .demo file and set it as demo_path" in mistake


def test_memory_goes_with_it(take):
    memory = "use_recurrent: true, sequence_length: 12, memory_size: 40"
    taken = take(f"Ball: {{trainer: offline_bc, demo_path: d, {memory}}}")
    assert taken.data["behaviors"]["Ball"]["network_settings"]["memory"] == {"sequence_length": 12, "memory_size": 40}


def test_a_placeholder_in_the_default_section_is_ignored(take):
    taken = take("default: {trainer: offline_bc, demo_path: ./<Your_Demo_File>.demo}\nBall: {demo_path: d}")
    assert "default_settings" not in taken.data
    assert any("default: lacks a trainer or something to imitate" in note for note in taken.notes)


MISTAKES = [
    ("Ball: {trainer: offline_bc}", "old.yaml:1: Ball: has nothing to imitate; add 'demo_path'"),
    ("Ball: {trainer: online_bc}", "old.yaml:1: Ball: has nothing to imitate; add 'brain_to_imitate'"),
    (
        "Ball: {trainer: online_bc,\n  brain_to_imitate: Bal}\nBell: {trainer: ppo}",
        "old.yaml:2: behaviors.Ball.hyperparameters.teacher: 'Bal' is not listed under behaviors; did you mean 'Ball'?",
    ),
    ("Ball: {trainer: offline_bc, demo_path: d,\n  batches_per_epoch: 0}", "old.yaml:2: Ball.batches_per_epoch: 0 is"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_missing_or_invalid_keys_are_mistakes(refuse, text: str, expected: str):
    assert refuse(text)[0].startswith(expected)
