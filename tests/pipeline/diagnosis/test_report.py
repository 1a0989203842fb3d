"""`--diagnose`: what the command says about finished runs, about several, and about another library's logs."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from diagnosis_tasks import settings_of
from runs import run_here

from headrace.pipeline.cli import main
from headrace.pipeline.reporting.history import History, read_events

pytestmark = pytest.mark.lengthy
RETURN = "Environment/Cumulative Reward"


@pytest.fixture(scope="module")
def sick(tmp_path_factory) -> Path:
    """The folder of a run whose learning rate is 100 times too high, with a recording."""
    recorded = {"record": {"edges": ["trainer"]}}
    plain = settings_of(learning_rate=0.3, max_steps=6000, summary_freq=1500, whole=recorded)
    return run_here(plain, tmp_path_factory.mktemp("sick"), "sick").folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """The folder of a run that learns."""
    plain = settings_of(max_steps=20_000, summary_freq=2000)
    return run_here(plain, tmp_path_factory.mktemp("sound"), "sound").folder


@pytest.fixture
def diagnosed(in_this_process):
    """Calls `run-pipeline --diagnose` and returns its JSON."""

    def call(*arguments):
        return json.loads(in_this_process(main, "--diagnose", *map(str, arguments), "--format", "json"))

    return call


def rewritten(run: Path, target: Path, change=lambda name, step, value: value) -> Path:
    """Copy a run's folder, with changed values in its event files."""
    shutil.copytree(run, target)
    history = History()
    read_events(target, ["Agent"], history)
    for path in target.glob("*/events.out.tfevents.*"):
        path.unlink()
    with warnings.catch_warnings(action="ignore"):
        from torch.utils.tensorboard.writer import SummaryWriter
    with SummaryWriter(str(target / "Agent")) as writer:
        for name, points in history.curves("Agent").items():
            for step, _, value in points:
                writer.add_scalar(name, change(name, step, value), step)
    return target


def logs_of_sb3(folder: Path, **values: float) -> Path:
    """Write statistics under Stable-Baselines3's names, as it does: with torch's writer."""
    with warnings.catch_warnings(action="ignore"):
        from torch.utils.tensorboard.writer import SummaryWriter
    with SummaryWriter(str(folder / "PPO_1")) as writer:
        for step in range(2048, 20_481, 2048):
            for name, value in values.items():
                writer.add_scalar(name.replace("__", "/"), value, step)
    return folder / "PPO_1"


def test_json_is_a_list_of_findings_with_evidence_and_cure(sick, diagnosed):
    (found,) = diagnosed(sick, "--no-env-check")
    assert found.keys() == {"run", "behavior", "severity", "cause", "evidence", "cure"}
    assert found["run"] == str(sick)
    assert (found["behavior"], found["severity"], found["cause"]) == ("Agent", "error", "lr-high")
    assert found["evidence"]["statistic"] == "Policy/Approximate KL"
    assert found["evidence"]["value"] > 1
    assert found["evidence"]["normal"] == "below 0.2 in every summary"
    assert found["cure"] == "hyperparameters.learning_rate: 0.001"


def test_text_says_the_returns_the_finding_and_what_was_looked_at(sick, in_this_process):
    said = in_this_process(main, "--diagnose", str(sick)).splitlines()
    assert said[0] == f"{sick}:"
    assert said[1].startswith("  Agent: mean return: first -")
    assert ", random play -" in said[1]
    assert said[2].startswith("  error: Agent: lr-high. Policy/Approximate KL is ")
    assert said[3].startswith("  looked at: Agent: ")
    for probe in (
        "random play: Random Return -",
        "the policy reacts to ",
        "the recording replayed into a fresh learner: its critic explains",
    ):
        assert probe in said[3]


def test_without_the_environment_nothing_is_probed(sick, in_this_process):
    assert "random play" not in in_this_process(main, "--diagnose", str(sick), "--no-env-check")


def test_without_torch_the_statistics_are_judged_and_the_extra_is_named(sick, tmp_path, in_this_process, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    said = in_this_process(main, "--diagnose", str(sick))
    assert "error: Agent: lr-high. " in said
    assert said.splitlines()[3].endswith('not installed: run `pip install "headrace[train]"`')


def test_a_run_is_found_by_its_id(sick, in_this_process):
    said = in_this_process(main, "--diagnose", "sick", "--results-dir", str(sick.parent), "--no-env-check")
    assert "lr-high" in said


def test_a_run_that_learns_has_no_finding(sound, in_this_process, diagnosed):
    assert diagnosed(sound) == []
    assert "  nothing found\n" in in_this_process(main, "--diagnose", str(sound), "--no-env-check")


def test_runs_of_one_configuration_that_end_differently_were_lucky_or_not(sound, tmp_path, diagnosed):
    unlucky = rewritten(sound, tmp_path / "unlucky", lambda name, step, value: -14 if name == RETURN else value)
    found = diagnosed(sound, unlucky, "--no-env-check")
    assert [(one["run"], one["cause"]) for one in found] == [(str(unlucky), "seed-luck")]
    assert found[0]["evidence"]["value"] == -14


def test_runs_that_end_alike_were_neither(sound, tmp_path, diagnosed):
    assert diagnosed(sound, rewritten(sound, tmp_path / "twin"), "--no-env-check") == []


def test_logs_of_stable_baselines3_are_judged_by_statistics_alone(tmp_path, in_this_process, diagnosed):
    logs = logs_of_sb3(tmp_path, rollout__ep_rew_mean=-10.0, train__approx_kl=9.0, train__entropy_loss=-0.7)
    (found,) = diagnosed(logs)
    assert (found["behavior"], found["cause"]) == ("PPO_1", "lr-high")
    assert found["evidence"]["value"] == 9
    assert "settings and rows are unknown" in in_this_process(main, "--diagnose", str(logs))


def test_healthy_logs_of_stable_baselines3_have_no_finding(tmp_path, diagnosed):
    assert diagnosed(logs_of_sb3(tmp_path, rollout__ep_rew_mean=-10.0, train__approx_kl=0.02)) == []


def test_each_log_in_a_folder_is_judged_by_itself(tmp_path, diagnosed):
    logs_of_sb3(tmp_path, train__approx_kl=9.0).rename(tmp_path / "PPO_2")
    logs_of_sb3(tmp_path, train__approx_kl=0.02)
    assert [(one["behavior"], one["cause"]) for one in diagnosed(tmp_path)] == [("PPO_2", "lr-high")]


def test_a_missing_run_is_refused_by_name(tmp_path, in_this_process):
    said = in_this_process(main, "--diagnose", "absent", "--results-dir", str(tmp_path), status=2)
    assert "--diagnose absent: no such run" in said


def test_event_files_of_something_else_are_refused(tmp_path, in_this_process):
    logs = logs_of_sb3(tmp_path, weather__rain=1.0)
    said = in_this_process(main, "--diagnose", str(logs), status=2)
    assert f"{logs} has no statistics of a behaviour that learns" in said


def test_a_run_without_statistics_is_refused(sick, tmp_path, in_this_process):
    run = tmp_path / "empty"
    run.mkdir()
    shutil.copy(sick / "configuration.yaml", run)
    said = in_this_process(main, "--diagnose", str(run), status=2)
    assert f"{run} has no statistics" in said


def test_a_format_without_a_diagnosis_is_refused(in_this_process):
    assert "--format only with --diagnose" in in_this_process(main, "--format", "json", status=2)
