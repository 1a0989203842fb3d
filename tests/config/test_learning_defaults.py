"""The defaults of kinds of environments whose users do not come from ML-Agents."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import RunConfig
from headrace.config.learning_defaults import LEARNING_DEFAULTS, describe_learning_defaults

GYMNASIUM = {"kind": "gymnasium", "id": "CartPole-v1"}
OTHERS = {
    "pettingzoo": {"kind": "pettingzoo", "id": "mpe2.simple_tag_v3"},
    "open_spiel": {"kind": "open_spiel", "game": "kuhn_poker"},
    "open_protocol": {"kind": "open_protocol"},
}
OF_ML_AGENTS = {"unity": None, "godot": {"kind": "godot"}, "builtin": {"kind": "builtin", "id": "Volley"}}


def loaded(environment: dict[str, Any] | None, **block: Any) -> RunConfig:
    """A configuration with one behaviour; None leaves the environment out."""
    section = {} if environment is None else {"environment": environment}
    return RunConfig.from_plain({**section, "behaviors": {"B": {"trainer_type": "ppo", **block}}})


def hyperparameters_of(config: RunConfig, behavior: str = "B") -> Any:
    """A behaviour's hyperparameters, of any model."""
    return config.behavior_settings(behavior).hyperparameters


def learning_values(config: RunConfig) -> dict[str, Any]:
    """The values of the keys that the table has for PPO, by section."""
    plain = config.to_plain()["behaviors"]["B"]
    return {
        key: {name: plain[key][name] for name in each} if isinstance(each, dict) else plain[key]
        for key, each in LEARNING_DEFAULTS["ppo"].items()
    }


@pytest.mark.parametrize("environment", [GYMNASIUM, *OTHERS.values()], ids=["gymnasium", *OTHERS])
def test_keys_that_the_file_omits_take_the_values_of_the_table(environment):
    assert learning_values(loaded(environment)) == LEARNING_DEFAULTS["ppo"]


@pytest.mark.parametrize("environment", OF_ML_AGENTS.values(), ids=OF_ML_AGENTS)
def test_other_kinds_of_environments_keep_the_defaults_of_ml_agents(environment):
    config = loaded(environment)
    settings, hyperparameters = config.behaviors["B"], hyperparameters_of(config)
    assert (hyperparameters.buffer_size, hyperparameters.beta_schedule) == (10240, "linear")
    assert not settings.network_settings.normalize
    assert settings.time_horizon == 64


def test_written_keys_override_the_table_one_by_one():
    written = {"learning_rate_schedule": "linear", "max_grad_norm": None, "batch_size": 32}
    config = loaded(GYMNASIUM, hyperparameters=written, network_settings={"normalize": False})
    settings, hyperparameters = config.behaviors["B"], hyperparameters_of(config)
    assert (hyperparameters.batch_size, hyperparameters.buffer_size, hyperparameters.max_grad_norm) == (32, 2048, None)
    assert (settings.network_settings.normalize, settings.network_settings.activation) == (False, "tanh")


def test_schedules_follow_the_schedule_of_the_learning_rate():
    constant = hyperparameters_of(loaded(GYMNASIUM))
    linear = hyperparameters_of(loaded(GYMNASIUM, hyperparameters={"learning_rate_schedule": "linear"}))
    assert (constant.beta_schedule, constant.epsilon_schedule) == ("constant", "constant")
    assert (linear.beta_schedule, linear.epsilon_schedule) == ("linear", "linear")


@pytest.mark.parametrize(("num_envs", "buffer", "batch"), [(1, 2048, 64), (16, 2048, 64), (64, 8192, 256)])
def test_many_instances_enlarge_buffer_and_minibatches(num_envs, buffer, batch):
    hyperparameters = hyperparameters_of(loaded({**GYMNASIUM, "num_envs": num_envs}))
    assert (hyperparameters.buffer_size, hyperparameters.batch_size) == (buffer, batch)


def test_default_settings_take_the_values_without_counting_as_written():
    environment = {**GYMNASIUM, "behavior": "Anything"}
    plain = {"environment": environment, "default_settings": {"trainer_type": "ppo"}}
    config = RunConfig.from_plain(plain)
    assert hyperparameters_of(config, "Anything").buffer_size == 2048
    assert config.to_plain()["default_settings"] == {"trainer_type": "ppo"}


@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac", "impala"])
def test_a_configuration_survives_being_written_and_read(trainer):
    config = loaded(GYMNASIUM, trainer_type=trainer)
    again = RunConfig.from_plain(config.to_plain())
    assert again.behaviors == config.behaviors
    assert not describe_learning_defaults(again)


def test_the_description_of_learning_defaults_names_values_and_behaviours():
    line = describe_learning_defaults(loaded(GYMNASIUM, hyperparameters={"batch_size": 32}))
    assert line.startswith("Defaults of environment kind gymnasium for B, unlike ML-Agents': buffer_size 2048, num_ep")
    assert "batch_size" not in line
    assert not describe_learning_defaults(loaded(None))


def test_a_brain_that_does_not_learn_takes_no_values():
    config = loaded(GYMNASIUM, brain="random")
    assert not describe_learning_defaults(config)
    assert not config.warnings
