"""The diagnosis of a run while it trains: where a finding is said, how often, and what users' rules may do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from diagnosis_tasks import settings_of
from runs import run_here

from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.diagnosis.rules import Finding
from headrace.pipeline.reporting.history import History, read_events
from headrace.pipeline.run import RunOptions, RunResult

pytestmark = pytest.mark.lengthy
RULES = "diagnosis_rules"
SHORT: dict[str, Any] = {"max_steps": 6000, "summary_freq": 1500}


def log_of(result: RunResult) -> list[str]:
    return (result.folder / "run_logs" / "run.log").read_text().splitlines()


def with_rules(*rules, **behavior):
    plain = settings_of(**{**SHORT, **behavior})
    plain["pipeline"]["diagnosis_rules"] = [*rules]
    return plain


@pytest.fixture(scope="module")
def sick(tmp_path_factory) -> RunResult:
    """A run whose learning rate is 100 times too high, with the CSV writer."""
    plain = settings_of(**SHORT, learning_rate=0.3)
    plain["pipeline"]["statistics_writers"] = ["csv"]
    return run_here(plain, tmp_path_factory.mktemp("sick"), "sick")


def test_a_planted_setting_is_said_once_while_the_run_trains_and_again_at_its_end(sick):
    said = [line for line in log_of(sick) if "lr-high" in line]
    summaries = [line for line in log_of(sick) if "Mean Reward" in line]
    assert len(said) == 2
    assert all(
        "[WARNING]" in line and re.search(r"normal: .*Cure: hyperparameters.learning_rate: ", line) for line in said
    )
    lines = log_of(sick)
    assert lines.index(said[0]) < lines.index(summaries[-1]) < lines.index(said[1])


def test_the_result_has_the_finding(sick):
    (found,) = sick.findings
    assert (found.behavior, found.severity, found.cause) == ("Agent", "error", "lr-high")
    assert found.statistic == "Policy/Approximate KL"
    assert found.value > 1
    assert json.dumps(found.plain())


def test_writers_get_the_finding_as_a_statistic_at_its_step(sick):
    (found,) = sick.findings
    history = History()
    read_events(sick.folder, ["Agent"], history)
    (point,) = history.curves("Agent")["Diagnosis/lr-high"]
    assert point[0] <= found.step
    assert point[2] > 1
    rows = (sick.folder / "Agent" / "statistics.csv").read_text().splitlines()
    column = rows[0].split(",").index("Diagnosis/lr-high")
    assert sum(bool(row.split(",")[column]) for row in rows[1:]) == 1


def test_the_event_files_mark_the_finding_on_the_curves(sick):
    history = History()
    read_events(sick.folder, ["Agent"], history)
    (mark,) = [mark for mark in history.marks()["Agent"] if mark.kind == "finding"]
    assert mark.text.startswith("Agent: lr-high. Policy/Approximate KL is ")


def test_the_learners_measurements_are_in_the_event_files(sick):
    history = History()
    read_events(sick.folder, ["Agent"], history)
    curves = history.curves("Agent")
    assert curves["Data/Median Episode Length"][0][2] == 20
    assert {"Data/Reward Deviation", "Data/Change by Observation and Action"} <= curves.keys()


def test_a_healthy_run_says_nothing(tmp_path):
    result = run_here(settings_of(**SHORT), tmp_path, "sound")
    assert result.findings == ()
    assert not [line for line in log_of(result) if "Cure:" in line]
    assert "Diagnosis" not in "".join(map(str, (result.folder / "Agent").iterdir()))


def test_a_users_rule_is_asked(tmp_path):
    result = run_here(with_rules(f"{RULES}:Impatient"), tmp_path, "asked")
    (found,) = result.findings
    assert isinstance(found, Finding)
    assert found.cause == "impatient"
    assert sum("impatient" in line for line in log_of(result)) == 2


def test_a_rule_that_raises_is_named_once_and_the_run_goes_on(tmp_path):
    result = run_here(with_rules(f"{RULES}:Raising"), tmp_path, "raises")
    said = [line for line in log_of(result) if "Raising" in line]
    assert len(said) == 1
    assert "ValueError: no curve today" in said[0]
    assert result.behaviors["Agent"].step >= SHORT["max_steps"]
    assert result.findings == ()


def test_callbacks_for_summaries_get_no_findings(tmp_path):
    steps = []
    options = RunOptions(on_summary=lambda summary: steps.append((summary.step, summary.mean_reward is None)))
    assert run_here(settings_of(**SHORT, learning_rate=0.3), tmp_path, "called", options).findings
    assert steps == [(1500, False), (3000, False), (4500, False), (6000, False)]


def test_a_resumed_run_is_judged_with_its_earlier_statistics(tmp_path):
    first = run_here(with_rules(f"{RULES}:Beginning"), tmp_path, "resumed")
    more = first.resume(steps=3000)
    assert more.behaviors["Agent"].step >= SHORT["max_steps"] + 3000
    (before,), (after,) = first.findings, more.findings
    assert after.cause == "beginning"
    assert after.value == pytest.approx(before.value)


WRONG = [
    (f"{RULES}:Absent", "pipeline.diagnosis_rules.0.*Absent"),
    ("nowhere:Rule", "pipeline.diagnosis_rules.0.*nowhere"),
    (f"{RULES}:NoRule", "pipeline.diagnosis_rules.0.*has no check"),
]


@pytest.mark.parametrize(("reference", "reason"), WRONG)
def test_a_rule_that_is_none_is_refused_at_the_start(tmp_path, reference, reason):
    with pytest.raises(RunError, match=reason):
        run_here(with_rules(reference), tmp_path, "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(("reference", "reason"), WRONG)
def test_validate_refuses_a_rule_that_is_none_with_its_line(tmp_path, in_this_process, reference, reason):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(with_rules(reference)))
    said = in_this_process(main, str(path), "--validate", "--no-env-check", status=2)
    assert re.search(rf"run\.yaml:\d+: {reason}", said)
