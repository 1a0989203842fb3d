"""RLlib's YAML of Godot RL Agents' users becomes a run of games made with Godot."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace.config import ConfigError, load_config
from headrace.config.load import convert

FILE = """\
algorithm: PPO
env_is_multiagent: false
checkpoint_frequency: 20
stop:
    training_iteration: 1000
    time_total_s: 3600
    episode_reward_mean: 12.5
config:
    env: godot
    env_config:
        env_path: builds/ball.x86_64
        action_repeat: 4
        show_window: true
        speedup: 30
        gravity: 9.8
    framework: torch
    lr: 0.0003
    lambda: 0.95
    gamma: 0.97
    vf_loss_coeff: 0.5
    clip_param: 0.1
    entropy_coeff: 0.0001
    grad_clip: 0.5
    clip_actions: True
    rollout_fragment_length: 32
    sgd_minibatch_size: 128
    num_workers: 4
    num_envs_per_worker: 2
    train_batch_size: 2048
    num_sgd_iter: 4
    batch_mode: truncate_episodes
    num_gpus: 0
    model:
        vf_share_layers: False
        fcnet_hiddens: [64, 32]
        use_lstm: {lstm}
"""


def loaded(folder, text=FILE, **parts):
    file = folder / "rllib.yaml"
    file.write_text(text.replace("{lstm}", parts.pop("lstm", "false")))
    return load_config(file)


def test_learning_settings_are_converted(tmp_path):
    settings = loaded(tmp_path).default_settings
    hyper = settings.hyperparameters
    assert (settings.trainer_type, settings.time_horizon) == ("ppo", 32)
    assert (hyper.learning_rate, hyper.learning_rate_schedule) == (0.0003, "constant")
    assert (hyper.batch_size, hyper.buffer_size, hyper.num_epoch) == (128, 2048, 4)
    assert (hyper.epsilon, hyper.lambd, hyper.beta, hyper.max_grad_norm) == (0.1, 0.95, 0.0001, 0.5)
    assert settings.signals["extrinsic"].gamma == 0.97
    assert settings.network_settings.hidden_units == (64, 32)
    assert settings.network_settings.activation == "tanh"
    assert settings.network_settings.memory is None


def test_updates_are_counted_in_steps(tmp_path):
    config = loaded(tmp_path)
    assert config.default_settings.max_steps == 1000 * 2048
    assert config.default_settings.checkpoint_interval == 20 * 2048
    assert config.default_settings.stop_when.mean_reward == 12.5
    assert config.pipeline.max_wall_time_s == 3600


def test_the_game_is_started_as_before(tmp_path):
    config = loaded(tmp_path)
    assert config.environment.kind == "godot"
    assert config.environment.action_repeat.steps == 4
    assert (config.env_settings.env_path, config.env_settings.num_envs) == ("builds/ball.x86_64", 4)
    assert config.env_settings.env_args == ("--gravity=9.8",)
    assert (config.engine_settings.time_scale, config.engine_settings.no_graphics) == (30, False)
    assert config.torch_settings.device == "cpu"


def test_if_agents_share_episodes_environments_of_workers_are_builds(tmp_path):
    text = FILE.replace("env_is_multiagent: false", "env_is_multiagent: true")
    assert loaded(tmp_path, text).env_settings.num_envs == 8


def test_a_memory_has_as_many_cells_as_rllibs(tmp_path):
    memory = loaded(
        tmp_path, f"{FILE}        lstm_cell_size: 64\n", lstm="true"
    ).default_settings.network_settings.memory
    assert (memory.memory_size, memory.sequence_length) == (128, 20)


def test_keys_without_a_counterpart_are_named_with_their_line(tmp_path):
    warnings = loaded(tmp_path).warnings
    assert any("rllib.yaml:20: vf_loss_coeff: has no counterpart" in warning for warning in warnings)
    assert not any("clip_actions" in warning for warning in warnings)


def test_the_converted_file_means_the_same(tmp_path):
    config = loaded(tmp_path)
    (tmp_path / "ours.yaml").write_text(convert(tmp_path / "rllib.yaml").text)
    assert load_config(tmp_path / "ours.yaml").to_plain() == config.to_plain()


def test_another_algorithm_is_refused_by_its_line(tmp_path):
    with pytest.raises(ConfigError, match="rllib.yaml:1: algorithm: is not supported"):
        loaded(tmp_path, FILE.replace("PPO", "DQN"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("algorithm: PPO", "algorithm: [PPO]"),
        ("training_iteration: 1000", "training_iteration: 10\n    timesteps_total: many"),
    ],
)
def test_values_that_are_not_numbers_are_reported_without_a_traceback(tmp_path, old, new):
    assert old in FILE
    with suppress(ConfigError):
        loaded(tmp_path, FILE.replace(old, new))


def test_an_end_that_is_not_a_number_is_named(tmp_path):
    with pytest.raises(ConfigError, match="stop.training_iteration: 'many' is not valid; expected a finite number"):
        loaded(tmp_path, FILE.replace("training_iteration: 1000", "training_iteration: many"))
