"""What a resumed run says of settings that differ from those that it was trained with."""

from __future__ import annotations

import logging

import pytest
import yaml
from run_configs import INLINE, cartpole, changed
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.run_folder.resuming import changed_settings, other_run

PLAIN = cartpole()
BEFORE = yaml.safe_dump(RunConfig.from_plain(PLAIN).to_plain())


def said(**changes):
    return changed_settings(BEFORE, RunConfig.from_plain(changed(PLAIN, changes)))


def test_each_changed_key_is_shown_with_its_values():
    assert said(behaviors__CartPole__hyperparameters__learning_rate=0.002, environment__num_envs=8) == (
        "behaviors.CartPole.hyperparameters.learning_rate 0.001 → 0.002, environment.num_envs 16 → 8"
    )


def test_added_and_removed_settings_are_shown_as_none():
    assert "reward_signals.rnd none → " in said(behaviors__CartPole__reward_signals={"extrinsic": {}, "rnd": {}})
    assert "CartPole.hyperparameters.target_kl none → 0.5" in said(behaviors__CartPole__hyperparameters__target_kl=0.5)


def test_settings_of_a_single_start_are_not_shown():
    assert said(checkpoint_settings__resume=True, checkpoint_settings__results_dir="elsewhere", debug=True) == ""


def test_a_run_of_other_behaviours_is_another_run():
    hopper = RunConfig.from_plain({"behaviors": {"Hopper": {}}})
    assert other_run(BEFORE, hopper).startswith(
        "this run trains CartPole, but the configuration lists Hopper: resume the run with"
    )
    both = RunConfig.from_plain({"behaviors": {"Hopper": {}, "CartPole": {}}})
    assert [other_run(before, both) for before in (BEFORE, "", "[]", "a: [")] == [""] * 4


@pytest.mark.parametrize("before", ["", "[]", "a: [", "behaviors: {B: {trainer_type: gone}}"])
def test_a_file_that_is_not_of_this_version_is_passed_over(before):
    assert changed_settings(before, RunConfig.from_plain(PLAIN)) == ""


@pytest.mark.lengthy
def test_a_resumed_run_logs_changed_settings_in_one_line(tmp_path, caplog):
    plain = cartpole(behaviors__CartPole__max_steps=600, **INLINE)
    run_here(plain, tmp_path, "run")
    with caplog.at_level(logging.INFO):
        run_here(plain, tmp_path, "run", resume=True)
        assert "changed settings" not in caplog.text
        run_here(changed(plain, {"behaviors__CartPole__max_steps": 1200}), tmp_path, "run", resume=True)
    assert "Resuming with changed settings: behaviors.CartPole.max_steps 600 → 1200." in caplog.messages
