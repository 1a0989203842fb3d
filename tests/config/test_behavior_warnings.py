"""Warnings about behaviours: each says what is done instead; what needs none gets none."""

from __future__ import annotations

from typing import Any

import pytest
from placed import without_places

from headrace.config import RunConfig

SAC = "trainer_type: sac"
MEMORY = "network_settings: {memory: {sequence_length: %d}}"
LENGTH = "network_settings.memory.sequence_length: "

WARNINGS = [
    (
        "self_play: {team_change: 500001}",
        "self_play.team_change: 500001 steps exceed max_steps (500000), so one team",
    ),
    (f"{SAC}, self_play: {{}}", "self_play: opponents change, but sac keeps learning from steps against earlier"),
    (
        "trainer_type: ppo, hyperparameters: {buffer_size: 1000}",
        "hyperparameters.buffer_size: 1000 is smaller than batch_size (1024), so each minibatch is the whole buffer",
    ),
    (
        "network_settings: {deterministic: true}",
        "network_settings.deterministic: the policy does not explore while it learns",
    ),
    (
        f"{MEMORY % 64}, time_horizon: 63",
        f"{LENGTH}64 is longer than time_horizon (63), at which trajectories are cut, so sequences have at most 63 "
        "steps",
    ),
    (
        "trainer_type: ppo, hyperparameters: {batch_size: 150}, " + MEMORY % 64,
        f"{LENGTH}64 does not divide hyperparameters.batch_size (150): a batch contains 2 whole sequences (128 steps)",
    ),
    (
        "trainer_type: sac, hyperparameters: {batch_size: 32}, " + MEMORY % 64,
        f"{LENGTH}64 does not divide hyperparameters.batch_size (32): a batch contains 1 whole sequence (64 steps)",
    ),
    (
        "behavioral_cloning: {demo_path: a, batch_size: 100}, " + MEMORY % 64,
        f"{LENGTH}64 does not divide behavioral_cloning.batch_size (100): a batch contains 1 whole sequence (64 steps)",
    ),
    (
        f"{SAC}, hyperparameters: {{buffer_init_steps: 9000, buffer_size: 8000}}",
        "hyperparameters.buffer_init_steps: 9000 exceeds buffer_size (8000): the oldest steps are overwritten",
    ),
    (
        f"{SAC}, hyperparameters: {{train_freq: 1000}}, max_steps: 999",
        "hyperparameters.train_freq: 1000 steps exceed max_steps (999): training ends before the first update",
    ),
    (f"{SAC}, max_steps: 127", "max_steps: 127 steps end before the first update, which comes after 128"),
    (
        f"{SAC}, max_steps: 1000, hyperparameters: {{buffer_init_steps: 1000}}",
        "max_steps: 1000 steps end before the first update, which comes after 1001",
    ),
    (
        f"trainer_type: impala, {MEMORY % 32}",
        f"{LENGTH}has no effect: sequences are unrolls (hyperparameters.unroll_length: 20)",
    ),
    (
        "trainer_type: impala, max_steps: 2000, hyperparameters: {critic_pretrain_steps: 2000}",
        "hyperparameters.critic_pretrain_steps: 2000 steps cover the entire run",
    ),
    (
        "trainer_type: impala, max_steps: 79",
        "hyperparameters.batch_size: 80 steps exceed max_steps (79): training ends before the first update",
    ),
    (
        "trainer_type: poca, max_steps: 10239",
        "hyperparameters.buffer_size: 10240 steps exceed max_steps (10239): training ends",
    ),
    (
        "trainer_type: poca, reward_signals: {extrinsic: {}, curiosity: {}}",
        "reward_signals.curiosity: rewards each agent separately, while poca's critic values the whole group",
    ),
    ("max_steps: 10239", "hyperparameters.buffer_size: 10240 steps exceed max_steps (10239): training ends"),
    (
        "trainer_type: bc, hyperparameters: {demo_path: a}, max_steps: 4095",
        "hyperparameters.buffer_size: 4096 steps exceed max_steps (4095): training ends",
    ),
]


@pytest.mark.parametrize(("body", "expected"), WARNINGS, ids=[body for body, _ in WARNINGS])
def test_what_hardly_does_what_was_meant_gives_a_warning(load, body: str, expected: str):
    config = load(f"behaviors: {{B: {{{body}}}}}")
    (warning,) = without_places(config.warnings)
    assert warning.startswith(f"behaviors.B.{expected}")
    # Hosts and resumed runs get plain data, in which every key is given.
    assert RunConfig.from_plain(config.to_plain()).warnings == (warning,)


