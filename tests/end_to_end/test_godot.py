"""Games made with Godot train like any other environment; what goes wrong with them is restarted, or ends the run."""

from __future__ import annotations

import json
import random

import numpy as np
import onnxruntime
import pytest
from godot_runs import build_in
from runs import run_here

from headrace import RunError, RunFailed
from headrace.pipeline.run import RunOptions

PPO = {"buffer_size": 512, "batch_size": 64, "learning_rate": 1e-3}
SMALL = {"network_settings": {"hidden_units": 32, "num_layers": 1}}


def godot(folder, *arguments, behavior="Agent", settings=None, env=None, **sections):
    """A run of the stand-in by a PPO trainer."""
    environment = {"kind": "godot", **sections.pop("environment", {})}
    learns = {
        "trainer_type": "ppo",
        "hyperparameters": PPO,
        "max_steps": 15_000,
        "summary_freq": 2_500,
        "time_horizon": 16,
        **(settings or {}),
    }
    return {
        "environment": environment,
        "env_settings": {
            "env_path": str(build_in(folder)),
            "env_args": [*arguments],
            "base_port": 0,
            "seed": 3,
            **(env or {}),
        },
        "behaviors": {behavior: learns},
        "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
        **sections,
    }


def trained(tmp_path, plain):
    """Run; returns the result and the mean reward of each summary."""
    rewards = []
    options = RunOptions(on_summary=lambda summary: rewards.append(summary.mean_reward))
    result = run_here(plain, tmp_path / "results", "run", options)
    return result, [reward for reward in rewards if reward is not None]


def test_a_discrete_action_is_learned_and_exported_in_the_addons_format(tmp_path):
    learns = {"hyperparameters": {"buffer_size": 256, "batch_size": 32, "learning_rate": 3e-3}, "max_steps": 6_000}
    settings = {**SMALL, **learns, "summary_freq": 1_500}
    result, rewards = trained(tmp_path, godot(tmp_path, "--game=switch", "--agents=16", settings=settings))
    assert rewards[0] < 7 < 8.5 < rewards[-1]  # of some 9 at most, and 4.5 by chance
    model = onnxruntime.InferenceSession(result.folder / "Agent.onnx")
    assert {part.name for part in model.get_inputs()} == {"obs", "state_ins"}
    for hidden in (0, 1):
        inputs = {"obs": np.array([[hidden, 0.5]], np.float32), "state_ins": np.zeros(1, np.float32)}
        assert model.run(["output"], inputs)[0][0].argmax() == hidden
    log = (result.folder / "run_logs" / "Godot-0.log").read_text()
    assert "--fixed-fps 60 --speedup=1 --game=switch" in log
    assert "WRONG" not in log


def demonstrated(folder, episodes=40):
    """The recording of an expert of the game `switch`, who presses what it sees."""
    draw = random.Random(1)
    recorded = []
    for _ in range(episodes):
        seen = [[draw.randrange(2), step / 10] for step in range(11)]
        recorded.append([seen, [[float(hidden)] for hidden, _ in seen[:-1]]])
    path = folder / "expert_demos.json"
    path.write_text(json.dumps(recorded) + "\n", encoding="utf-8")
    return str(path)


def presses_what_it_sees(model):
    session = onnxruntime.InferenceSession(model)
    inputs = [{"obs": np.array([[hidden, 0.5]], np.float32), "state_ins": np.zeros(1, np.float32)} for hidden in (0, 1)]
    return [int(session.run(["output"], each)[0][0].argmax()) for each in inputs] == [0, 1]


def test_a_recording_of_the_addon_is_cloned_without_playing(tmp_path):
    cloning = {
        "trainer_type": "bc",
        "hyperparameters": {"demo_path": demonstrated(tmp_path), "learning_rate": 1e-3},
        "max_steps": 40_000,
    }
    plain = godot(tmp_path, "--game=switch")
    plain["behaviors"] = {"Agent": cloning}
    result, _ = trained(tmp_path, plain)
    assert presses_what_it_sees(result.folder / "Agent.onnx")


