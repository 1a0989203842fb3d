"""Whole runs with brains that do not learn, beside learners or alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import yaml
from run_configs import INLINE, cartpole
from run_folders import streams
from runs import run_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.pipeline.cli import main
from headrace.pipeline.run import run
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader
from headrace.stages.trainer.imitation.loading import load_demonstrations

HOSTS = {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}}
VOLLEY: dict[str, Any] = {
    "environment": {"kind": "builtin", "id": "Volley", "num_envs": 8, "options": {"points_to_win": 1}},
    "pipeline": HOSTS,
}
"""Games are short, so that some end in a run of 2000 steps."""

RUN: dict[str, Any] = {"pipeline": HOSTS}
SCRIPT = """
import numpy as np
from headrace import ActionBatch


class Lean:
    def __call__(self, observations):
        leaning = observations[0][:, 2:].sum(axis=1, keepdims=True) > 0
        return ActionBatch(np.zeros((len(leaning), 0), np.float32), leaning.astype(np.int32))
"""


def recorded(result):
    """The trajectories in the stream of a run."""
    (path,) = streams(result.folder)
    return [frame.message for frame in StreamReader(path) if isinstance(frame.message, TrajectoryBatch)]


def volley(**block):
    return {**VOLLEY, "behaviors": {"Volley": {"max_steps": 3000, **block}}}


def test_a_run_of_brains_only_plays_rates_records_and_resumes(tmp_path):
    halves = [{"use": "scripted", "weight": 0.5}, {"use": "random", "weight": 0.5}]
    plain = {**volley(brain=halves, broadcast=True), "record": {"edges": ["agent_processor"]}}
    result = run_here(plain, tmp_path, "run")
    assert result.behaviors["Volley"].step >= 3000
    assert result.behaviors["Volley"].version == 0
    scripted, chance = json.loads((result.folder / "Volley" / "league.json").read_text())["brains"]
    assert scripted["rating"] > chance["rating"]
    assert scripted["games"] == chance["games"] > 0
    batches = recorded(result)
    assert sum(batch.num_rows for batch in batches) >= 3000
    assert not any(batch.trajectories["learning"].any() for batch in batches)
    saved = newest_checkpoint(result.folder / "checkpoints")
    kept = {brain: record["losses"] for _, brain, record in saved.progress["brains"]["records"]}  # of who meets it
    assert kept["scripted"] > 0  # games that end after the checkpoint are in the report alone
    plain["behaviors"]["Volley"]["max_steps"] = saved.steps["Volley"] + 1
    resumed = run_here(plain, tmp_path, "run", resume=True)
    assert resumed.behaviors["Volley"].step > saved.steps["Volley"]
    again = json.loads((result.folder / "Volley" / "league.json").read_text())["brains"]
    assert again[0]["won"] >= kept["scripted"]


def test_a_brain_plays_a_share_of_the_games_without_being_learned_from(tmp_path):
    plain = cartpole(
        behaviors__CartPole__max_steps=600,
        behaviors__CartPole__brain={"use": "random", "weight": 0.5},
        record__edges=["trainer"],
        **INLINE,
    )
    result = run_here(plain, tmp_path, "run")
    assert result.behaviors["CartPole"].version > 0
    learned = [batch.trajectories["learning"] for batch in recorded(result)]
    assert np.concatenate(learned).all(), "the trainer got none of the brain's steps"


def test_opponents_in_self_play_are_brains_in_their_share_of_the_games(tmp_path):
    self_play = {
        "save_steps": 250,
        "team_change": 500,
        "swap_steps": 125,
        "brains": [{"use": "scripted", "weight": 0.5}],
    }
    small = {"batch_size": 64, "buffer_size": 512}
    plain = volley(trainer_type="ppo", hyperparameters=small, self_play=self_play, max_steps=2000)
    plain["evaluation"] = {"every": 1000, "episodes": 2, "opponents": "scripted"}
    result = run_here(plain, tmp_path, "run")
    league = json.loads((result.folder / "Volley" / "league.json").read_text())
    (scripted,) = league["brains"]
    assert scripted["games"] > 0
    assert scripted["rating"] > league["rating"]
    assert result.behaviors["Volley"].best_evaluation is not None
    model = {"use": str(result.folder), "with": {"deterministic": True}}
    played = run_here(
        volley(brain=[{**model, "teams": [0]}, {"use": "random", "teams": [1]}], max_steps=2000), tmp_path, "played"
    )
    names = [each["brain"] for each in json.loads((played.folder / "Volley" / "league.json").read_text())["brains"]]
    assert names == [str(result.folder), "random"]


def test_a_student_imitates_a_script_whose_steps_are_broadcast(tmp_path):
    plain: dict[str, Any] = {
        **VOLLEY,
        "behaviors": {
            "Volley": {"brain": "scripted", "broadcast": True},
            "Student": {
                "trainer_type": "bc",
                "hyperparameters": {"teacher": "Volley", "batch_size": 128},
                "max_steps": 4000,
            },
        },
    }
    plain["environment"] = {**VOLLEY["environment"], "behavior": "Volley"}
    result = run_here(plain, tmp_path, "run")
    assert result.behaviors["Student"].version > 0
    assert result.behaviors["Student"].export is not None
    assert result.behaviors["Volley"].export is None


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The recordings of a script that played CartPole."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "my_players.py").write_text(SCRIPT)
    plain = cartpole(record__edges=["agent_processor"], **INLINE)
    plain["behaviors"] = {"CartPole": {"brain": "my_players:Lean", "broadcast": True, "max_steps": 600}}
    plain["checkpoint_settings"] = {"run_id": "run", "results_dir": str(folder / "results")}
    (folder / "run.yaml").write_text(yaml.safe_dump(plain))
    return run(folder / "run.yaml", console=False).folder / "streams"


def test_a_recorded_script_becomes_a_demo_file(script, tmp_path):
    demo = tmp_path / "CartPole.demo"
    assert main(["--to-demo", str(script), str(demo)]) == 0
    demonstrations = load_demonstrations(str(demo), "CartPole")
    assert len(demonstrations) >= 600
    leaning = demonstrations.observations[0][:, 2:].sum(axis=1) > 0
    np.testing.assert_array_equal(demonstrations.choices[:, 0], leaning)


def test_bc_learns_from_a_recorded_script(script, tmp_path):
    block = {"trainer_type": "bc", "max_steps": 6000}
    sizes = {"batch_size": 64, "buffer_size": 512, "learning_rate": 0.01, "held_out": 0.2}
    plain = {"behaviors": {"CartPole": {**block, "hyperparameters": {"demo_path": str(script), **sizes}}}, **RUN}
    run = run_here(plain, tmp_path, "run")
    events = EventAccumulator(str(run.folder / "CartPole")).Reload()
    assert events.Scalars("Policy/Held-out Accuracy")[-1].value > 0.8


def test_ppo_clones_a_recorded_script(script, tmp_path):
    plain = cartpole(behaviors__CartPole__behavioral_cloning={"demo_path": str(script)}, **INLINE)
    run = run_here(plain, tmp_path, "run")
    assert EventAccumulator(str(run.folder / "CartPole")).Reload().Scalars("Losses/Pretraining Loss")


def test_without_broadcast_the_steps_of_brains_are_not_recorded(tmp_path):
    plain = {**volley(brain="scripted", max_steps=500), "record": {"edges": ["agent_processor"]}}
    assert recorded(run_here(plain, tmp_path, "run")) == []
