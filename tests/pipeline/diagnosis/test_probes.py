"""The probes of an environment: what random play and constant actions tell the rules, before any training."""

from __future__ import annotations

import asyncio

import diagnosis_tasks
import pytest

from headrace.config import RunConfig
from headrace.pipeline.diagnosis.evidence import Evidence
from headrace.pipeline.diagnosis.probes import environment_facts
from headrace.pipeline.diagnosis.rules import diagnose


def of(task, **behavior):
    return RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "factory": f"diagnosis_tasks:{task}"},
            "behaviors": {"Agent": {"trainer_type": "ppo", "max_steps": 100_000, **behavior}},
        }
    )


def facts_of(config):
    return {name: value for _, name, value in asyncio.run(environment_facts(config))}


def finding(config, facts):
    curves = {name: [(0, 0.0, value)] for name, value in facts.items()}
    return diagnose(Evidence("Agent", curves, config.behavior_settings("Agent"), config))


@pytest.mark.parametrize(
    ("task", "cause"),
    [
        ("ActionIgnored", "action-ignored"),
        ("ActionScale", "action-scale"),
        ("Stale", "obs-stale"),
        ("Constant", "obs-constant"),
        ("Frozen", "obs-frozen"),
        ("EndsAtOnce", "end-at-once"),
        ("Paid", "reward-constant"),
        ("Late", "reward-late"),
        ("Recall", "memory-none"),
        ("NoVelocity", "obs-aliased"),
    ],
)
def test_a_fault_of_the_environment_is_found_before_the_run(task, cause):
    assert hasattr(diagnosis_tasks, task)
    config = of(task)
    found = finding(config, facts_of(config))
    assert found is not None
    assert found.cause == cause


@pytest.mark.parametrize("task", ["Line", "Continuous", "Guess"])
def test_a_sound_environment_has_no_finding(task):
    config = of(task)
    facts = facts_of(config)
    assert finding(config, facts) is None
    assert facts["Probe/Reproducible"] == 1
    assert facts.get("Probe/Actions that Matter", 1) > 0, "an episode of one step says nothing about it"


def test_random_play_gives_the_tasks_scale():
    facts = facts_of(of("Line"))
    assert facts["Data/Median Episode Length"] == 20
    assert facts["Data/Terminated Episodes"] == 0
    assert facts["Data/Rewarded Steps"] == 1
    assert -30 < facts["Probe/Random Return"] < -8


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_environments_of_gymnasium_have_no_finding(name):
    config = RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "id": name},
            "behaviors": {"Agent": {"trainer_type": "ppo", "max_steps": 100_000}},
        }
    )
    assert finding(config, facts_of(config)) is None