def test_a_recording_of_the_addon_helps_a_policy_that_plays(tmp_path):
    cloning = {"demo_path": demonstrated(tmp_path), "strength": 1.0}
    settings = {"max_steps": 6_000, "behavioral_cloning": cloning}
    plain = godot(tmp_path, "--game=switch", "--agents=16", settings=settings)
    result, _ = trained(tmp_path, plain)
    assert presses_what_it_sees(result.folder / "Agent.onnx")


SELF_PLAY = {"save_steps": 1_000, "swap_steps": 500, "team_change": 2_000, "window": 5}


def test_two_teams_play_each_other_and_are_rated(tmp_path):
    settings = {**SMALL, "self_play": SELF_PLAY, "max_steps": 3_000}
    result, _ = trained(tmp_path, godot(tmp_path, "--game=duel", "--agents=16", behavior="Duel", settings=settings))
    assert result.behaviors["Duel"].elo != 1200
    assert (result.folder / "Duel.onnx").exists()


def few_steps(folder, *arguments, **how):
    settings = {**SMALL, "max_steps": 1_000, **how.pop("settings", {})}
    return godot(folder, *arguments, settings=settings, **how)


def test_a_game_that_breaks_once_is_restarted_and_the_run_continues(tmp_path, caplog):
    """Each fault is in tests/stages/environments/engines/godot."""
    once = f"--fault_once={tmp_path / 'once'}"
    plain = few_steps(tmp_path, "--fault=exit5", "--fault_at=20", once, env={"num_envs": 2})
    result, _ = trained(tmp_path, plain)
    assert result.behaviors["Agent"].step >= 1_000
    assert "Restarting Godot worker" in caplog.text
    assert "the others continue" in caplog.text


def test_a_game_that_breaks_repeatedly_ends_the_run_with_a_checkpoint(tmp_path):
    with pytest.raises(RunFailed, match="(?s)return code 5.*not restarted again.*restarts_rate_limit_n"):
        trained(tmp_path, few_steps(tmp_path, "--fault=exit5", "--fault_at=20"))
    assert any((tmp_path / "results" / "run" / "checkpoints").iterdir())


def test_a_game_that_quits_normally_ends_the_run_normally(tmp_path):
    result, _ = trained(tmp_path, few_steps(tmp_path, "--fault=exit0", "--fault_at=20"))
    assert result.behaviors["Agent"].step < 1_000
    assert result.checkpoint >= 0


def test_a_missing_build_is_reported_before_anything_starts(tmp_path):
    plain = few_steps(tmp_path, env={"env_path": str(tmp_path / "nothing")})
    with pytest.raises(RunError, match="no executable at .*nothing"):
        trained(tmp_path, plain)


def test_environment_parameters_reach_the_game_at_its_start_and_by_calls(tmp_path):
    lessons = [
        {
            "name": "first",
            "value": 1.0,
            "completion_criteria": {
                "behavior": "Agent",
                "measure": "progress",
                "threshold": 0.3,
                "min_lesson_length": 1,
            },
        },
        {"name": "second", "value": 2.0},
    ]
    plain = few_steps(
        tmp_path,
        environment={"calls": {"lesson": "set_lesson_{value}"}},
        environment_parameters={"lesson": {"curriculum": lessons}},
        settings={"max_steps": 1_500, "summary_freq": 500},
    )
    result, _ = trained(tmp_path, plain)
    log = (result.folder / "run_logs" / "Godot-0.log").read_text()
    assert "--lesson=1" in log
    assert "lesson 2" in log


@pytest.mark.slow
def test_an_interrupted_run_closes_each_game_only_between_steps(start, tmp_path):
    """The stand-in reports an error if a message arrives in the middle of a step."""
    arguments = ("--step_ms=100", "--agents=4")
    hosts = {"hosts": {}}
    command = start(godot(tmp_path, *arguments, env={"num_envs": 3}, settings={"max_steps": 10**6}, pipeline=hosts))
    logs = command.run_folder / "run_logs"
    command.until(lambda: len([*logs.glob("Godot-*.log")]) == 3, "games")
    command.until(lambda: "Connected to Godot worker 2" in command.output, "the last game")
    command.interrupt()
    assert command.wait() == 0, command.output
    assert not any("WRONG" in path.read_text() for path in logs.glob("Godot-*.log"))
    assert "killed" not in command.output
    command.assert_left_nothing()
