"""`--tune`: a study of short trials, what a killed study leaves, and the mistakes found before the first trial."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import stdev
from typing import Any

import optuna
import pytest
import yaml
from run_configs import INLINE, Plain, cartpole
from runs import COMMAND, MORE_PATIENCE_S

from headrace.pipeline.cli import main

ROOT = Path(__file__).parents[2]
HYPER = "behaviors.CartPole.hyperparameters"
RATE = {f"{HYPER}.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = cartpole(behaviors__CartPole__max_steps=1000, behaviors__CartPole__summary_freq=500, **INLINE)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(short))
    return tmp_path


def write_space(space: Plain, **keys: Any) -> str:
    Path("space.yaml").write_text(yaml.safe_dump({**keys, "space": space}, sort_keys=False), encoding="utf-8")
    return "space.yaml"


def trials_in(study: Path) -> list[optuna.trial.FrozenTrial]:
    backend = optuna.storages.journal.JournalFileBackend(str(study / "journal.log"))
    storage = optuna.storages.JournalStorage(backend)
    return [trial for study in storage.get_all_studies() for trial in storage.get_all_trials(study._study_id)]


def states(study: Path) -> list[str]:
    return [trial.state.name for trial in trials_in(study)]


def table(output: str) -> list[dict[str, str]]:
    """Return the rows of the study's table by the columns' names; a row's further text is its `reason`."""
    heads, *lines = output[output.index("    ended ") :].splitlines()
    columns = {match[1]: slice(match.start(), match.end() + 1) for match in re.finditer(r" *(\S+)", heads)}
    rows = [line for line in lines if re.match(r" +\d+/\d+ ", line)]
    assert all(line[column.stop - 1 : column.stop] in ("", " ") for line in rows for column in columns.values())
    cells = {name: slice(column.start, column.stop - 1) for name, column in columns.items()}
    return [{**{name: row[at].strip() for name, at in cells.items()}, "reason": row[len(heads) + 1 :]} for row in rows]


