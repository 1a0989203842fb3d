"""What `--validate` says about a run before it trains: random play, and the causes that it already shows."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from diagnosis_tasks import settings_of
from open_runs import GAME

from headrace.pipeline.cli import main

pytestmark = pytest.mark.lengthy
LINE = re.compile(
    r"^Agent: random play: Random Return -1\d\.\d+, Median Episode Length 20, Terminated Episodes 0, Rewarded Steps 1, "
    r"Reward Deviation 0\.\d+, Observation Scale 0\.\d+, Constant Observations 0, Duplicate Observations 0, gradient steps "
    r"planned 928$",
    re.MULTILINE,
)


def validated(in_this_process, folder, *options, **settings):
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings_of(**settings)))
    return in_this_process(main, str(path), "--validate", *options)


def test_random_play_gives_the_scale_of_a_sound_task(tmp_path, in_this_process):
    said = validated(in_this_process, tmp_path)
    assert LINE.search(said)
    assert "Cure:" not in said


def test_a_stale_observation_is_warned_of_before_training(tmp_path, in_this_process):
    said = validated(in_this_process, tmp_path, task="Stale")
    (warning,) = [line for line in said.splitlines() if "Cure:" in line]
    assert "obs-stale. Data/Repeated Starts is 1 at step 0" in warning


def test_a_setting_is_warned_of_once(tmp_path, in_this_process):
    said = validated(in_this_process, tmp_path, buffer_size=10_240, batch_size=10_240, num_epoch=1)
    assert said.count("too-few-updates") == 1
    assert "gradient steps planned 2" in said


def test_a_rare_reward_is_no_fault_of_the_trial(tmp_path, in_this_process):
    assert "Cure:" not in validated(in_this_process, tmp_path, task="Rare", network={"initial_log_std": 0.0})


def test_without_the_environment_nothing_is_played(tmp_path, in_this_process):
    assert "random play:" not in validated(in_this_process, tmp_path, "--no-env-check")


def validated_game(in_this_process, folder, **env_settings):
    hyperparameters = {"buffer_size": 10_240, "batch_size": 10_240, "num_epoch": 1}
    behavior = {"trainer_type": "ppo", "max_steps": 30_000, "time_horizon": 8, "hyperparameters": hyperparameters}
    plain = {"environment": {"kind": "open_protocol"}, "behaviors": {"Agent": behavior}}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**plain, "env_settings": env_settings}))
    return in_this_process(main, str(path), "--validate")


def test_the_settings_of_a_game_that_someone_else_starts_are_judged(tmp_path, in_this_process):
    said = validated_game(in_this_process, tmp_path)
    assert "Agent: too-few-updates" in said
    assert "random play:" not in said


def test_a_game_that_the_validation_starts_is_played_at_random(tmp_path, in_this_process):
    said = validated_game(in_this_process, tmp_path, env_path=sys.executable, env_args=[str(GAME), "--agents=4"])
    assert "Agent: too-few-updates" in said
    assert re.search(
        r"^Agent: random play: Random Return \S+, Median Episode Length \d+, .*, gradient steps planned 2$", said, re.M
    )
