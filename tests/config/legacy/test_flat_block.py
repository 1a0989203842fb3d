"""Flat files, up to 0.15: each key goes where it belongs today, is reported once, and keeps its meaning."""

from __future__ import annotations

from typing import Any

import pytest
from old_sections import flat

from headrace.config import PPOHyperparameters, SACHyperparameters, load_config


def value_at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


MOVED = [  # trainer, old key and value, new place below the behaviour, and value there
    ("ppo", "trainer: ppo", "trainer_type", "ppo"),
    ("ppo", "batch_size: 32", "hyperparameters.batch_size", 32),
    ("ppo", "buffer_size: 6.4e2", "hyperparameters.buffer_size", 640),
    ("ppo", "learning_rate: 1e-3", "hyperparameters.learning_rate", 1e-3),
    ("ppo", "beta: 1e-4", "hyperparameters.beta", 1e-4),
    ("ppo", "epsilon: 0.1", "hyperparameters.epsilon", 0.1),
    ("ppo", "lambd: 1", "hyperparameters.lambd", 1),
    ("ppo", "num_epoch: 7", "hyperparameters.num_epoch", 7),
    ("sac", "tau: 0.01", "hyperparameters.tau", 0.01),
    ("sac", "init_entcoef: 0.7", "hyperparameters.init_entcoef", 0.7),
    ("sac", "buffer_init_steps: 1e3", "hyperparameters.buffer_init_steps", 1000),
    ("sac", "save_replay_buffer: true", "hyperparameters.save_replay_buffer", True),
    ("sac", "train_interval: 3", "hyperparameters.steps_per_update", 3),
    ("sac", "num_update: 4", "hyperparameters.steps_per_update", 0.25),
    ("ppo", "hidden_units: 48", "network_settings.hidden_units", 48),
    ("ppo", "num_layers: 3", "network_settings.num_layers", 3),
    ("ppo", "normalize: yes", "network_settings.normalize", True),
    ("ppo", "vis_encode_type: resnet", "network_settings.vis_encode_type", "resnet"),
    ("sac", "vis_encode_type: default", "network_settings.vis_encode_type", "simple"),
    ("ppo", "use_recurrent: true", "network_settings.memory", {"sequence_length": 8, "memory_size": 24}),
    (
        "ppo",
        "pretraining: {demo_path: a.demo, strength: 0.5, steps: 1e4}",
        "behavioral_cloning",
        {"demo_path": "a.demo", "strength": 0.5, "steps": 10000, "num_epoch": 5},
    ),
]


@pytest.mark.parametrize(("trainer", "old", "place", "value"), MOVED, ids=[old for _, old, _, _ in MOVED])
def test_an_old_key_goes_to_its_place_and_is_reported_once(take, trainer: str, old: str, place: str, value: Any):
    taken = take(f"Ball: {flat(trainer, old)}")
    assert value_at(taken.data["behaviors"]["Ball"], place) == value
    key = old.split(":")[0]
    (note,) = [each for each in taken.notes if each.startswith(f"old.yaml:1: {key}: ")]
    assert f"'{place}'" in note


STAYED = ["max_steps: 8000", "time_horizon: 20", "summary_freq: 600", "threaded: false", "keep_checkpoints: 3"]


@pytest.mark.parametrize("line", [*STAYED, "init_path: a/b.pt", "checkpoint_interval: 500"])
def test_an_unmoved_key_is_not_reported(take, line: str):
    taken, (key, value) = take(f"Ball: {flat('ppo', line)}"), line.split(": ")
    assert str(taken.data["behaviors"]["Ball"][key]).lower() == value
    assert not any(f" {key}: " in note for note in taken.notes)


def test_default_is_laid_under_sections_at_the_top_only(take):
    taken = take(
        f"""
        default: {
            flat(
                "ppo",
                "reward_signals: {extrinsic: {strength: 2, gamma: 0.5}, curiosity: {strength: 1, gamma: 0.6, "
                "encoding_size: 9}}",
            )
        }
        A: {{hidden_units: 7}}
        B: {{reward_signals: {{gail: {{strength: 0.1, gamma: 0.7, demo_path: d}}}}}}
        """
    )
    a, b, unlisted = (taken.config.behavior_settings(name) for name in "ABC")
    assert list(a.signals) == list(unlisted.signals) == ["extrinsic", "curiosity"]
    assert (a.network_settings.hidden_units, unlisted.network_settings.hidden_units) == (7, 32)
    assert list(b.signals) == ["gail"]
    assert taken.data["behaviors"]["A"] == {"trainer_type": "ppo", "network_settings": {"hidden_units": 7}}


