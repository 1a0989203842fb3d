"""`--inference` plays with what was trained, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from run_configs import INLINE, cartpole, changed, remembering, troubled, volley
from runs import Command, run_here

from headrace.pipeline.common.errors import RunError, RunFailed, RunFolderError
from headrace.pipeline.policies.export import load_acting_policy
from headrace.pipeline.run import RunOptions

PLAIN = cartpole(behaviors__CartPole__max_steps=1000, behaviors__CartPole__summary_freq=500)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of `results` with a run in it."""
    folder = tmp_path_factory.mktemp("trained")
    run_here(changed(PLAIN, INLINE), folder / "results", "run")
    return folder


def files(run_folder):
    """Every file with its content, but for the log and the scores of what was played."""
    paths = [path for path in run_folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in paths if path.name not in (".lock", "run.log", "inference.json")}


def test_inference_prints_returns_until_it_is_stopped_and_changes_no_file(trained):
    before = files(trained / "results" / "run")
    command = Command(trained, changed(PLAIN, INLINE), "--inference")
    try:
        # Beyond max_steps (1000) too: playing has no end of its own.
        command.until(lambda: "Step: 2000." in command.output, "some summaries")
        command.interrupt()
        assert command.wait() == 0, command.output
        command.assert_left_nothing()
    finally:
        command.end()
    lines = [line for line in command.output.splitlines() if "CartPole. Step" in line]
    rewards = [float(found.group(1)) for line in lines if (found := re.search(r"Mean Reward: ([\d.]+)\.", line))]
    assert rewards
    assert min(rewards) > 1
    assert all("Not Training" in line for line in lines)
    assert "a checkpoint is saved" not in command.output
    assert files(command.run_folder) == before
    assert re.search(r"^CartPole +\d+ +[\d.]+ ± [\d.]+", command.output, re.MULTILINE), "Ctrl-C has the same table"


def test_inference_ends_after_the_given_episodes_and_reports_their_scores(trained, caplog):
    plain = changed(PLAIN, {**INLINE, "inference": {"episodes": 7}, "pipeline__hosts__actors__replicas": 2})
    result = run_here(plain, trained / "results", "run", inference=True)
    score = result.scores["CartPole"]
    assert (score.episodes, len(score.returns), result.interrupted) == (7, 7, False)
    assert score.mean == pytest.approx(sum(score.lengths) / 7), "CartPole's return is its length"
    written = json.loads((result.folder / "run_logs" / "inference.json").read_text())
    assert written["complete"]
    assert written["behaviors"]["CartPole"]["returns"] == [*score.returns]


def test_a_seed_chooses_the_episodes(trained):
    def returns(seed):
        plain = changed(PLAIN, {**INLINE, "inference": {"episodes": 12}, "env_settings__seed": seed})
        return run_here(plain, trained / "results", "run", inference=True).scores["CartPole"].returns

    assert returns(5) == returns(5)
    assert returns(5) != returns(6)


def test_inference_films_each_episode(trained, tmp_path):
    plain = changed(PLAIN, {**INLINE, "inference": {"episodes": 2, "video": str(tmp_path / "films")}})
    score = run_here(plain, trained / "results", "run", inference=True).scores["CartPole"]
    assert score.episodes == 2
    films = sorted((tmp_path / "films").iterdir())
    assert [film.stem for film in films] == ["run-1", "run-2"]
    assert {film.suffix for film in films} <= {".gif", ".mp4"}


def test_a_self_play_run_is_played_by_the_newest_policy_on_both_sides(tmp_path):
    plain = volley(**INLINE, behaviors__Volley__max_steps=1500)
    run_here(plain, tmp_path, "run")
    before = files(tmp_path / "run")
    result = run_here(changed(plain, {"inference__episodes": 3}), tmp_path, "run", inference=True)
    left, right = result.scores["Volley?team=0"], result.scores["Volley?team=1"]
    assert left.episodes == right.episodes == left.games == right.games == 3
    assert (left.won, left.drawn, left.lost) == (right.lost, right.drawn, right.won)
    assert left.rating is not None
    assert files(tmp_path / "run") == before


def test_a_failed_inference_does_not_advise_to_resume(tmp_path, caplog):
    run_here(changed(troubled(), INLINE), tmp_path, "run")
    with pytest.raises(RunFailed, match="the motor is on fire") as caught:
        run_here(changed(troubled(trouble="raise", after=20), INLINE), tmp_path, "run", inference=True)
    assert "--resume" not in str(caught.value)
    assert "has failed. The run ends, then reports the error." in caplog.text


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(RunFolderError, match="no run 'nowhere'"):
        run_here(changed(PLAIN, INLINE), tmp_path, "nowhere", inference=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_trained_policy_is_refused(tmp_path, trained):
    result = run_here(changed(PLAIN, INLINE), tmp_path, "run")
    for path in [path for path in result.folder.rglob("*") if path.suffix in (".pt", ".onnx")]:
        path.unlink()
    with pytest.raises((RunError, RunFailed), match="holds no trained policy"):
        run_here(changed(PLAIN, INLINE), tmp_path, "run", inference=True)


def test_a_policy_with_memory_is_trained_evaluated_and_played_with(tmp_path, caplog):
    plain = remembering(**INLINE, evaluation={"every": 400, "episodes": 4})
    trained = run_here(plain, tmp_path, "run").behaviors["CartPole"]
    assert trained.step >= 1200
    policy = load_acting_policy(tmp_path / "run" / "CartPole" / "CartPole-best.pt")
    assert policy.memory_size == 8
    stop = asyncio.Event()
    options = RunOptions(stop=stop, on_progress=lambda snapshot: stop.set())
    result = run_here(plain, tmp_path, "run", options, inference=True)
    assert result.behaviors["CartPole"].step > 0
    assert "evaluation did not end" not in caplog.text
