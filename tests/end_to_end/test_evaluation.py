"""Evaluation in whole runs: one score for each behaviour name, and never a reason for the training to end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, TROUBLED_ENV, Plain, cartpole, changed, sac, troubled, volley
from run_folders import read_whole_checkpoint, weights_digest
from runs import assert_no_children, run_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from unity_command import unity
from unity_runs import reports

from headrace import load
from headrace.pipeline.cli import main
from headrace.pipeline.policies.export import read_export
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

LINE = re.compile(
    r"(\w+)\. Step: (\d+)\. Evaluation: (-?[\d.]+) ± ([\d.]+) over (\d+) episodes(, the best so far)?\. "
    r"Min: (-?[\d.]+)\. Max: (-?[\d.]+)\. Episode Length: ([\d.]+)\."
)


def scores(output: str) -> list[tuple[str, int, float, bool]]:
    """Behaviour, step, mean and whether it was the best, of each evaluation in what a run has said."""
    return [(name, int(step), float(mean), bool(best)) for name, step, mean, _, _, best, *_ in LINE.findall(output)]


def fragile(trouble: str, **changes: object) -> Plain:
    """A run whose environment has a trouble where policies are evaluated."""
    evaluation = {"every": 500, "episodes": 4}
    return changed(troubled(trouble=trouble, after=4, evaluated=True), {"evaluation": evaluation, **changes})


def test_the_best_policy_of_self_play_is_the_one_with_the_best_evaluation(tmp_path, caplog):
    caplog.set_level("INFO")
    section = {"every": 700, "episodes": 8, "opponents": "snapshot"}
    plain = volley(evaluation=section, behaviors__Volley__max_steps=3000, **INLINE)
    run_folder = run_here(plain, tmp_path, "run").folder
    found = scores(caplog.text)
    assert {name for name, *_ in found} == {"Volley"}
    assert [best for *_, best in found] == [
        all(mean > earlier for _, _, earlier, _ in found[:number]) for number, (_, _, mean, _) in enumerate(found)
    ]
    folder = run_folder / "Volley"
    best = read_export(folder / "Volley-best.pt").update
    assert best.step == [step for _, step, _, is_best in found if is_best][-1]
    assert best.snapshot == -1
    last = max(int(path.stem.rpartition("-")[2]) for path in folder.glob("Volley-[0-9]*.pt"))
    assert last - 700 < found[-1][1] <= last  # the last policy was played as well
    assert (folder / "Volley-opponent.pt").exists()


def test_a_resumed_run_keeps_its_best_policy_and_its_opponent(tmp_path, caplog):
    caplog.set_level("INFO")
    section = {"every": 500, "episodes": 8, "opponents": "snapshot"}
    plain = volley(**INLINE, evaluation=section, behaviors__Volley__max_steps=1500)
    folder = run_here(plain, tmp_path, "run").folder / "Volley"
    opponent, best = (read_export(folder / f"Volley-{label}.pt").update for label in ("opponent", "best"))
    top = max(mean for _, _, mean, _ in scores(caplog.text))
    caplog.clear()
    plain["behaviors"]["Volley"]["max_steps"] = 2500
    result = run_here(plain, tmp_path, "run", resume=True)
    found = scores(caplog.text)
    assert found
    assert read_export(folder / "Volley-opponent.pt").update.step == opponent.step
    better = [(step, mean) for _, step, mean, is_best in found if is_best]
    assert all(mean > top for _, mean in better)
    assert read_export(folder / "Volley-best.pt").update.step == (better[-1][0] if better else best.step)
    assert result.behaviors["Volley"].best_evaluation == pytest.approx(max([top, *(m for _, m in better)]), abs=0.001)


def test_a_short_run_has_a_best_policy_and_evaluation_curves(tmp_path, caplog):
    caplog.set_level("INFO")
    plain = cartpole(**INLINE, evaluation={"every": 10**6, "episodes": 4}, behaviors__CartPole__max_steps=1500)
    result = run_here(plain, tmp_path, "run")
    ((_, step, mean, best),) = scores(caplog.text)
    assert best
    assert result.behaviors["CartPole"].best_evaluation == pytest.approx(mean, abs=0.001)
    assert read_export(result.folder / "CartPole" / "CartPole-best.pt").update.step == step
    events = EventAccumulator(str(result.folder / "CartPole")).Reload()
    curves = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"] if tag.startswith("Evaluation/")}
    assert {tag: [event.step for event in curve] for tag, curve in curves.items()} == {
        f"Evaluation/{what}": [step]
        for what in (
            *("Cumulative Reward", "Std of Reward", "Min Reward", "Max Reward"),
            *("Episode Length", "Min Episode Length", "Max Episode Length"),
        )
    }
    assert curves["Evaluation/Cumulative Reward"][0].value == pytest.approx(mean, abs=0.001)


def test_training_does_not_depend_on_evaluation(tmp_path):
    plain = changed(volley(**INLINE), {"pipeline__deterministic": True, "behaviors__Volley__max_steps": 1500})
    run_here(plain, tmp_path, "alone")
    run_here({**plain, "evaluation": {"every": 500, "episodes": 4, "opponents": "random"}}, tmp_path, "beside")
    assert weights_digest(tmp_path / "alone", "Volley") == weights_digest(tmp_path / "beside", "Volley")


# Trouble. --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_environment_that_breaks_in_evaluation_costs_one_attempt(start, tmp_path):
    once = {"environment__options__once": str(tmp_path / "happened"), "behaviors__CartPole__max_steps": 10**7}
    command = start(fragile("raise", **once), beside=[TROUBLED_ENV])
    command.until(lambda: bool(scores(command.output)), "evaluation")
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Restarting it; training continues." in command.output
    assert "the motor is on fire" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_an_environment_that_never_ends_in_evaluation_does_not_block_the_end_of_the_run(tmp_path, caplog):
    in_a_process = {**INLINE, "pipeline__hosts__evaluation__kind": "process"}
    plain = fragile("endless", pipeline__supervision={"grace_s": 4.0}, **in_a_process)
    run_folder = run_here(plain, tmp_path, "run").folder
    assert (
        "Evaluation: the last policies have no score, because their games had not ended 3 s after the end of training"
        in caplog.text
    )
    assert read_whole_checkpoint(run_folder)["trainer@learner-CartPole"]["trainer"]["step"] >= 3000


@pytest.mark.slow
def test_an_interrupted_run_does_not_wait_for_an_evaluation(start):
    command = start(fragile("endless", behaviors__CartPole__max_steps=10**7), beside=[TROUBLED_ENV])
    command.pid_of("evaluation")
    command.until_checkpoint()
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Evaluation" not in command.output
    assert "did not end within" not in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_killed_evaluation_is_started_again(start):
    command = start(
        cartpole(evaluation={"every": 500, "episodes": 4}, behaviors__CartPole__max_steps=10**7),
    )
    os.kill(command.pid_of("evaluation"), signal.SIGKILL)
    command.until(lambda: "killed by signal 9\n[WARNING] Restarting it" in command.output, "restart")
    before = len(scores(command.output))
    command.until(lambda: len(scores(command.output)) > before, "evaluation")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


# The best policy and its score. ----------------------------------------------------------------------------------------

PAYING = """
from pathlib import Path

