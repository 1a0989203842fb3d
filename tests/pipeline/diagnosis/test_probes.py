"""The probes of an environment: what random play and constant actions tell the rules, before any training."""

from __future__ import annotations

import asyncio
import re

import diagnosis_tasks
import pytest
from diagnosis_tasks import settings_of
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.diagnosis.probes import facts_about
from headrace.pipeline.diagnosis.report import judged
from headrace.pipeline.diagnosis.rules import Evidence, diagnose

pytestmark = pytest.mark.lengthy


def of(task, **behavior):
    return RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "factory": f"diagnosis_tasks:{task}"},
            "behaviors": {"Agent": {"trainer_type": "ppo", "max_steps": 100_000, **behavior}},
        }
    )


def facts_of(config, folder=""):
    return {name: value for _, name, value in asyncio.run(facts_about(config, str(folder)))}


def finding(config, facts):
    curves = {name: [(0, 0.0, value)] for name, value in facts.items() if value is not None}
    return diagnose(Evidence("Agent", curves, config.behavior_settings("Agent"), config), [])


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


def test_an_environment_that_crashes_is_named():
    _, findings, lines = judged(of("Fifth"), {"Agent": {}}, None, True)
    assert findings == []
    assert len(lines) == 1
    assert re.match("not probed: .*its process", lines[0])


def test_a_policy_is_probed_by_permuted_and_constant_observations(tmp_path):
    plain = settings_of(max_steps=10_000, summary_freq=5000)
    facts = facts_of(RunConfig.from_plain(plain), run_here(plain, tmp_path, "decides").folder)
    assert "each component of the observation permuted: the policy reacts to all" in facts
    (change,) = [float(fact.rpartition(" ")[2]) for fact in facts if fact.startswith("constant observations change")]
    assert change > 0.01
    assert any(fact.startswith("the settings learn a one-step task") for fact in facts)


def test_a_recording_tells_a_fresh_learner_what_pays_unless_its_rewards_are_permuted(tmp_path):
    plain = settings_of(max_steps=10_000, summary_freq=5000, whole={"record": {"edges": ["trainer"]}})
    run = run_here(plain, tmp_path, "recorded")
    (said,) = [fact for fact in facts_of(RunConfig.from_plain(plain), run.folder) if fact.startswith("the recording")]
    fresh, permuted, _ = map(int, re.findall(r"(\d+)%", said))
    assert fresh > 20 + permuted