def test_a_section_s_missing_keys_are_filled_in_by_the_meaning_of_the_old_defaults(take):
    taken = take(
        f"""
        default: {flat("ppo", "use_recurrent: true")[:-1]}, self_play: {{window: 3, team_change: 77}},
          pretraining: {{demo_path: d, steps: 5, strength: 0.5, batch_size: 8}}}}
        A: {{self_play: {{save_steps: 900}}, use_recurrent: false, pretraining: {{demo_path: e, steps: 6, strength: 1}}}}
        """
    )
    a = taken.config.behaviors["A"]
    assert (a.self_play.window, a.self_play.save_steps, a.self_play.team_change) == (10, 900, 4500)
    assert a.network_settings.memory is None
    assert (a.behavioral_cloning.demo_path, a.behavioral_cloning.batch_size) == ("e", None)


CLONING = "demo_path: d, strength: 1, steps: 5"
CLONED = {"demo_path": "d", "strength": 1, "steps": 5}


@pytest.mark.parametrize("name", ["pretraining", "behavioral_cloning"])
@pytest.mark.parametrize(
    ("own", "written"),
    [
        ("", {"num_epoch": 1, "samples_per_update": 16}),
        (", num_epoch: 2", {"num_epoch": 2, "samples_per_update": 16}),
        (", batch_size: 4", {"num_epoch": 1, "samples_per_update": 16, "batch_size": 4}),
        (", batch_size: 17", {"num_epoch": 1, "batch_size": 17}),
        (", samples_per_update: 500", {"num_epoch": 1, "samples_per_update": 16}),
    ],
)
def test_the_old_sac_made_one_pass_over_as_many_demonstrated_steps_as_its_own_steps(take, name, own, written):
    taken = take(f"A: {flat('sac', f'batch_size: 16, {name}: {{{CLONING}{own}}}')}")
    assert taken.data["behaviors"]["A"]["behavioral_cloning"] == CLONED | written
    told = f"old.yaml:1: {name}.samples_per_update: was not a valid setting of the old sac"
    assert any(note.startswith(told) for note in taken.notes) == ("samples" in own)


@pytest.mark.parametrize(
    ("block", "written"),
    [
        (f"num_epoch: 6, pretraining: {{{CLONING}}}", {"num_epoch": 6}),
        (f"num_epoch: 6, pretraining: {{{CLONING}, num_epoch: 2}}", {"num_epoch": 2}),
        (f"num_epoch: 3, pretraining: {{{CLONING}, samples_per_update: 9}}", {"samples_per_update": 9}),
        (f"num_epoch: 6, behavioral_cloning: {{{CLONING}}}", {}),
    ],
)
def test_the_old_ppo_cloned_in_as_many_passes_as_it_learned_until_the_section_was_renamed(take, block, written):
    taken = take(f"A: {flat('ppo', block)}")
    assert taken.data["behaviors"]["A"]["behavioral_cloning"] == CLONED | written


def test_a_section_may_name_another_one_over_and_over(take):
    taken = take(f"default: {flat('ppo')}\nA: B\nB: C\nC: {{max_steps: 123}}")
    assert [taken.config.behaviors[name].max_steps for name in "ABC"] == [123, 123, 123]
    assert "old.yaml:2: A: uses the keys of 'B', which are now copied into it" in taken.notes


def test_a_key_in_many_sections_is_reported_once_with_its_lines(take):
    taken = take(f"default: {flat('ppo')}\n" + "".join(f"S{n}: {{hidden_units: {n + 1}}}\n" for n in range(6)))
    (note,) = [each for each in taken.notes if " hidden_units: " in each]
    assert note.endswith("is now 'network_settings.hidden_units' (also in lines 2, 3, 4 and 3 more)")
    assert "old.yaml:2: S0, S1, S2, S3, S4, S5: are now under 'behaviors'" in taken.notes


def test_the_schedule_of_the_learning_rate_also_is_that_of_beta_and_epsilon(take):
    ppo = take(f"Ball: {flat('ppo', 'learning_rate_schedule: constant')}").config.behaviors["Ball"].hyperparameters
    assert isinstance(ppo, PPOHyperparameters)
    assert (ppo.beta_schedule, ppo.epsilon_schedule) == ("constant", "constant")


def test_sac_without_a_schedule_lowers_its_learning_rate_linearly_with_a_warning(take):
    taken = take(f"Ball: {flat('sac')}")
    sac = taken.config.behaviors["Ball"].hyperparameters
    assert isinstance(sac, SACHyperparameters)
    assert sac.learning_rate_schedule == "linear"
    assert "learning_rate_schedule: linear  # as in the old sac; the current default is constant" in taken.text
    assert any("old sac lowered its learning rate linearly" in note for note in taken.notes)