import gymnasium, numpy

HERE = Path(__file__).parent


class Pay(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pay=10.0):
        self.pay = pay

    def reset(self, seed=None, options=None):
        self.left = 10
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.left -= 1
        pay = self.pay / 2 if (HERE / "worse").exists() else self.pay
        return numpy.zeros(2, numpy.float32), pay, not self.left, False, {}
"""


def paying(**changes: object) -> Plain:
    """A tiny run whose evaluations return 100, and 50 once the file `worse` is there."""
    plain = cartpole(evaluation={"every": 500, "episodes": 4}, behaviors__CartPole__max_steps=1500, **INLINE)
    plain["environment"] = {"kind": "gymnasium", "factory": "paying:Pay", "behavior": "CartPole", "num_envs": 4}
    return changed(plain, changes)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder with the module of the environment."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "paying.py").write_text(PAYING)
    yield tmp_path
    sys.modules.pop("paying", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run whose best policy returned 100."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "paying.py").write_text(PAYING)
    sys.path.insert(0, str(folder))
    yield run_here(paying(), folder, "run").folder
    sys.path.remove(str(folder))
    sys.modules.pop("paying", None)


@pytest.fixture
def paid(finished, beside):
    """Such a run in a folder of its own; evaluations from now on return 50."""
    sys.modules.pop("paying", None)
    (beside / "worse").touch()
    return Path(shutil.copytree(finished, beside / "run"))


def test_a_resumed_run_keeps_a_best_policy_that_is_newer_than_its_checkpoint(paid):
    best = paid / "CartPole" / "CartPole-best.pt"
    before = best.read_bytes()
    for suffix in (".onnx", ".json"):  # as if all had died before these were written
        best.with_suffix(suffix).unlink()
    newest = newest_checkpoint(paid / "checkpoints")
    shutil.rmtree(newest.folder)
    assert newest_checkpoint(paid / "checkpoints").number < newest.number
    resumed = load(paid).resume(steps=1000)
    assert resumed.behaviors["CartPole"].best_evaluation == 100.0
    assert best.read_bytes() == before
    assert best.with_suffix(".onnx").is_file()


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"environment__options": {"pay": 1.0}}, "environment"),
        ({"environment__num_envs": 2}, ""),
    ],
)
def test_the_search_for_the_best_policy_starts_again_with_a_different_environment(paid, caplog, changes, about):
    best = paid / "CartPole" / "CartPole-best.pt"
    step = read_export(best).update.step
    again = run_here(paying(behaviors__CartPole__max_steps=2500, **changes), paid.parent, "run", resume=True)
    said = re.findall(r"the score, 100\.000 at step \d+, was achieved with different settings \((.*)\)", caplog.text)
    assert said == ([about] if about else [])
    mean = 100.0 if not about else 5.0 if "environment" in about else 50.0
    assert again.behaviors["CartPole"].best_evaluation == mean
    assert (read_export(best).update.step == step) == (not about)


# Unity. ----------------------------------------------------------------------------------------------------------------


def test_unity_is_evaluated_in_separate_programs_on_separate_ports(tmp_path, caplog):
    caplog.set_level("INFO")
    plain = unity(
        tmp_path, "--scene", "duel", num_envs=1, evaluation={"every": 400, "episodes": 8, "opponents": "random"}
    )
    settings = plain["behaviors"].pop("Simple")
    settings["max_steps"] = 500
    plain["behaviors"]["Duel"] = {**settings, "self_play": {"save_steps": 100, "team_change": 400, "swap_steps": 100}}
    run_folder = run_here(changed(plain, {"engine_settings": {"time_scale": 7.0}, **INLINE}), tmp_path, "run").folder
    assert {name for name, *_ in scores(caplog.text)} == {"Duel"}
    base = plain["env_settings"]["base_port"]
    told = sorted(reports(tmp_path / "reports"), key=lambda report: report["port"])
    assert [(report["port"] - base, report["seed"], report["returncode"]) for report in told] == [
        (number, 5 + number, 0) for number in range(2)
    ]
    assert all(report["engine"]["time_scale"] == [7.0] for report in told)
    assert (run_folder / "run_logs" / "Player-1.log").is_file()
    assert_no_children()


def test_evaluation_in_the_editor_is_refused(in_this_process, tmp_path):
    plain = unity(tmp_path, evaluation={"every": 400})
    plain["env_settings"] = {}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain))
    why = "evaluation: needs separate environments, but the Unity Editor is a single environment"
    assert why in in_this_process(main, str(tmp_path / "config.yaml"), status=2)
    # --env may name the programs when the run starts.
    said = in_this_process(main, str(tmp_path / "config.yaml"), "--validate")
    assert re.search(rf"warning: .*{why}", said)


def test_each_epoch_of_sac_has_the_spread_of_its_values_and_returns(tmp_path, caplog):
    caplog.set_level("INFO")
    plain = sac(
        **INLINE,
        environment__max_episode_steps=20,
        behaviors__Pendulum__max_steps=450,
        behaviors__Pendulum__summary_freq=10**6,  # an epoch's curves need no summary
        evaluation={"every": 200, "episodes": 4},
    )
    result = run_here(plain, tmp_path, "run")
    events = EventAccumulator(str(result.folder / "Pendulum")).Reload()
    curves = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"] if tag.startswith("Epoch/")}
    names = ("Q1", "Q2", "V", "LogPi", "EpRet")
    assert {tag: [event.step for event in curve] for tag, curve in curves.items()} == {
        f"Epoch/{name} {kind}": [200, 400] for name in names for kind in ("Min", "Mean", "Max")
    }
    for name in names:
        for low, mean, high in zip(*(curves[f"Epoch/{name} {kind}"] for kind in ("Min", "Mean", "Max")), strict=True):
            assert low.value <= mean.value <= high.value
    assert curves["Epoch/EpRet Min"][0].value < curves["Epoch/EpRet Max"][0].value
    assert "Pendulum: number of parameters in each network: actor 98, q1 114, q2 114, targets 228." in caplog.text
