"""What a run on Unity exports plays in Unity as well: by the run's policy, by the model, by the model in anybody's hands."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from older_models import older_model
from onnx_samples import run, session
from runs import Command, run_here
from unity_client.scenes.given import seen
from unity_runs import BUILD, NoChannels, build, free_port, reports

from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_handle import StopRequest
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.unity.columns import BehaviorReader, action_protos
from headrace.stages.environments.engines.unity.game import UnityGame

SCENE = ("--agents", "4", "--continuous", "1", "--branches", "3", "--mask")
BEHAVIOR = "Simple?team=0"
EPISODES = 40


def configuration(folder, *arguments):
    return {
        "pipeline": {"deterministic": True},  # what is learned does not depend on the machine's load
        "env_settings": {
            "env_path": str(BUILD),
            "env_args": [*SCENE, "--report", str(folder / "reports"), *arguments],
            "base_port": free_port(),
            "timeout_wait": 30,
            "seed": 5,
        },
        "behaviors": {
            "Simple": {
                "trainer_type": "ppo",
                "max_steps": 6000,
                "time_horizon": 16,
                "summary_freq": 500,
                "checkpoint_interval": 4000,
                "hyperparameters": {"buffer_size": 400, "batch_size": 100, "num_epoch": 4, "learning_rate": 3e-3},
                "network_settings": {
                    "hidden_units": 16,
                    "num_layers": 1,
                    "normalize": True,
                    "memory": {"memory_size": 8, "sequence_length": 8},
                },
            }
        },
    }


def scores(folder):
    """How well each episode was played: 1 if the agent went where it should, -1 if to the other side."""
    return [score for report in reports(folder) for score in report["measures"][BEHAVIOR]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of `results` with a run in it that has learned to go where it should."""
    folder = tmp_path_factory.mktemp("trained")
    command = Command(folder, configuration(folder))
    try:
        assert command.wait() == 0, command.output
    finally:
        command.end()
    return command.results


def played(folder, results):
    """The scores of some episodes that the command plays deterministically."""
    shutil.copytree(results, folder / "results")
    command = Command(folder, configuration(folder, "--max-steps", "30"), "--inference", "--deterministic")
    told = command.end_after("Step: 1000.")
    return scores(folder / "reports"), told


async def played_by_the_model_alone(folder, model):
    """The scores of some episodes for which nothing but the model and what Unity sends is used."""
    made, spec, memories = session(model), None, {}
    game = UnityGame(GameSettings(0, 0, 5, 30.0), build(folder, *SCENE, "--max-steps", "30"), 1, NoChannels)
    try:
        await game.start()
        output = await game.request_reset()
        for _ in range(300):
            infos = output.rl_output.agentInfos[BEHAVIOR].value
            if spec is None:
                brain = output.rl_initialization_output.brain_parameters[0]
                reader = BehaviorReader(brain, infos[0], "here")
                spec = reader.spec
            rows = reader.read(infos)
            for ended in rows.ids[: rows.ended].tolist():
                memories.pop(ended, None)
            deciding = rows.ids[rows.ended :].tolist()
            size = made.get_inputs()[-1].shape[2]
            inputs = {
                "obs_0": rows.observations[0][rows.ended :],
                "action_masks": rows.action_masks.astype(np.float32),
                "recurrent_in": np.stack([memories.get(agent, np.zeros((1, size), np.float32)) for agent in deciding]),
            }
            names = ["deterministic_continuous_actions", "deterministic_discrete_actions", "recurrent_out"]
            continuous, discrete, after = made.run(names, inputs)
            memories.update(zip(deciding, after, strict=True))
            output = await game.request_step({BEHAVIOR: action_protos(spec, continuous, discrete.astype(np.int32))})
    finally:
        await game.close()
    return scores(folder)


@pytest.mark.slow
async def test_all_three_reach_the_same_score(trained, tmp_path):
    model = trained / "run" / "Simple.onnx"
    by_policy, _ = played(tmp_path / "policy", trained)
    shutil.copytree(trained, tmp_path / "models" / "results")
    alone = tmp_path / "only-the-model" / "run"
    alone.mkdir(parents=True)
    shutil.copy(model, alone)
    by_model, told = played(tmp_path / "model", alone.parent)
    assert "Simple.onnx" in told
    by_hand = await played_by_the_model_alone(tmp_path / "hand", model)
    for found in (by_policy, by_model, by_hand):
        print(len(found), np.mean(found))
        assert len(found) >= EPISODES
        assert np.mean(found) > 0.9
    assert abs(np.mean(by_policy) - np.mean(by_model)) < 0.1
    assert abs(np.mean(by_policy) - np.mean(by_hand)) < 0.1


SHAPES = ((2,), (3, 6, 5), (1,))
"""Of the sensors that the older model below observes: two vectors and an image."""


def test_a_model_of_version_2_plays_what_it_says(tmp_path, caplog):
    path = tmp_path / "Older.onnx"
    path.write_bytes(older_model({"vector_observation": (3,), "visual_observation_0": (3, 6, 5)}, branches=(3, 2)))
    arguments = [
        "--scene",
        "given",
        "--shapes",
        *("x".join(map(str, shape)) for shape in SHAPES),
        "--branches",
        "3",
        "2",
    ]
    plain: dict[str, Any] = {
        "env_settings": {
            "env_path": str(BUILD),
            "env_args": [*arguments, "--agents", "3", "--report", str(tmp_path / "reports")],
            "base_port": free_port(),
            "timeout_wait": 60,
        },
        "behaviors": {"Given": {"trainer_type": "ppo", "init_path": str(path), "summary_freq": 50}},
        "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
    }
    caplog.set_level("INFO")
    stop, rewards = StopRequest(), []

    def stop_at_a_whole_summary(summary):
        rewards.append(summary.mean_reward)
        if rewards[-1] == pytest.approx(2.9, abs=5e-4):
            stop.set()

    plain["behaviors"]["Given"]["network_settings"] = {"deterministic": True}
    run_here(plain, tmp_path, "run", RunOptions(stop=stop, on_summary=stop_at_a_whole_summary), inference=True)
    assert "Given is played by" in caplog.text
    (report,) = reports(tmp_path / "reports")
    assert len(report["told"]) >= 150
    for agent, clock, _, choices in report["told"]:
        first, image, second = seen(agent, clock, SHAPES)
        inputs = {
            "vector_observation": np.array([[*first, *second]], np.float32),
            "visual_observation_0": np.array(image, np.float32).reshape(1, 3, 6, 5),
            "action_masks": np.ones((1, 5), np.float32),
        }
        logs = run(path.read_bytes(), inputs)["discrete_actions"][0]
        assert choices == [logs[:3].argmax(), logs[3:].argmax()]
