"""The table of causes, from recorded statistics: what each rule finds, what it needs, and what it leaves alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config import RunConfig
from headrace.pipeline.diagnosis.rules import CAUSES, Evidence, diagnose

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"
STEPS = 30_000
PPO = {"buffer_size": 1024, "batch_size": 128, "num_epoch": 4}
SAC = {"buffer_size": 20_000, "batch_size": 128, "buffer_init_steps": 300}
LEVEL = {"Environment/Cumulative Reward": [-10.0] * 10, "Data/Return Deviation": [3.0]}
RISES = {"Environment/Cumulative Reward": [-10.0, -8.0, -6.0, -5.0, -4.0, -3.0], "Data/Return Deviation": [3.0]}
FALLS = {"Environment/Cumulative Reward": [-10.0, -11.0, -12.0, -13.0], "Data/Return Deviation": [3.0]}
EQUAL = {"Data/Episode Length Deviation": [0.0, 0.0]}


def evidence(curves, trainer="ppo", ended=True, of_run=None, **behavior):
    hyperparameters = {**(PPO if trainer == "ppo" else SAC), **behavior.pop("hyperparameters", {})}
    behavior = {"trainer_type": trainer, "max_steps": STEPS, "hyperparameters": hyperparameters, **behavior}
    config = RunConfig.from_plain({"behaviors": {"Agent": behavior}, **(of_run or {})})
    points = {
        name: [(STEPS * (i + 1) // len(values), 0.0, value) for i, value in enumerate(values)]
        for name, values in curves.items()
    }
    return Evidence("Agent", points, config.behavior_settings("Agent"), config, ended)


def lesson(threshold):
    criteria = {"behavior": "Agent", "measure": "reward", "threshold": threshold, "min_lesson_length": 30}
    lessons = [{"name": "near", "value": 1.0, "completion_criteria": criteria}, {"name": "far", "value": 2.0}]
    return {"of_run": {"environment_parameters": {"size": {"curriculum": lessons}}}}


AT_SIZE_0 = {"Environment/Lesson Number/size": [0.0] * 5, "Environment/Episode Length": [10.0] * 5}
FOUND = [
    ("deterministic-training", RISES, {"network_settings": {"deterministic": True}}),
    ("too-few-updates", LEVEL, {"hyperparameters": {"buffer_size": 10240, "batch_size": 10240, "num_epoch": 1}}),
    ("too-few-updates", LEVEL, {"trainer": "sac", "hyperparameters": {"buffer_init_steps": STEPS}}),
    (
        "strength-zero",
        {"Data/Rewarded Steps": [0.5]},
        {"reward_signals": {"extrinsic": {"strength": 0.0}, "rnd": {"strength": 1.0}}},
    ),
    ("lesson-never-ends", LEVEL | AT_SIZE_0, lesson(5.0)),
    ("lr-high", LEVEL | {"Policy/Approximate KL": [0.01, 7.3, 0.0]}, {}),
    ("lr-high", LEVEL | {"Policy/Q1 Max": [1.0, -4.8e6]}, {"trainer": "sac"}),
    (
        "end-at-once",
        {
            "Data/Median Episode Length": [1.0],
            "Data/Episode Length Deviation": [0.0],
            "Data/Terminated Episodes": [1.0],
            "Data/Reward Deviation": [0.0],
        },
        {},
    ),
    (
        "reset-not",
        {
            "Data/Starts at Last End": [1.0],
            "Data/Terminated Episodes": [1.0],
            "Data/Median Episode Length": [1.0],
            "Data/Reward Deviation": [1.0],
        },
        {},
    ),
    (
        "obs-constant",
        LEVEL
        | {"Data/Constant Observations": [1.0], "Data/Reward Deviation": [0.4], "Data/Median Episode Length": [9.0]},
        {},
    ),
    ("obs-frozen", LEVEL | {"Data/Repeated Starts": [1.0], "Data/Repeated Observations": [1.0, 1.0]}, {}),
    ("obs-frozen", LEVEL | {"Data/Repeated Starts": [1.0]}, {}),
    ("obs-stale", LEVEL | {"Data/Repeated Starts": [1.0], "Data/Repeated Observations": [0.25]}, {}),
    (
        "mask-forbids",
        {"Data/Rewarded Steps": [0.0], "Data/Observations with Forbidden Choices": [1.0]},
        {},
    ),
    ("exploration-small", LEVEL, {"network_settings": {"initial_log_std": -3.0}}),
    ("reward-never", {"Data/Rewarded Steps": [0.0], "Environment/Cumulative Reward": [0.0, 0.0]}, {}),
    ("reward-constant", LEVEL | EQUAL | {"Data/Reward Deviation": [0.0]}, {}),
    ("reward-huge", LEVEL | {"Data/Reward Deviation": [4000.0]}, {}),
    ("reward-tiny", LEVEL | {"Data/Reward Deviation": [5e-6]}, {}),
    ("reward-huge", RISES | {"Data/Reward Deviation": [4000.0]}, {"hyperparameters": {"reward_normalization": True}}),
    ("reward-late", {"Data/Reward by Previous Step": [1.0], "Data/Reward by Observation and Action": [-0.04]}, {}),
    (
        "memory-none",
        {"Data/Last Reward by First Observation": [0.9], "Data/Last Reward by Last Observation": [0.0]},
        {},
    ),
    ("obs-scale", RISES | {"Data/Observation Scale": [6e5]}, {}),
    ("obs-scale", LEVEL | {"Data/Observation Offset": [1700.0], "Data/Observation Scale": [60.0]}, {}),
    ("obs-scale", LEVEL | {"Data/Observation Scale Ratio": [1000.0], "Data/Observation Scale": [1.0]}, {}),
    (
        "memory-short",
        {
            "Data/Last Reward by First Observation": [0.9],
            "Data/Last Reward by Last Observation": [0.0],
            "Environment/Episode Length": [20.0],
        },
        {"network_settings": {"memory": {"memory_size": 16, "sequence_length": 8}}},
    ),
    (
        "entropy-bonus",
        LEVEL | {"Policy/Entropy": [1.79, 1.79, 1.79]},
        {"hyperparameters": {"beta": 10.0}},
    ),
    (
        "entropy-bonus",
        LEVEL | {"Policy/Entropy": [1.4], "Data/Reward Size": [0.08]},
        {"trainer": "sac", "hyperparameters": {"entropy_coefficient": "fixed", "init_entcoef": 50.0}},
    ),
    ("lr-low", LEVEL | {"Policy/Approximate KL": [1e-9]}, {"hyperparameters": {"learning_rate": 1e-7}}),
    (
        "lr-low",
        LEVEL | {"Policy/Entropy": [1.0], "Policy/Q1 Mean": [0.01, 0.02]},
        {"trainer": "sac", "hyperparameters": {"learning_rate": 1e-7}},
    ),
    ("too-many-epochs", LEVEL | {"Policy/Approximate KL": [0.3]}, {"hyperparameters": {"num_epoch": 60}}),
    (
        "reward-loop",
        RISES
        | {
            "Environment/Success Rate": [0.0, 0.1, 0.1, 0.1],
            "Data/Median Episode Length": [30.0, 40.0],
            "Data/Rewarded Steps": [0.5],
            "Data/Reward Size": [-9.0],
        },
        {},
    ),
    (
        "reward-suicide",
        RISES | {"Environment/Success Rate": [0.0] * 4, "Data/Median Episode Length": [30.0, 3.0]},
        {},
    ),
    (
        "gamma-low",
        LEVEL | {"Environment/Episode Length": [40.0], "Data/Reward at End": [3.5]},
        {"reward_signals": {"extrinsic": {"gamma": 0.3}}},
    ),
    (
        "curiosity-drowns",
        FALLS,
        {"reward_signals": {"extrinsic": {}, "rnd": {"strength": 1000.0}}},
    ),
    (
        "limit-as-terminated",
        EQUAL
        | {
            "Data/Terminated Episodes": [1.0],
            "Data/Median Episode Length": [20.0],
            "Data/End by Observation": [0.5],
            "Data/Reward at End": [0.1],
            "Data/Reward Deviation": [1.0],
        },
        {},
    ),
    (
        "action-scale",
        LEVEL
        | {
            "Probe/Saturated Actions": [0.75],
            "Data/Change by Observation and Action": [0.01],
            "Probe/Actions that Matter": [1.0],
        },
        {},
    ),
    ("action-ignored", LEVEL | {"Probe/Actions that Matter": [0.0], "Data/Rewarded Steps": [1.0]}, {}),
    ("action-ignored", LEVEL | {"Data/Effect of Action": [0.001, -0.01]}, {}),
    ("network-small", LEVEL, {"network_settings": {"hidden_units": 1}}),
    ("obs-aliased", RISES | {"Data/Change with History": [0.98], "Data/Change by Observation and Action": [0.06]}, {}),
]


@pytest.mark.parametrize(("cause", "curves", "settings"), FOUND, ids=[f"{i}-{one[0]}" for i, one in enumerate(FOUND)])
def test_a_cause_is_the_first_finding_with_a_number_and_its_normal_range(cause, curves, settings):
    found = diagnose(evidence(curves, **settings), [])
    assert found is not None
    assert found.cause == cause
    assert found.normal and found.cure
    assert found.plain()["evidence"].keys() == {"statistic", "value", "step", "normal"}
    assert re.search(r"Cure: \S", str(found))


HEALTHY = [
    RISES,
    LEVEL | {"Policy/Approximate KL": [0.17], "Policy/Entropy": [0.6, 0.1, 0.007]},
    LEVEL | {"Data/Reward Deviation": [2.1], "Data/Reward by Observation and Action": [-0.04]},
    RISES | {"Data/Repeated Starts": [1.0], "Data/Repeated Observations": [0.8]},
    RISES | {"Data/Starts at Last End": [1.0], "Data/Terminated Episodes": [1.0], "Data/Median Episode Length": [20.0]},
    RISES | {"Data/Reward Deviation": [0.0], "Data/Episode Length Deviation": [7.0]},
    RISES | {"Policy/Q1 Max": [40.0]},
    LEVEL | {"Data/Effect of Action": [0.001]},
    LEVEL | {"Data/Effect of Action": [0.05, 0.001]},
    LEVEL | {"Data/Effect of Action": [0.001, 0.001], "Probe/Actions that Matter": [0.5]},
    RISES | {"Data/Duplicate Observations": [0.4]},
    RISES | {"Data/Reward Deviation": [200.0]},
    RISES | {"Environment/Success Rate": [0.0, 0.1, 0.2, 0.4], "Data/Median Episode Length": [30.0, 3.0]},
]


@pytest.mark.parametrize("curves", HEALTHY)
def test_a_run_without_a_cause_has_no_finding(curves):
    assert diagnose(evidence(curves), []) is None


def test_a_mixture_may_be_the_best_play_against_others():
    level = LEVEL | {"Policy/Entropy": [1.09, 1.07, 1.06]}
    settings = {"hyperparameters": {"beta": 0.5}}
    assert diagnose(evidence(level, **settings), []).cause == "entropy-bonus"
    assert diagnose(evidence(level, **settings, self_play={}), []) is None


def test_a_lesson_that_can_be_reached_is_left_alone():
    assert diagnose(evidence(LEVEL | AT_SIZE_0, **lesson(-11.0)), []) is None


def test_a_level_return_is_judged_only_once_enough_of_the_run_is_over():
    early = evidence(LEVEL, ended=False, max_steps=10 * STEPS, network_settings={"hidden_units": 4})
    assert diagnose(early, []) is None


def test_without_settings_only_statistics_are_judged():
    curves = {"Policy/Approximate KL": [(100, 0.0, 9.0)], "Environment/Cumulative Reward": [(100, 0.0, 1.0)]}
    found = diagnose(Evidence("PPO_1", curves, ended=True), [])
    assert found is not None
    assert found.cause == "lr-high"
    assert diagnose(Evidence("PPO_1", {}, ended=True), []) is None


def test_a_users_rule_is_asked_after_the_table():
    class Rule:
        def check(self, run):
            return "asked"

    assert diagnose(evidence(RISES), [Rule()]) == "asked"
    assert (
        diagnose(evidence(RISES, network_settings={"deterministic": True}), [Rule()]).cause == "deterministic-training"
    )


def test_the_page_lists_every_cause():
    rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(set(listed) & set(CAUSES)) == sorted(CAUSES)