@pytest.mark.parametrize(
    ("keys", "steps", "of_signals"),
    [
        ("num_update: 1", 1, 1),
        ("train_interval: 6\nnum_update: -\nupdates_per_train: 3", 2, 2),
        ("train_interval: 6\nreward_signals: {reward_signal_num_update: 3, curiosity: {strength: 1, gamma: 1}}", 6, 2),
        ("train_interval: 6\nnum_update: 4\nsteps_per_update: 3", 3, 3),
        ("reward_signals: {reward_signal_steps_per_update: 5, curiosity: {strength: 1, gamma: 1}}", 1, 5),
    ],
)
def test_how_often_sac_learns(take, keys: str, steps: float, of_signals: float):
    sac = take(f"Ball: {flat('sac', keys)}").config.behaviors["Ball"].hyperparameters
    assert (sac.steps_per_update, sac.reward_signal_steps_per_update) == (steps, of_signals)


def test_signals_keep_their_old_defaults(take):
    signals = "{extrinsic: {strength: 1, gamma: 0.9}, gail: {strength: 1, gamma: 0.8, demo_path: d}, "
    taken = take(
        f"Ball: {flat('ppo', f'reward_signals: {signals}curiosity: {{strength: 1, gamma: 0.7, encoding_size: 99}}}}')}"
    )
    gail, curiosity = (taken.config.behaviors["Ball"].signals[name] for name in ("gail", "curiosity"))
    assert (gail.network_settings.hidden_units, curiosity.network_settings.hidden_units) == (64, 99)
    assert "hidden_units: 64  # the old default; the current one is 128" in taken.text


def test_a_run_names_the_command_that_converts_a_flat_file(write):
    path = write("Ball: {trainer: ppo, batch_size: 64}")
    assert load_config(path).warnings[-1].endswith(f'to convert it once: run-pipeline --convert "{path}" > new.yaml')


def test_old_self_play_swaps_every_20000_steps(take):
    taken = take(f"Ball: {flat('ppo', 'self_play: {play_against_current_self_ratio: 0.3}')}")
    self_play = taken.config.behaviors["Ball"].self_play
    assert (self_play.swap_steps, self_play.play_against_latest_model_ratio) == (20000, 0.3)
    assert "swap_steps: 20000  # the old default; the current one is 2000" in taken.text
    assert any("is now 'self_play.play_against_latest_model_ratio'" in note for note in taken.notes)


def test_before_there_were_signals_gamma_and_use_curiosity_made_them(take):
    more = "reward_signals: -\ngamma: 0.97\nuse_curiosity: true\ncuriosity_strength: 0.2\ncuriosity_enc_size: 40"
    taken = take(f"Ball: {flat('ppo', more)}")
    extrinsic, curiosity = taken.config.behaviors["Ball"].signals.values()
    assert (extrinsic.gamma, extrinsic.strength) == (0.97, 1)
    assert (curiosity.gamma, curiosity.strength, curiosity.network_settings.hidden_units) == (0.97, 0.2, 40)
    assert any("gamma: is now 'reward_signals.extrinsic.gamma'" in note for note in taken.notes)


def test_gamma_next_to_reward_signals_still_has_no_effect(take):
    taken = take(f"Ball: {flat('ppo', 'gamma: 0.5')}")
    assert taken.config.behaviors["Ball"].signals["extrinsic"].gamma == 0.9


@pytest.mark.parametrize("key", ["summary_path", "model_path"])
def test_paths_of_results_are_gone(take, key: str):
    taken = take(f"Ball: {flat('ppo', f'{key}: ./somewhere')}")
    assert f"old.yaml:1: {key}: was removed: everything goes to <results_dir>/<run_id>" in taken.notes


def test_keys_of_other_trainers_are_left_out_as_all_sections_shared_them(take):
    taken = take(f"default: {flat('ppo', 'tau: 0.1')}\nA: {flat('sac')}\nB: {{}}")
    assert "beta" not in taken.data["behaviors"]["A"]["hyperparameters"]
    assert not any("beta" in note and "left out" in note for note in taken.notes)


def test_of_equal_keys_the_last_counts_as_it_did_with_a_warning(take):
    taken = take("Ball:\n  trainer: ppo\n  max_steps: 5e3\n  max_steps: 6e3\n  time_horizon: 9\n  time_horizon: 9\n")
    assert taken.config.behaviors["Ball"].max_steps == 6000
    assert (
        "old.yaml:4: Ball.max_steps: appears twice here (first in line 3); the last one applies, as in old versions"
        in taken.notes
    )
    assert any("Ball.time_horizon: appears twice here (first in line 5)" in note for note in taken.notes)


