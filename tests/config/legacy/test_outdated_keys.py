"""Old keys in files that have `behaviors`: of 0.16 to 0.18, and those that went out of use since."""

from __future__ import annotations

import pytest
from old_sections import flat


def test_a_flat_block_may_stand_under_behaviors(take):
    taken = take(f"behaviors:\n  A: {flat('ppo')}\n  B: {{trainer_type: ppo, max_steps: 5}}")
    assert taken.data["behaviors"]["A"]["hyperparameters"]["beta"] == 2e-3
    assert taken.data["behaviors"]["B"] == {"trainer_type": "ppo", "max_steps": 5}
    assert "old.yaml:2: trainer: is now 'trainer_type'" in taken.notes


RENAMED = [
    ("trainer: sac, hyperparameters: {tau: 0.1}", "trainer", "trainer_type", "sac"),
    (
        "pretraining: {demo_path: d, steps: 9, strength: 1}",
        "pretraining",
        "behavioral_cloning",
        {"demo_path": "d", "steps": 9, "strength": 1},
    ),
    (
        "self_play: {play_against_current_self_ratio: 0.2, swap_steps: 9}",
        "self_play.play_against_current_self_ratio",
        "self_play.play_against_latest_model_ratio",
        0.2,
    ),
    (
        "reward_signals: {curiosity: {encoding_size: 9}}",
        "reward_signals.curiosity.encoding_size",
        "reward_signals.curiosity.network_settings.hidden_units",
        9,
    ),
    (
        "reward_signals: {gail: {demo_path: d, encoding_size: 8}}",
        "reward_signals.gail.encoding_size",
        "reward_signals.gail.network_settings.hidden_units",
        8,
    ),
]


@pytest.mark.parametrize(("body", "old", "new", "value"), RENAMED, ids=[old for _, old, _, _ in RENAMED])
def test_an_old_key_of_a_block_has_its_new_name(take, body: str, old: str, new: str, value: object):
    taken = take(f"behaviors:\n  A: {{{body}}}")
    found = taken.data["behaviors"]["A"]
    for key in new.split("."):
        found = found[key]
    assert found == value
    (note,) = taken.notes
    assert note.startswith(f"old.yaml:2: {old}: ")
    assert f"is now '{new}'" in note


@pytest.mark.parametrize("key", ["framework: tensorflow", "output_path: default"])
def test_a_key_without_a_successor_is_left_out(take, key: str):
    taken = take(f"default_settings: {{{key}}}")
    assert taken.data == {"default_settings": {}}
    (note,) = taken.notes
    assert note.startswith(f"old.yaml:1: {key.split(':')[0]}: was removed")


def test_encoding_size_next_to_network_settings_still_has_no_effect(take):
    taken = take("behaviors: {A: {reward_signals: {rnd: {encoding_size: 9, network_settings: {num_layers: 1}}}}}")
    assert taken.data["behaviors"]["A"]["reward_signals"]["rnd"] == {"network_settings": {"num_layers": 1}}
    assert any("has no effect, because network_settings take precedence" in note for note in taken.notes)


def test_load_model_is_resume_and_train_model_is_nothing(take):
    taken = take("behaviors: {A: {}}\ncheckpoint_settings: {load_model: true,\n  train_model: true, run_id: x}")
    assert taken.data["checkpoint_settings"] == {"resume": True, "run_id": "x"}
    assert [note.split(" is ")[0] for note in taken.notes] == [
        "old.yaml:2: checkpoint_settings.load_model:",
        "old.yaml:3: checkpoint_settings.train_model:",
    ]


def test_checkpoint_settings_of_the_run_move_to_the_behaviors(take):
    text = "behaviors: {A: {}, B: {keep_checkpoints: 9}}\ncheckpoint_settings: {save_freq: 700, keep_checkpoints: 2}"
    config = take(text).config
    a, b = config.behaviors["A"], config.behaviors["B"]
    assert (a.checkpoint_interval, a.keep_checkpoints, b.checkpoint_interval, b.keep_checkpoints) == (700, 2, 700, 9)
    config = take(text.replace("behaviors", "default_settings: {}\nbehaviors")).config
    assert config.behavior_settings("C").checkpoint_interval == 700


def test_a_lesson_to_begin_with_may_stand_in_the_file(take):
    text = "behaviors: {A: {curriculum: {thresholds: [1], parameters: {p: [1, 2]}}}}\ncheckpoint_settings: {lesson: 1}"
    assert [each.name for each in take(text).config.environment_parameters["p"].curriculum] == ["Lesson1"]


def test_cpu_is_a_device(take):
    assert take("behaviors: {A: {}}\ncpu: true\nmulti_gpu: false").data["torch_settings"] == {"device": "cpu"}


def test_a_file_of_today_is_left_as_it_is(write):
    from headrace.config.load import convert

    text = "# mine\nbehaviors: {A: {framework: null}}   # as I like it\n"
    assert convert(write(text)).text == text
    assert convert(write(text)).warnings == ()


MISTAKES = [
    ("behaviors: {A: {trainer_type: ppo, trainer: ppo}}", "old.yaml:1: behaviors.A.trainer: unknown key, from an"),
    (
        "behaviors: {A: {pretraining: {demo_path: a}, behavioral_cloning: {demo_path: b}}}",
        "old.yaml:1: behaviors.A.pretraining: unknown key, from an older",
    ),
    (
        "behaviors: {A: {self_play: {play_against_current_self_ratio: 0, play_against_latest_model_ratio: 1}}}",
        "old.yaml:1: behaviors.A.self_play.play_against_current_self_ratio: is given together with its new name",
    ),
    ("behaviors: {A: {batch_size: 64}}", "old.yaml:1: behaviors.A.batch_size: unknown key here; it belongs under"),
    ("behaviors: {A: {}}\ncurriculum: [1]", "old.yaml:2: curriculum: is not valid; expected a map of behaviours"),
    ("behaviors: {A: {}}\nparameter_randomization: 3", "old.yaml:2: parameter_randomization: is not valid; expected"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_invalid_or_unsupported_old_keys_are_mistakes(refuse, text: str, expected: str):
    (mistake,) = refuse(text)
    assert mistake.startswith(expected)
