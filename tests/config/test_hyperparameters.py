"""Hyperparameters of each built-in trainer: defaults, what goes with what, and keys of another trainer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import (
    BCHyperparameters,
    BehaviorSettings,
    ImpalaHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)

SAC_OF_ML_AGENTS = {
    "batch_size": 128,
    "buffer_size": 50000,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "buffer_init_steps": 0,
    "tau": 0.005,
    "steps_per_update": 1.0,
    "save_replay_buffer": False,
    "init_entcoef": 1.0,
    "reward_signal_steps_per_update": 1.0,
}
POCA_OF_ML_AGENTS = {
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
}


@pytest.mark.parametrize(
    ("model", "defaults"), [(SACHyperparameters, SAC_OF_ML_AGENTS), (POCAHyperparameters, POCA_OF_ML_AGENTS)]
)
def test_hyperparameters_have_the_defaults_of_ml_agents(model, defaults):
    assert defaults.items() <= model().model_dump().items()


def test_reward_signals_are_updated_as_often_as_the_policy_unless_their_ratio_is_set():
    assert SACHyperparameters(steps_per_update=10).reward_signal_steps_per_update == 10
    assert SACHyperparameters(steps_per_update=10, reward_signal_steps_per_update=4).reward_signal_steps_per_update == 4


@pytest.mark.parametrize(
    ("trainer", "body", "model"),
    [
        ("ppo", "beta: 0.1", PPOHyperparameters),
        ("poca", "beta: 0.1", POCAHyperparameters),
        ("sac", "tau: 0.1", SACHyperparameters),
        ("bc", "demo_path: a", BCHyperparameters),
        ("impala", "rho_bar: 2", ImpalaHyperparameters),
    ],
)
def test_the_trainer_type_says_what_hyperparameters_there_are(load, trainer: str, body: str, model: type):
    config = load(f"behaviors: {{B: {{trainer_type: {trainer}, hyperparameters: {{{body}}}}}}}")
    assert type(config.behaviors["B"].hyperparameters) is model


def test_with_memory_impalas_critic_shares_the_actors_body(load, mistakes_of):
    text = "behaviors: {{B: {{trainer_type: impala, network_settings: {{memory: {{}}}}{more}}}}}"
    assert load(text.format(more="")).behaviors["B"].hyperparameters.shared_critic
    assert not load("behaviors: {B: {trainer_type: impala}}").behaviors["B"].hyperparameters.shared_critic
    (mistake,) = mistakes_of(text.format(more=", hyperparameters: {shared_critic: false}"))
    assert "behaviors.B.hyperparameters.shared_critic: false can't be combined with network_settings.memory" in mistake


def test_an_update_of_impala_takes_its_fresh_unrolls_from_actors():
    settings = ImpalaHyperparameters(unroll_length=10, batch_size=6, batch_size_from_replay=2)
    assert (settings.rows_per_update, settings.batch_rows, settings.longest_piece) == (40, 60, 10)


def test_impalas_epsilon_follows_the_size_of_its_gradients():
    assert ImpalaHyperparameters(loss_reduction="mean").adam_epsilon == 1e-5
    assert ImpalaHyperparameters(loss_reduction="mean", adam_epsilon=0.1).adam_epsilon == 0.1


@pytest.mark.parametrize(
    ("given", "replayed", "capacity"),
    [
        ({"batch_size": 32}, 21, 525),
        ({"batch_size": 1}, 0, 200),
        ({"batch_size": 4, "batch_size_from_replay": 3}, 3, 75),
        ({"batch_size_from_replay": 0}, 0, 200),
        ({"replay_capacity": 9}, 8, 9),
    ],
)
def test_the_replayed_share_and_capacity_of_impala_follow_from_its_batch_size(
    given: dict, replayed: int, capacity: int
):
    settings = ImpalaHyperparameters(**given)
    assert (settings.batch_size_from_replay, settings.replay_capacity) == (replayed, capacity)
    assert ImpalaHyperparameters(**settings.model_dump()) == settings


def test_hyperparameters_of_one_trainer_are_refused_for_another_in_python_too():
    with pytest.raises(ValidationError, match="PPOHyperparameters is not valid for trainer_type 'sac'"):
        BehaviorSettings(trainer_type="sac", hyperparameters=PPOHyperparameters())


MISTAKES = [
    ("sac", "batch_size: 256, buffer_size: 200", "buffer_size: 200 is smaller than batch_size (256); raise"),
    ("sac", "tau: 0", "tau: 0 is out of range; expected a number greater than 0"),
    ("ppo", "advantage_normalization: rows", "advantage_normalization: 'rows'"),
    ("sac", "gradient_steps: 8", "gradient_steps: needs rounds of updates; add 'train_freq'"),
    ("sac", "save_replay_buffer: 'true'", "save_replay_buffer: 'true' is not valid; expected true or false; write"),
    ("sac", "entropy_coefficient: fix", "entropy_coefficient: 'fix' is not valid; expected 'auto' or 'fixed'; did you"),
    ("sac", "taw: 0.1", "taw: unknown key; did you mean 'tau'?"),
    ("ppo", "n_steps: 32", "n_steps: unknown key; Stable-Baselines3's 'n_steps' is 'hyperparameters.buffer_size', of"),
    ("sac", "beta: 0.1", "beta: unknown key for this trainer_type; it is valid only for 'ppo'"),
    ("sac", "num_epoch: 3", "num_epoch: unknown key for this trainer_type; it is valid only for 'ppo', 'poca' and"),
    ("ppo", "init_entcoef: 1", "init_entcoef: unknown key for this trainer_type; it is valid only for 'sac'"),
    ("bc", "teacher: T, epsilon: 1", "epsilon: unknown key for this trainer_type; it is valid only for 'ppo'"),
    ("sac", "gamma: 0.9", "gamma: unknown key here; it belongs under 'behaviors.B.reward_signals.extrinsic'"),
    ("sac", "max_steps: 9", "max_steps: unknown key here; it belongs under 'behaviors.B'"),
    ("impala", "batch_size_from_replay: 12", "batch_size_from_replay: 12 of batch_size (12) leaves no fresh unroll"),
    (
        "impala",
        "batch_size_from_replay: 8, replay_capacity: 7",
        "replay_capacity: 7 is less than batch_size_from_replay (8), so no update can draw that many",
    ),
    ("impala", "unroll_length: 0", "unroll_length: 0 is out of range"),
    ("impala", "reward_clipping: hard", "reward_clipping: 'hard' is not valid; expected 'none', 'abs_one' or 'soft_as"),
    ("impala", "num_epoch: 3", "num_epoch: unknown key for this trainer_type; it is valid only for 'ppo', 'poca' and"),
    ("bc", "demo_path: a, teacher: T", "teacher: can't be combined with 'demo_path'; keep one of the two"),
    ("bc", "demo_path: ''", "demo_path: is empty"),
    ("bc", "teacher: B", "teacher: 'B' is this behaviour itself; expected another behaviour of this run (T)"),
    ("bc", "teacher: U", "teacher: 'U' is not listed under behaviors; listed: T, B"),
    ("bc", "teacher: T, held_out: 1", "held_out: 1 is out of range; expected a number less than 1"),
    ("bc", "teacher: T, batch_size: 9, buffer_size: 8", "buffer_size: 8 is smaller than batch_size (9)"),
]


@pytest.mark.parametrize(("trainer", "body", "expected"), MISTAKES, ids=[f"{each[0]} {each[1]}" for each in MISTAKES])
def test_a_mistake_in_hyperparameters_says_what_was_expected(mistakes_of, trainer: str, body: str, expected: str):
    (mistake,) = mistakes_of(f"behaviors: {{T: {{}}, B: {{trainer_type: {trainer}, hyperparameters: {{{body}}}}}}}")
    assert mistake.startswith(f"config.yaml:1: behaviors.B.hyperparameters.{expected}")


@pytest.mark.parametrize("hyperparameters", ["", ", hyperparameters: {}", ", hyperparameters: {batch_size: 9}"])
def test_bc_with_nothing_to_imitate_is_a_mistake(mistakes_of, hyperparameters: str):
    (mistake,) = mistakes_of(f"behaviors: {{B: {{trainer_type: bc{hyperparameters}}}}}")
    assert mistake.startswith("config.yaml:1: behaviors.B.hyperparameters: has nothing to imitate; add 'demo_path'")


@pytest.mark.parametrize(("key", "body"), [("self_play", "{}"), ("behavioral_cloning", "{demo_path: a}")])
def test_keys_that_conflict_with_bc_are_refused(mistakes_of, key: str, body: str):
    text = f"behaviors: {{B: {{trainer_type: bc, hyperparameters: {{demo_path: a}}, {key}: {body}}}}}"
    (mistake,) = mistakes_of(text)
    assert mistake.startswith(f"config.yaml:1: behaviors.B.{key}: can't be combined with trainer_type 'bc'")
    assert mistake.endswith(f"leave it out ('{key}: null' if default_settings has it)")


def test_a_bc_behavior_can_turn_off_what_it_inherits_and_does_not_go_with_it(load):
    config = load(
        """
        default_settings: {self_play: {}, behavioral_cloning: {demo_path: a}}
        behaviors:
          B: {trainer_type: bc, hyperparameters: {demo_path: b}, self_play: null, behavioral_cloning: null}
        """
    )
    assert (config.behaviors["B"].self_play, config.behaviors["B"].behavioral_cloning) == (None, None)


def test_a_teacher_may_be_a_behavior_that_only_default_settings_describe(load):
    config = load(
        """
        default_settings: {max_steps: 9}
        behaviors: {B: {trainer_type: bc, hyperparameters: {teacher: Unlisted}}}
        """
    )
    assert config.behaviors["B"].hyperparameters.teacher == "Unlisted"


def test_a_behavior_that_inherits_itself_as_its_teacher_is_reported_at_the_key(mistakes_of):
    text = """
        default_settings: {trainer_type: bc, hyperparameters: {teacher: B}}
        behaviors: {A: {}, B: {}}
    """
    (mistake,) = mistakes_of(text)
    assert mistake.startswith("config.yaml:1: behaviors.B.hyperparameters.teacher: 'B' is this behaviour itself")


def test_a_replay_buffer_must_hold_a_whole_sequence(mistakes_of):
    text = """
        behaviors:
          B:
            trainer_type: sac
            hyperparameters: {batch_size: 32, buffer_size: 63}
            network_settings: {memory: {sequence_length: 64}}
    """
    (mistake,) = mistakes_of(text)
    expected = "hyperparameters.buffer_size: 63 is smaller than network_settings.memory.sequence_length (64)"
    assert mistake.startswith(f"config.yaml:4: behaviors.B.{expected}")


# --- default_settings of one trainer under behaviours of another

SIZES = {"batch_size": 8, "buffer_size": 80, "learning_rate": 0.01}
GIVEN: dict[str, dict[str, Any]] = {
    "ppo": {**SIZES, "num_epoch": 2, "beta": 0.1},
    "sac": {**SIZES, "tau": 0.1, "steps_per_update": 4},
    "bc": {**SIZES, "num_epoch": 2, "held_out": 0.5, "demo_path": "a"},
}
ACROSS = [
    ("ppo", "sac", {}, ["num_epoch", "beta"]),
    ("sac", "bc", {"demo_path": "b"}, ["tau", "steps_per_update"]),
    ("bc", "sac", {}, ["num_epoch", "held_out", "demo_path"]),
]


@pytest.mark.parametrize(("theirs", "ours", "own", "dropped"), ACROSS, ids=[f"{a} to {b}" for a, b, _, _ in ACROSS])
def test_a_trainer_inherits_only_the_keys_that_it_has(
    load, theirs: str, ours: str, own: dict[str, object], dropped: list[str]
):
    config = load(
        f"""
        default_settings: {{trainer_type: {theirs}, hyperparameters: {GIVEN[theirs]}}}
        behaviors: {{B: {{trainer_type: {ours}, hyperparameters: {own}}}}}
        """
    )
    hyperparameters = config.behaviors["B"].hyperparameters.model_dump()
    inherited = {key: value for key, value in GIVEN[theirs].items() if key not in dropped}
    assert hyperparameters == {**hyperparameters, **inherited, **own}
    assert config.warnings == ()


def test_a_trainer_type_that_is_not_text_is_a_mistake_below_default_settings_too(mistakes_of):
    text = """
        default_settings: {trainer_type: ppo, hyperparameters: {beta: 0.1}}
        behaviors: {B: {trainer_type: [sac]}}
    """
    (mistake,) = mistakes_of(text)
    assert mistake.startswith("config.yaml:2: behaviors.B.trainer_type: a list is not valid; expected text")