def test_missing_required_keys_have_the_defaults_of_today(take):
    taken = take("Ball: {trainer: ppo, batch_size: 64}")
    ball = taken.config.behaviors["Ball"]
    assert (ball.summary_freq, ball.hyperparameters.buffer_size, ball.hyperparameters.batch_size) == (50000, 10240, 64)


def test_a_default_that_is_not_a_whole_block_goes_into_each_section(take):
    taken = take("default: {summary_freq: 5}\nA: {trainer: ppo}\nB: {trainer: sac}")
    assert "default_settings" not in taken.data
    assert [taken.config.behaviors[name].summary_freq for name in "AB"] == [5, 5]


def test_files_that_counted_the_environments_steps_are_warned_of(take):
    taken = take(f"default: {flat('ppo', 'max_steps: 5.0e4' + chr(10) + 'summary_freq: 1000')}\nBall: {{}}")
    assert any("multiply max_steps and summary_freq by the number of agents" in note for note in taken.notes)
    assert not any("multiply" in note for note in take(f"default: {flat('ppo')}\nBall: {{}}").notes)


def test_sections_of_today_may_stand_in_an_old_file(take):
    taken = take(f"Ball: {flat('ppo')}\nenv_settings: {{seed: 5}}\ncheckpoint_settings: {{run_id: a}}")
    assert (taken.config.env_settings.seed, taken.config.checkpoint_settings.run_id) == (5, "a")


def test_overrides_are_in_todays_words(write):
    from headrace.config import load_config

    config = load_config(write(f"Ball: {flat('ppo')}"), ["behaviors.Ball.hyperparameters.batch_size=16"])
    hyperparameters = config.behaviors["Ball"].hyperparameters
    assert isinstance(hyperparameters, PPOHyperparameters)
    assert hyperparameters.batch_size == 16


MISTAKES = [
    ("Ball: {batch_size: 64}", "old.yaml:1: Ball: names no trainer, and neither does 'default'; add a line such as"),
    ("Ball: {trainer: pppo}", "old.yaml:1: Ball.trainer: 'pppo' is not a trainer; expected one of ppo, poca, sac"),
    (f"Ball: {flat('ppo', 'batchsize: 3')}", "old.yaml:1: Ball.batchsize: unknown key, even in old versions of"),
    (
        f"default: {flat('ppo')}\nBall:\n  hidden_units: many",
        "old.yaml:3: behaviors.Ball.network_settings.hidden_units: 'many' is not valid; expected a whole number",
    ),
    (f"Ball: {flat('ppo', 'hidden_units: [48, 24]')}", "old.yaml:1: behaviors.Ball.network_settings.num_layers: 1"),
    (
        f"default: {flat('sac', 'buffer_size: 5')}\nBall: {{}}",
        "old.yaml:1: default_settings.hyperparameters.buffer_size: 5 is smaller than batch_size (64)",
    ),
    (f"default: {flat('ppo')}\nWalker: Wlker", "old.yaml:2: Walker: refers to a section 'Wlker', which does not"),
    (f"default: {flat('ppo')}\nA:", "old.yaml:2: A: is an empty value (null); expected a map of keys and values, or"),
    (
        f"A: {flat('ppo', 'reward_signals: {curiosity: {strength: 1, gamma: 1, num_epoch: 2}}')}",
        "old.yaml:1: A.reward_signals.curiosity.num_epoch: 2 differs from the trainer's num_epoch (5)",
    ),
    (
        f"A: {flat('ppo', 'reward_signals: {gail: {strength: 1, gamma: 1, demo_path: d, samples_per_update: 2}}')}",
        "old.yaml:1: A.reward_signals.gail.samples_per_update: 2 can't be kept",
    ),
    (
        f"A: {flat('ppo', 'reward_signals: {gail: {strength: 1, gamma: 1}}')}",
        "old.yaml:1: behaviors.A.reward_signals.gail.demo_path: is required but missing",
    ),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[expected for _, expected in MISTAKES])
def test_invalid_or_unsupported_old_keys_are_mistakes_with_their_line(refuse, text: str, expected: str):
    (mistake,) = refuse(text)
    assert mistake.startswith(expected)


def test_all_mistakes_of_an_old_file_are_reported_at_once(refuse):
    told = refuse(f"default: {flat('ppo', 'beta: much')}\nA: {{batchsize: 3}}\nB: {{trainer: ppo, gama: 1}}\nC: D")
    assert [each.split(": ")[0] for each in told] == ["old.yaml:1", "old.yaml:2", "old.yaml:3", "old.yaml:4"]


def test_a_file_of_today_without_behaviors_is_not_taken_for_an_old_one(refuse):
    (mistake, *_) = refuse("Ball: {trainer_type: ppo, max_steps: 5}")
    assert mistake.startswith("old.yaml:1: Ball: unknown key") or "is empty, so the run has nothing to train" in mistake