OLD_IN_PLAIN_DATA: list[tuple[dict[str, Any], str]] = [  # in files these are converted, see legacy/
    (
        {"reward_signals": {"curiosity": {"encoding_size": 64}}},
        "reward_signals.curiosity.encoding_size: is deprecated; it is read as network_settings.hidden_units",
    ),
    (
        {"reward_signals": {"rnd": {"encoding_size": 64, "network_settings": {}}}},
        "reward_signals.rnd.encoding_size: is deprecated; network_settings take precedence",
    ),
]


@pytest.mark.parametrize(("body", "expected"), OLD_IN_PLAIN_DATA, ids=["encoding_size", "both sizes"])
def test_old_keys_of_plain_data_give_a_warning(body: dict[str, Any], expected: str):
    (warning,) = RunConfig.from_plain({"behaviors": {"B": body}}).warnings
    assert warning.startswith(f"behaviors.B.{expected}")


QUIET = [
    "trainer_type: sac, hyperparameters: {steps_per_update: 10, reward_signal_steps_per_update: 10}",
    "trainer_type: sac, hyperparameters: {reward_signal_steps_per_update: 4}, reward_signals: {rnd: {}}",
    "trainer_type: sac, time_horizon: 8",
    "trainer_type: sac, time_horizon: 100, hyperparameters: {train_freq: 100}",
    f"trainer_type: impala, {MEMORY % 20}",
    f"trainer_type: impala, {MEMORY % 64}",
    "trainer_type: impala, hyperparameters: {batch_size_from_replay: 0}",
    "trainer_type: impala, hyperparameters: {replay_sampling: reservoir}",
    "trainer_type: sac, max_steps: 128",
    "trainer_type: sac, max_steps: 1000, hyperparameters: {buffer_init_steps: 999}",
    f"trainer_type: sac, hyperparameters: {{batch_size: 64}}, {MEMORY % 32}",
    "max_steps: 10240",
    "trainer_type: poca, reward_signals: {extrinsic: {gamma: 0.9}}, self_play: {}",
    f"{MEMORY % 64}, time_horizon: 64",
    "behavioral_cloning: {demo_path: a, batch_size: 128}, " + MEMORY % 64,
    "network_settings: {network: 'a:B', hidden_units: 64, activation: tanh, normalize: true}",
    "reward_signals: {extrinsic: {}, curiosity: {network_settings: {hidden_units: 64}}}",
    "trainer_type: bc, hyperparameters: {demo_path: a}, reward_signals: {extrinsic: {gamma: 0.99}}",
    "trainer_type: bc, hyperparameters: {demo_path: a}, network_settings: {deterministic: true}",
    f"trainer_type: bc, hyperparameters: {{demo_path: a, batch_size: 64}}, {MEMORY % 32}",
    "trainer_type: 'a:B', hyperparameters: {batch_size: 7}, time_horizon: 16, " + MEMORY % 32,
    f"trainer_type: bc, hyperparameters: {{demo_path: a}}, {MEMORY % 128}",
    "init_path: a/b.pt",
]


@pytest.mark.parametrize("body", QUIET)
def test_what_does_what_was_meant_gives_none(load, body: str):
    assert load(f"behaviors: {{B: {{{body}}}}}").warnings == ()


def test_acting_deterministically_needs_no_warning_where_nothing_is_learned_from_it(load):
    body = "behaviors: {B: {network_settings: {deterministic: true}}}\n"
    assert load(body + "checkpoint_settings: {inference: true}").warnings == ()
    assert load(body + "replay: {streams: [a]}").warnings == ()


@pytest.mark.parametrize(
    ("init_path", "settings", "expected"),
    [
        ("a/b.pt", "resume: true", "init_path: has no effect, because 'resume: true' takes precedence"),
        (
            "a/b.pt",
            "initialize_from: old",
            "init_path: takes precedence over initialize_from, so this behaviour loads nothing from run 'old'",
        ),
    ],
)
def test_an_init_path_that_meets_another_start_gives_a_warning(load, init_path: str, settings: str, expected: str):
    text = f"behaviors: {{B: {{init_path: {init_path}}}}}\ncheckpoint_settings: {{{settings}}}"
    (warning,) = without_places(load(text).warnings)
    assert warning.startswith(f"behaviors.B.{expected}")


def test_a_file_name_as_init_path_goes_with_initialize_from(load):
    assert load("behaviors: {B: {init_path: B-5000.pt}}\ncheckpoint_settings: {initialize_from: old}").warnings == ()
