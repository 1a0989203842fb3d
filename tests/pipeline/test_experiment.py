"""The flags of Godot RL Agents' users, and what they mean."""

from __future__ import annotations

import zipfile

import pytest

from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.gdrl_command import configuration_of, read_flags


def configured(*arguments):
    return configuration_of(*read_flags(arguments))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_without_a_flag_it_is_the_example_in_the_editor():
    config = configured()
    settings = config.default_settings
    assert config.environment.kind == "godot"
    assert config.env_settings.env_path is None
    assert (config.checkpoint_settings.results_dir, config.checkpoint_settings.run_id) == ("logs/sb3", "experiment")
    assert settings.max_steps == 1_000_000
    assert (settings.hyperparameters.learning_rate, settings.hyperparameters.beta) == (0.0003, 0.0001)
    assert settings.hyperparameters.learning_rate_schedule == "constant"
    assert (settings.network_settings.hidden_units, settings.network_settings.activation) == (64, "tanh")


def test_flags_of_the_command_and_of_the_example_have_their_meanings():
    config = configured(
        *("--env_path=builds/ball.x86_64", "--n_parallel=4", "--speedup=8", "--seed=3", "--viz", "--timesteps=5000"),
        *("--experiment_dir=runs", "--experiment_name=ball", "--linear_lr_schedule", "--save_checkpoint_frequency=999"),
    )
    assert (config.env_settings.env_path, config.env_settings.num_envs) == ("builds/ball.x86_64", 4)
    assert config.env_settings.seed == 3
    assert (config.engine_settings.time_scale, config.engine_settings.no_graphics) == (8, False)
    assert (config.checkpoint_settings.results_dir, config.checkpoint_settings.run_id) == ("runs", "ball")
    assert (config.default_settings.max_steps, config.default_settings.checkpoint_interval) == (5000, 999)
    assert config.default_settings.hyperparameters.learning_rate_schedule == "linear"


def test_the_port_may_be_another_one_and_steps_are_above_0(capsys):
    assert configured("--env_path=a.x86_64", "--base_port=12000").env_settings.base_port == 12000
    assert configured("--env_path=a.x86_64", "--base-port=0").env_settings.base_port == 0
    with pytest.raises(SystemExit):
        configured("--timesteps=-5")
    assert "--timesteps=-5: must be at least 1" in capsys.readouterr().err


def test_unknown_arguments_go_to_the_game_but_that_of_every_tutorial():
    asked, passed = read_flags(["--env=gdrl", "--gravity=9.8", "--hard", "--trainer=sf", "--train_for_env_steps=7000"])
    assert passed == ["--gravity=9.8", "--hard"]
    config = configuration_of(asked, passed)
    assert config.env_settings.env_args == ("--gravity=9.8", "--hard")
    assert config.default_settings.max_steps == 7000
    assert config.checkpoint_settings.results_dir == "logs/sf"


def test_rllibs_file_is_read_and_flags_take_precedence(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "algorithm: PPO\nstop: {timesteps_total: 9000}\nconfig:\n  env: godot\n  env_config: {speedup: 4}\n"
    )
    config = configured("--trainer=rllib", "--config_file=r.yaml")
    assert (config.default_settings.max_steps, config.engine_settings.time_scale) == (9000, 4)
    config = configured("--trainer=rllib", "--config_file=r.yaml", "--speedup=2", "--timesteps=50000", "--env_path=a")
    assert (config.default_settings.max_steps, config.engine_settings.time_scale) == (50000, 2)
    assert config.env_settings.env_path == "a"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n_parallel=2"], "--n_parallel: the editor can run only one game at a time; export"),
        (["--inference"], "--inference: no experiment has been trained yet in logs/sb3/experiment"),
        (["--resume_model_path=missing"], "--resume_model_path: .*missing.zip: no such file"),
    ],
)
def test_unsupported_flags_are_refused_with_the_reason(arguments, message):
    with pytest.raises(CommandError, match=message):
        configured(*arguments)


def test_a_model_of_stable_baselines3_is_distinguished_from_others(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("policy.pth", b"")
    with pytest.raises(CommandError, match="is a Stable-Baselines3 model"):
        configured("--resume_model_path=model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("anything", b"")
    with pytest.raises(CommandError, match="expected a saved run; this archive was not written by"):
        configured("--resume_model_path=model")


def test_a_damaged_experiment_is_named(tmp_path):
    checkpoint = tmp_path / "logs" / "sb3" / "experiment" / "checkpoints" / "000001"
    checkpoint.mkdir(parents=True)
    (checkpoint.parents[1] / "configuration.yaml").write_text("")
    (checkpoint / "manifest.json").write_text("{")
    with pytest.raises(CommandError, match="manifest.json.*or name a new experiment with --experiment_name"):
        configured()
