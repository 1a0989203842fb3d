"""Behaviours: ML-Agents' defaults, what follows from other keys, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import (
    BehaviorSettings,
    ConfigError,
    NetworkSettings,
    PPOHyperparameters,
    RunConfig,
    SelfPlaySettings,
)

ML_AGENTS_DEFAULTS: dict[str, Any] = {
    "trainer_type": "ppo",
    "checkpoint_interval": 500000,
    "init_path": None,
    "keep_checkpoints": 5,
    "even_checkpoints": False,
    "max_steps": 500000,
    "time_horizon": 64,
    "summary_freq": 50000,
    "threaded": False,
    "self_play": None,
    "behavioral_cloning": None,
    "hyperparameters": {
        "batch_size": 1024,
        "buffer_size": 10240,
        "learning_rate": 3e-4,
        "learning_rate_schedule": "linear",
        "beta": 5e-3,
        "beta_schedule": "linear",
        "epsilon": 0.2,
        "epsilon_schedule": "linear",
        "lambd": 0.95,
        "num_epoch": 3,
        "shared_critic": False,
    },
    "network_settings": {
        "normalize": False,
        "hidden_units": 128,
        "num_layers": 2,
        "vis_encode_type": "simple",
        "memory": None,
        "goal_conditioning_type": "hyper",
        "deterministic": False,
    },
    "reward_signals": {"extrinsic": {"gamma": 0.99, "strength": 1.0, "network_settings": None}},
}


def test_the_defaults_are_those_of_ml_agents():
    found = BehaviorSettings().model_dump()
    for key, value in ML_AGENTS_DEFAULTS.items():
        given = found[key]
        assert value == ({name: given[name] for name in value} if isinstance(value, dict) else given), key


@pytest.mark.parametrize(
    ("given", "normalize", "activation"),
    [({}, True, "tanh"), ({"activation": "swish"}, True, "swish"), ({"normalize": False}, False, "tanh")],
)
def test_impalas_network_has_its_own_defaults(given: dict, normalize: bool, activation: str):
    settings = BehaviorSettings.model_validate({"trainer_type": "impala", "network_settings": given})
    assert (settings.network_settings.normalize, settings.network_settings.activation) == (normalize, activation)
    assert settings.network_settings.hidden_units == 128
    assert BehaviorSettings.model_validate(settings.model_dump()) == settings


def test_impalas_network_under_default_settings_does_not_apply_to_other_trainers():
    default = {"trainer_type": "impala", "network_settings": {"hidden_units": 64}}
    behaviors = {"A": {}, "B": {"trainer_type": "ppo", "hyperparameters": {"batch_size": 9}}}
    config = RunConfig.from_plain({"default_settings": default, "behaviors": behaviors})
    for each in (config, RunConfig.from_plain(config.to_plain())):
        found = {name: block.network_settings.activation for name, block in each.behaviors.items()}
        assert found == {"A": "tanh", "B": "swish"}


def test_self_play_has_the_defaults_of_ml_agents():
    settings = SelfPlaySettings()
    assert (settings.save_steps, settings.team_change, settings.swap_steps) == (20000, 100000, 2000)
    assert (settings.window, settings.play_against_latest_model_ratio, settings.initial_elo) == (10, 0.5, 1200.0)


def test_team_change_is_five_times_save_steps_unless_given():
    assert SelfPlaySettings(save_steps=300).team_change == 1500
    assert SelfPlaySettings(save_steps=300, team_change=7).team_change == 7


def test_settings_about_turns_are_refused_if_all_teams_learn_simultaneously():
    about_turns = {"window": 3, "play_against_latest_model_ratio": 1, "brains": "random", "team_change": 9}
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_plain({"behaviors": {"A": {"self_play": {"learning_teams": "all", **about_turns}}}})
    for key in about_turns:
        assert f"behaviors.A.self_play.{key}: has no effect if all teams learn simultaneously" in str(caught.value)


def test_all_teams_may_learn_at_once_also_as_a_run_s_folder_writes_it():
    config = RunConfig.from_plain({"behaviors": {"Ball": {"self_play": {"learning_teams": "all", "save_steps": 9}}}})
    assert RunConfig.from_plain(config.to_plain()) == config


def test_learning_by_turns_is_refused_if_another_behaviour_always_learns():
    plain = {"behaviors": {"A": {"self_play": {}}, "B": {"self_play": {"learning_teams": "all"}}}}
    with pytest.raises(
        ConfigError,
        match=r"behaviors\.B\.self_play\.learning_teams: 'all' can't be combined with behaviors\.A\.self_play, whose",
    ):
        RunConfig.from_plain(plain)


def test_schedules_follow_the_learning_rates_unless_given():
    settings = PPOHyperparameters(learning_rate_schedule="constant", epsilon_schedule="linear")
    assert (settings.beta_schedule, settings.epsilon_schedule) == ("constant", "linear")


def test_even_checkpoints_divide_max_steps():
    settings = BehaviorSettings(even_checkpoints=True, max_steps=1000, keep_checkpoints=3, checkpoint_interval=7)
    assert settings.checkpoint_interval == 333


@pytest.mark.parametrize(
    ("max_steps", "keep", "interval"), [(1000, 1, 1000), (1000, 5, 200), (1001, 5, 200), (7, 7, 1)]
)
def test_with_even_checkpoints_as_many_as_are_kept_fit_into_the_run(max_steps: int, keep: int, interval: int):
    settings = BehaviorSettings(even_checkpoints=True, max_steps=max_steps, keep_checkpoints=keep)
    assert settings.checkpoint_interval == interval


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_all_checkpoints_is_valid_unless_they_must_be_even(keep: int):
    settings = BehaviorSettings(keep_checkpoints=keep)
    assert (settings.keep_checkpoints, settings.checkpoint_interval) == (keep, 500000)


def test_a_trainer_of_the_users_own_gets_its_hyperparameters_as_they_are():
    settings = BehaviorSettings.model_validate(
        {"trainer_type": "my_pkg.mine:Trainer", "hyperparameters": {"temperature": 3, "batch_size": "big"}}
    )
    assert settings.hyperparameters == {"temperature": 3, "batch_size": "big"}
    assert BehaviorSettings(trainer_type="mine:Trainer").hyperparameters == {}


@pytest.mark.parametrize(
    ("given", "taken"), [("1e4", 10000), ("10000.0", 10000), ("'5e5'", 500000), ("7", 7), ("1_000", 1000)]
)
def test_a_whole_number_may_be_written_in_any_way_that_is_whole(load, given: str, taken: int):
    config = load(f"behaviors: {{Ball: {{max_steps: {given}}}}}")
    assert config.behaviors["Ball"].max_steps == taken
    assert type(config.behaviors["Ball"].max_steps) is int


PLACE = "config.yaml:1: behaviors.B"
MISTAKES = [
    ("gamma: 0.9", "gamma: unknown key here; it belongs under 'reward_signals.extrinsic'"),
    ("sequence_length: 9", "sequence_length: unknown key here; it belongs under 'network_settings.memory'"),
    ("brain_to_imitate: A", "brain_to_imitate: unknown key, from an older format of ML-Agents; it is now 'hyper"),
    ("num_update: 1", "num_update: unknown key, from an older format of ML-Agents; it is now 'hyperparameters.st"),
    ("pretraining: {}", "behavioral_cloning.demo_path: is required but missing: Demonstrations"),
    ("max_steps: 1.7", "max_steps: 1.7 is not valid; expected a whole number"),
    ("max_steps: many", "max_steps: 'many' is not valid; expected a whole number"),
    ("max_steps: 1e30", "max_steps: 1e+30 is out of range; expected a number at most 1e+15"),
    (f"max_steps: {'9' * 100_000}", "max_steps: inf is out of range; expected a number at most 1e+15"),
    ("network_settings: {hidden_units: 1e9}", "network_settings.hidden_units: 1000000000 is out of range"),
    ("max_steps: 0", "max_steps: 0 is out of range; expected a number greater than 0"),
    ("threaded: 'false'", "threaded: 'false' is not valid; expected true or false; write false, without quotes"),
    ("threaded: on", "threaded: 'on' is not valid; expected true or false; write true"),
    ("max_stps: 1", "max_stps: unknown key; did you mean 'max_steps'?"),
    ("batch_size: 1", "batch_size: unknown key here; it belongs under 'hyperparameters'"),
    ("use_recurrent: false", "use_recurrent: unknown key, from an older format of ML-Agents; it is now"),
    ("trainer_type: ppo, trainer: ppo", "trainer: unknown key, from an older format of ML-Agents; it is now"),
    ("trainer_type: poca, hyperparameters: {shared_critic: true}", "hyperparameters.shared_critic: unknown key for"),
    ("trainer_type: pppo", "trainer_type: 'pppo' is not a trainer; expected 'ppo', 'poca', 'sac', 'bc', 'impala' or"),
    ("trainer_type: null", "trainer_type: an empty value (null) is not valid; expected text"),
    ("trainer_type: my.Trainer", "trainer_type: 'my.Trainer' is not a trainer; expected 'ppo', 'poca', 'sac', 'bc',"),
    ("trainer_type: offline_bc", "trainer_type: 'offline_bc' is not a trainer; expected 'ppo', 'poca', 'sac', 'bc',"),
    ("hyperparameters: {beta: 0}", "hyperparameters: needs trainer_type as well; add 'trainer_type: ppo' (or your"),
    ("hyperparameters: null", "hyperparameters: an empty value (null) is not valid; expected a map"),
    ("network_settings: {hidden_units: 0}", "network_settings.hidden_units: 0 is out of range"),
    ("network_settings: {activation: sigmoid}", "network_settings.activation: 'sigmoid' is not valid; expected"),
    ("network_settings: {vis_encode_type: resnt}", "network_settings.vis_encode_type: 'resnt' is not valid; expect"),
    ("network_settings: {vis_encoder_type: a}", "network_settings.vis_encoder_type: unknown key; did you mean 'vis_"),
    ("network_settings: {memory: {memory_size: 7}}", "network_settings.memory.memory_size: 7 is odd; expected an even"),
    ("network_settings: {gsde: {sample_freq: 0}}", "network_settings.gsde.sample_freq: 0 is not valid; expected at"),
    (
        "trainer_type: bc, hyperparameters: {demo_path: a}, network_settings: {gsde: {}}",
        "network_settings.gsde: can't be combined with trainer_type 'bc', which imitates and does not explore; leave "
        "it out",
    ),
    ("network_settings: {memory: 64}", "network_settings.memory: 64 is not valid; expected a map"),
    ("network_settings: {memory_size: 64}", "network_settings.memory_size: unknown key here; it belongs under"),
    ("network_settings: {network: MyNet}", "network_settings.network: 'MyNet' is not valid; expected module:Name"),
    ("behavioral_cloning: {demo_path: a, strength: -1}", "behavioral_cloning.strength: -1 is out of range"),
    ("behavioral_cloning: {demo_path: a, batch: 9}", "behavioral_cloning.batch: unknown key; did you mean"),
    ("self_play: {play_against_latest_model_ratio: 1.2}", "self_play.play_against_latest_model_ratio: 1.2 is out of"),
    ("init_path: old/Ball.nn", "init_path: 'old/Ball.nn' is in Barracuda's format, which only versions 1.0 to 2.x of"),
    ("self_play: {opponents: uniform}", "self_play.opponents: 'uniform' is not a way to choose opponents; expected"),
    ("self_play: {opponents: Prioritised}", "self_play.opponents: 'Prioritised' is not a way to choose opponents;"),
    ("self_play: {opponents_with: {power: 1}}", "self_play.opponents_with.power: 'latest_or_uniform' accepts no"),
    ("self_play: {opponents: prioritised, opponents_with: {power: -1}}", "self_play.opponents_with.power: -1 is not"),
    ("even_checkpoints: true, keep_checkpoints: 0", "keep_checkpoints: 0 can't be combined with even_checkpoints"),
    ("even_checkpoints: true, max_steps: 3", "keep_checkpoints: 5 is greater than max_steps (3)"),
    (
        "trainer_type: ppo, hyperparameters: {advantage_normalization: minibatch}, network_settings: {memory: {}}",
        "hyperparameters.advantage_normalization: 'minibatch' can't be combined with network_settings.memory; expected",
    ),
]


@pytest.mark.parametrize(("body", "expected"), MISTAKES, ids=[body[:60] for body, _ in MISTAKES])
def test_a_mistake_in_a_behavior_says_what_was_expected(mistakes_of, body: str, expected: str):
    (mistake,) = mistakes_of(f"behaviors: {{B: {{{body}}}}}")
    assert mistake.startswith(f"{PLACE}.{expected}")


PPO_MISTAKES = [
    ("learning_rate: 0", "learning_rate: 0 is out of range; expected a number greater than 0"),
    ("learning_rate: fast", "learning_rate: 'fast' is not valid; expected a number"),
    ("learning_rate_schedule: linar", "learning_rate_schedule: 'linar' is not valid; expected 'linear' or 'constant'"),
    ("lambd: 1.5", "lambd: 1.5 is out of range; expected a number at most 1"),
    ("tau: 0.005", "tau: unknown key for this trainer_type; it is valid only for 'sac'"),
]


@pytest.mark.parametrize(("body", "expected"), PPO_MISTAKES, ids=[body for body, _ in PPO_MISTAKES])
def test_a_mistake_in_ppos_hyperparameters_says_what_was_expected(mistakes_of, body: str, expected: str):
    (mistake,) = mistakes_of(f"behaviors: {{B: {{trainer_type: ppo, hyperparameters: {{{body}}}}}}}")
    assert mistake.startswith(f"{PLACE}.hyperparameters.{expected}")


def test_hidden_units_are_the_same_in_each_layer_or_listed_for_all():
    assert NetworkSettings(hidden_units=64, num_layers=3).widths == (64, 64, 64)
    listed = NetworkSettings.model_validate({"hidden_units": [400, "300", 2e2]})
    assert (listed.widths, listed.num_layers) == ((400, 300, 200), None)
    assert NetworkSettings.model_validate(listed.model_dump(mode="json")) == listed


def test_an_export_of_before_keeps_its_layers():
    assert NetworkSettings.model_validate({"hidden_units": 32, "num_layers": None}).widths == (32, 32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hidden_units": [64, 64], "num_layers": 2}, "num_layers: 2 can't be combined with a list of hidden_units"),
        ({"hidden_units": []}, "the list has 0 widths; expected 1 to 100"),
        ({"hidden_units": [64, 1.5]}, "1.5 is not valid; expected a whole number"),
        ({"hidden_units": "many"}, "'many' is not"),
    ],
)
def test_widths_that_do_not_fit_are_refused_by_name(given, message):
    with pytest.raises(ValidationError, match=message):
        NetworkSettings.model_validate(given)
