"""Warnings about behaviours: each says what is done instead; what needs none gets none."""

from __future__ import annotations

import pytest
from placed import without_places

from headrace.config import RunConfig

SAC = "trainer_type: sac"
MEMORY = "network_settings: {memory: {sequence_length: %d}}"
LENGTH = "network_settings.memory.sequence_length: "

WARNINGS = [
    ("self_play: {team_change: 500001}", "self_play.team_change: 500001 steps exceed max_steps (500000), so one team"),
    (f"{SAC}, self_play: {{}}", "self_play: opponents change, but sac keeps learning from steps against earlier"),
    ("trainer_type: ppo, hyperparameters: {buffer_size: 1000}", "hyperparameters.buffer_size: 1000 is smaller than"),
    ("network_settings: {deterministic: true}", "network_settings.deterministic: the policy does not explore while"),
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
    (f"{SAC}, hyperparameters: {{train_freq: 1000}}, max_steps: 999", "hyperparameters.train_freq: 1000 steps exceed"),
    (f"{SAC}, max_steps: 127", "max_steps: 127 steps end before the first update, which comes after 128"),
    (f"{SAC}, max_steps: 1000, hyperparameters: {{buffer_init_steps: 1000}}", "max_steps: 1000 steps end before the"),
    (
        "trainer_type: impala, max_steps: 2000, hyperparameters: {critic_pretrain_steps: 2000}",
        "hyperparameters.critic_pretrain_steps: 2000 steps cover the entire run",
    ),
    ("trainer_type: impala, max_steps: 79", "hyperparameters.batch_size: 80 steps exceed max_steps (79): training"),
    ("trainer_type: poca, max_steps: 10239", "hyperparameters.buffer_size: 10240 steps exceed max_steps (10239):"),
    ("trainer_type: poca, reward_signals: {extrinsic: {}, curiosity: {}}", "reward_signals.curiosity: rewards each"),
    ("max_steps: 10239", "hyperparameters.buffer_size: 10240 steps exceed max_steps (10239): training ends"),
    ("trainer_type: bc, hyperparameters: {demo_path: a}, max_steps: 4095", "hyperparameters.buffer_size: 4096 steps"),
]


@pytest.mark.parametrize(("body", "expected"), WARNINGS, ids=[body for body, _ in WARNINGS])
def test_settings_with_an_unintended_effect_give_a_warning(load, body: str, expected: str):
    config = load(f"behaviors: {{B: {{{body}}}}}")
    (warning,) = without_places(config.warnings)
    assert warning.startswith(f"behaviors.B.{expected}")
    # Hosts and resumed runs get plain data, in which every key is given.
    assert RunConfig.from_plain(config.to_plain()).warnings == (warning,)


QUIET = [
    "trainer_type: sac, hyperparameters: {steps_per_update: 10, reward_signal_steps_per_update: 10}",
    "trainer_type: sac, hyperparameters: {reward_signal_steps_per_update: 4}, reward_signals: {rnd: {}}",
    "trainer_type: sac, time_horizon: 100, hyperparameters: {train_freq: 100}",
    f"trainer_type: impala, {MEMORY % 32}",
    "trainer_type: sac, max_steps: 128",
    "max_steps: 10240",
    "trainer_type: poca, reward_signals: {extrinsic: {gamma: 0.9}}, self_play: {}",
    f"{MEMORY % 64}, time_horizon: 64",
    "network_settings: {network: 'a:B', hidden_units: 64, activation: tanh, normalize: true}",
    "trainer_type: bc, hyperparameters: {demo_path: a}, network_settings: {deterministic: true}",
    "trainer_type: 'a:B', hyperparameters: {batch_size: 7}, time_horizon: 16, " + MEMORY % 32,
]


@pytest.mark.parametrize("body", QUIET)
def test_sensible_settings_give_no_warning(load, body: str):
    assert load(f"behaviors: {{B: {{{body}}}}}").warnings == ()


def test_acting_deterministically_needs_no_warning_if_nothing_is_learned_from_it(load):
    body = "behaviors: {B: {network_settings: {deterministic: true}}}\n"
    assert load(body + "checkpoint_settings: {inference: true}").warnings == ()
    assert load(body + "replay: {streams: [a]}").warnings == ()