def start(*arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, str(COMMAND), "c.yaml", "--tune", "space.yaml", "--run-id", "s", *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill_during_trial(number: int) -> None:
    """Start the study, and kill it when a trial has reported a value."""
    process, journal, ends = start(), Path("results/s/journal.log"), time.monotonic() + MORE_PATIENCE_S
    while not (
        journal.exists()
        and any(
            trial.number >= number and trial.state.name == "RUNNING" and trial.intermediate_values
            for trial in trials_in(journal.parent)
        )
    ):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < ends
        os.sched_yield()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.lengthy
def test_a_study_runs_its_trials_with_each_seed_and_writes_the_best_configuration_and_pictures(folder):
    space = {**RATE, f"{HYPER}.num_epoch": {"low": 1, "high": 3}, f"{HYPER}.buffer_size": {"choices": [400, 500]}}
    write_space(space, trials=2, seeds=[1, 2], sampler={"use": "TPE", "with": {"seed": 0}}, pruner="none")
    output, _ = (process := start()).communicate()
    assert process.returncode == 0, output
    study = folder / "results" / "s"
    trials = trials_in(study)
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE"]
    assert all([*trial.intermediate_values] == [1, 2, 3, 4] for trial in trials), "two reports for each of two seeds"
    assert all(isinstance(trial.params[f"{HYPER}.num_epoch"], int) for trial in trials)
    runs = sorted(path.name for path in study.glob("trial-*"))
    assert runs == ["trial-0-seed-1", "trial-0-seed-2", "trial-1-seed-1", "trial-1-seed-2"]
    kept = yaml.safe_load((study / "trial-1-seed-2" / "configuration.yaml").read_text())
    assert (
        kept["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"] == trials[1].params[f"{HYPER}.learning_rate"]
    )
    assert kept["env_settings"]["seed"] == 2
    best = max(trials, key=lambda trial: trial.value)
    written = yaml.safe_load((study / "best.yaml").read_text())["behaviors"]["CartPole"]["hyperparameters"]
    assert {f"{HYPER}.{key}": value for key, value in written.items()}.items() >= best.params.items()
    assert f"best: trial {best.number}: results/s/best.yaml" in output
    rows = table(output)
    assert [(row["ended"], row["trial"], row["state"]) for row in rows] == [
        ("1/2", "0", "complete"),
        ("2/2", "1", "complete"),
    ]
    assert [row["value"] for row in rows] == [f"{trial.value:.5g}" for trial in trials]
    finals = [trials[0].intermediate_values[2], 2 * trials[0].value - trials[0].intermediate_values[2]]
    assert float(rows[0]["±"]) == pytest.approx(stdev(finals), rel=1e-4)
    assert [row["best"] for row in rows] == [rows[0]["value"], f"{best.value:.5g}"]
    assert [row["buffer_size"] for row in rows] == [str(trial.params[f"{HYPER}.buffer_size"]) for trial in trials]
    assert re.fullmatch(r"\d+:\d\d:\d\d", rows[0]["took"])
    assert [row["left"] == "0:00:00" for row in rows] == [False, True]
    assert {"history.png", "importance.png"} <= {path.name for path in study.iterdir()}


@pytest.mark.slow
def test_a_killed_study_goes_on_and_repeats_the_interrupted_trial(folder):
    write_space(RATE, trials=3)
    kill_during_trial(1)
    output, _ = (process := start()).communicate()
    assert process.returncode == 0, output
    trials = trials_in(folder / "results" / "s")
    assert states(folder / "results" / "s") == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert trials[2].params == trials[1].params
    rows = [(row["ended"], row["trial"], row["state"]) for row in table(output)]
    assert rows == [("2/3", "2", "complete"), ("3/3", "3", "complete")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_of_twenty_trials_that_is_killed_twice_goes_on(folder):
    write_space(RATE, trials=20, parallel=2, pruner={"use": "ASHA", "with": {"min_resource": 1}})
    kill_during_trial(4)
    kill_during_trial(10)
    output, _ = (process := start()).communicate()
    assert process.returncode == 0, output
    ended = states(folder / "results" / "s")
    assert ended.count("COMPLETE") + ended.count("PRUNED") == 20
    assert 2 <= ended.count("FAIL") <= 4, "those that ran when the study was killed"
    assert len(ended) == 20 + ended.count("FAIL")


@pytest.mark.lengthy
def test_failed_trials_have_their_reason_and_the_study_goes_on(folder):
    factory = {"choices": ["missing_module:make", "gymnasium.envs.classic_control:CartPoleEnv"]}
    plain = yaml.safe_load(Path("c.yaml").read_text(encoding="utf-8"))
    plain["environment"] = {"kind": "gymnasium", "factory": "a:B", "num_envs": 4, "behavior": "CartPole"}
    Path("c.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    write_space({"environment.factory": factory}, trials=2, sampler="grid", metric="No/Such Statistic")
    output, _ = (process := start()).communicate()
    assert process.returncode == 1, output
    study = folder / "results" / "s"
    reasons = {trial.params["environment.factory"]: trial.user_attrs["failure"] for trial in trials_in(study)}
    assert states(study) == ["FAIL", "FAIL"]
    assert "missing_module" in reasons["missing_module:make"]
    expected = "seed 0: the run wrote no 'No/Such Statistic' (docs/statistics.md)"
    assert reasons["gymnasium.envs.classic_control:CartPoleEnv"] == expected
    assert "no trial was completed" in output
    rows = table(output)
    assert [(row["ended"], row["state"], row["value"], row["best"], row["left"]) for row in rows] == [
        ("1/2", "fail", "-", "-", "-"),
        ("2/2", "fail", "-", "-", "-"),
    ]
    assert {row["factory"]: row["reason"] for row in rows} == reasons


@pytest.mark.lengthy
def test_trials_of_a_behaviour_with_a_dot_in_its_name_are_pruned_by_their_evaluations(folder):
    plain = yaml.safe_load(Path("c.yaml").read_text(encoding="utf-8"))
    plain["behaviors"] = {"Cart.Pole": plain["behaviors"]["CartPole"]}
    plain["environment"]["behavior"] = "Cart.Pole"
    plain["evaluation"] = {"every": 250, "episodes": 2}
    Path("c.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    pruner = {"use": "Threshold", "with": {"upper": 1}}
    key = 'behaviors."Cart.Pole".hyperparameters.learning_rate'
    write_space({key: {"choices": [0.001, 0.003]}}, trials=1, pruner=pruner)
    output, _ = start("--log-format", "json").communicate()
    (trial,) = trials_in(folder / "results" / "s")
    assert trial.state.name == "PRUNED"
    assert min(trial.intermediate_values) < 4, "reports are counted in evaluations"
    kept = yaml.safe_load(
        (folder / "results" / "s" / "trial-0-seed-0" / "configuration.yaml").read_text(encoding="utf-8")
    )
    assert kept["behaviors"]["Cart.Pole"]["hyperparameters"]["learning_rate"] == trial.params[key]
    (line,) = [line for line in map(json.loads, output.splitlines()) if "trial" in line]
    assert (line["trial"], line["value"]) == (0, trial.value)
    assert " pruned " in line["message"]


@pytest.mark.lengthy
def test_a_study_refuses_to_go_on_with_another_configuration(folder):
    write_space(RATE, trials=1)
    first = start()
    assert first.wait() == 0, first.communicate()[0]
    first.stdout.close()
    output, _ = start("--set", "behaviors.CartPole.network_settings.hidden_units=64").communicate()
    assert "behaviors.CartPole.network_settings.hidden_units 32 → 64); choose a new --run-id" in output
    write_space({f"{HYPER}.learning_rate": {"low": 1e-3, "high": 1e-2}}, trials=2)
    output, _ = start().communicate()
    assert "results/s has trials with other settings (space)" in output


@pytest.mark.parametrize(
    ("space", "keys", "expected"),
    [
        (RATE, {"trials": 0}, "space.yaml:1: trials: 0 is out of range; expected a number at least 1"),
        (RATE, {"trails": 2}, "space.yaml:1: trails: unknown key; did you mean 'trials'?"),
        ({f"{HYPER}.learning_rat": RATE[f"{HYPER}.learning_rate"]}, {"trials": 1}, f"space.yaml:3: {HYPER}.learning_rat: unknown key; did you mean 'learning_rate'?"),
        ({"behaviors.Cart.max_steps": {"choices": [5, 6]}}, {"trials": 1}, "space.yaml:3: behaviors.Cart.max_steps: 'Cart' is not listed under behaviors"),
        ({f"{HYPER}.num_epoch": {"low": 0, "high": 3}}, {"trials": 1}, f"space.yaml:3: {HYPER}.num_epoch: 0 is out of range; expected a number greater than 0"),
        ({f"{HYPER}.num_epoch": {"low": 3, "high": 1}}, {"trials": 1}, f"space.yaml:3: space.{HYPER}.num_epoch: `low <= high` must hold"),
        ({f"{HYPER}.num_epoch": {"low": 3}}, {"trials": 1}, f"space.yaml:3: space.{HYPER}.num_epoch: Trial.suggest_int() missing 1 required positional argument: 'high'"),
        ({f"{HYPER}.beta": {"low": 0, "high": 0.1, "log": True}}, {"trials": 1}, f"space.yaml:3: space.{HYPER}.beta: `low > 0` must hold for `log=True`"),
        ({"env_settings.seed": {"choices": [1, 2]}}, {"trials": 1}, "space.yaml:3: space.env_settings.seed: expected a path of keys, as --set takes it, and none that the study sets itself"),
        (RATE, {"trials": 1, "sampler": "TPEE"}, "space.yaml:2: sampler: Optuna has no TPEESampler; did you mean 'TPESampler'?"),
        (RATE, {"trials": 1, "sampler": "grid"}, f"space.yaml:4: space.{HYPER}.learning_rate: FloatDistribution.step must be given"),
        (RATE, {"trials": 1, "pruner": {"use": "ASHA", "with": {"least": 3}}}, "space.yaml:2: pruner: "),
        (RATE, {"trials": 1, "behavior": "Cart"}, "space.yaml:2: behavior: expected one of CartPole"),
    ],
)  # fmt: skip
def test_mistakes_in_the_search_space_are_named_with_their_line_before_the_first_trial(
    folder, in_this_process, space, keys, expected
):
    said = in_this_process(main, "c.yaml", "--tune", write_space(space, **keys), status=2)
    assert expected in said
    assert not Path("results").exists()


def test_validate_prints_the_study_and_starts_no_trial(folder, in_this_process):
    space = {**RATE, f"{HYPER}.num_epoch": {"low": 1, "high": 3}, f"{HYPER}.beta": {"low": 0, "high": 1}}
    path = write_space(space, trials=5, seeds=[3, 4], pruner="Hyperband")
    said = in_this_process(main, "c.yaml", "--tune", path, "--validate", "--no-env-check", "--run-id", "s")
    begun = next(line for line in said.splitlines() if line.startswith("study in"))
    assert said[said.index(begun) :].splitlines()[:4] == [
        "study in results/s: 5 trials, seeds 3, 4, maximize Environment/Cumulative Reward of CartPole",
        f"  {HYPER}.learning_rate: float, low 0.0001, high 0.01, log True",
        f"  {HYPER}.num_epoch: int, low 1, high 3",
        f"  {HYPER}.beta: float, low 0, high 1",
    ]
    assert not Path("results").exists()


def test_values_that_only_fit_together_with_others_are_no_mistake(folder, in_this_process):
    space = {f"{HYPER}.batch_size": {"choices": [100, 2000]}, f"{HYPER}.buffer_size": {"choices": [500, 4000]}}
    in_this_process(main, "c.yaml", "--tune", write_space(space, trials=5), "--validate", "--no-env-check")


def test_without_torch_a_study_names_the_extra_before_its_first_trial(folder, in_this_process, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    said = in_this_process(main, "c.yaml", "--tune", write_space(RATE, trials=1), status=2)
    assert '--tune needs the package torch: `pip install "headrace[train]"`' in said


@pytest.mark.parametrize("option", ["--resume", "--force", "--inference", "--monitor"])
def test_options_without_meaning_for_a_study_are_refused(folder, in_this_process, option):
    said = in_this_process(main, "c.yaml", option, "--tune", write_space(RATE, trials=1), status=2)
    assert f"--tune: a study has no {option.removeprefix('--')}: " in said


def test_the_example_space_fits_the_example_configuration(in_this_process, monkeypatch):
    monkeypatch.chdir(ROOT / "config" / "examples")
    in_this_process(
        main, "cartpole.yaml", "--tune", "../../examples/sweeps/cartpole-space.yaml", "--validate", "--no-env-check"
    )
