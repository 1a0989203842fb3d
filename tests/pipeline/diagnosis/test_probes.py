"""The probes of an environment: what random play and constant actions tell the rules, before any training."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import diagnosis_tasks
import pytest
from diagnosis_tasks import settings_of
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.diagnosis.evidence import Evidence
from headrace.pipeline.diagnosis.probes import write_facts
from headrace.pipeline.diagnosis.report import _facts
from headrace.pipeline.diagnosis.rules import diagnose

pytestmark = pytest.mark.lengthy


def of(task, **behavior):
    return RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "factory": f"diagnosis_tasks:{task}"},
            "behaviors": {"Agent": {"trainer_type": "ppo", "max_steps": 100_000, **behavior}},
        }
    )


def facts_of(config, folder=""):
    with tempfile.TemporaryDirectory() as target:
        path = Path(target) / "facts"
        asyncio.run(write_facts(config, str(path), str(folder)))
        return {name: value for _, name, value in map(json.loads, path.read_text().splitlines())}


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


def test_facts_that_are_known_before_the_environment_crashes_are_kept():
    facts, why_not = _facts(of("Fifth"))
    assert facts["Agent"]["Data/Median Episode Length"] == 20
    assert "its process" in why_not


def test_a_policy_with_memory_is_probed_along_its_trajectories(tmp_path):
    memory = {"memory": {"sequence_length": 8, "memory_size": 8}}
    plain = settings_of("Recall", network=memory, max_steps=2000, summary_freq=1000, time_horizon=16)
    run = run_here(plain, tmp_path, "remembers")
    facts = facts_of(RunConfig.from_plain(plain), run.folder)
    effects = [facts[f"Probe/Effect of Component {i}"] for i in range(4)]
    assert min(effects) > 0
    assert facts["Probe/Effect of Constant Observations"] > 0


def test_a_recording_tells_a_fresh_learner_what_pays_unless_its_rewards_are_permuted(tmp_path):
    plain = settings_of(max_steps=10_000, summary_freq=5000, whole={"record": {"edges": ["trainer"]}})
    run = run_here(plain, tmp_path, "recorded")
    facts = facts_of(RunConfig.from_plain(plain), run.folder)
    fresh, permuted = "Probe/Returns by a Fresh Critic", "Probe/Returns by a Fresh Critic of Permuted Rewards"
    assert facts[fresh] > 0.2 + facts[permuted]
