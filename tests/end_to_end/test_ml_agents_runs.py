"""Run folders that ML-Agents left: the commands that go on with them there go on with them here."""

from __future__ import annotations

import json
import shutil

import pytest
from ml_agents_samples import FOLDER, SAMPLES
from run_configs import INLINE, changed
from run_folders import read_whole_checkpoint
from runs import Command, run_here
from unity_command import unity

SAMPLE = SAMPLES["ppo_hybrid"]


def configuration(tmp_path, **changes):
    """What the run was configured by, for 400 steps more."""
    network = {"hidden_units": 16, "num_layers": 2, "normalize": True}
    plain = unity(tmp_path, "--continuous", 2, "--branches", 3, 2, num_envs=1, behaviors__Simple__max_steps=1600)
    return changed(plain, {"behaviors__Simple__network_settings": network, **changes})


@pytest.fixture
def left(tmp_path):
    """The folder of results with a run that ML-Agents left."""
    folder = tmp_path / "results" / "run"
    shutil.copytree(FOLDER / SAMPLE.name, folder)
    (folder / "played.json").unlink()
    (folder / "Simple" / "events.out.tfevents.1.vm.1.0").write_bytes(b"")
    return folder


LESSONS = [
    {"name": "short", "value": 0.1, "completion_criteria": {"behavior": "Simple", "threshold": 1000}},
    {"name": "long", "value": 0.2},
]


def test_a_run_of_ml_agents_is_resumed(left, tmp_path, caplog):
    caplog.set_level("INFO")
    written = json.loads((left / "run_logs" / "training_status.json").read_text())
    (left / "run_logs" / "training_status.json").write_text(json.dumps({**written, "step_size": {"lesson_num": 1}}))
    plain = configuration(tmp_path, environment_parameters={"step_size": {"curriculum": LESSONS}}, **INLINE)
    result = run_here(plain, left.parent, "run", resume=True)
    told = [record.getMessage() for record in caplog.records]
    assert f"Resuming from {left / 'Simple' / 'checkpoint.pt'}." in told
    assert f"Resuming training from step {SAMPLE.step}." in told
    assert result.behaviors["Simple"].step >= 1600
    state = read_whole_checkpoint(left)["trainer@learner-Simple"]["trainer"]
    assert state["optimizer"]["steps"] > 40  # those that ML-Agents made
    assert (left / "Simple" / "events.out.tfevents.1.vm.1.0").is_file()
    status = json.loads((left / "run_logs" / "training_status.json").read_text())
    assert status["step_size"] == {"lesson_num": 1}
    caplog.clear()
    more = configuration(tmp_path, behaviors__Simple__max_steps=1800, **INLINE)
    again = run_here(more, left.parent, "run", resume=True)
    told = [record.getMessage() for record in caplog.records]
    assert f"Resuming training from step {result.behaviors['Simple'].step}." in told
    assert again.behaviors["Simple"].step >= 1800


def test_a_run_starts_from_the_networks_of_ml_agents(left, tmp_path, caplog):
    caplog.set_level("INFO")
    plain = configuration(tmp_path, behaviors__Simple__max_steps=300, **INLINE)
    result = run_here(plain, left.parent, "next", initialize_from="run")
    assert 300 <= result.behaviors["Simple"].step < SAMPLE.step
    taken = f"Simple: loaded the actor, critics and normaliser of an ML-Agents ppo policy from {left / 'Simple' / 'checkpoint.pt'}."
    assert taken in caplog.messages


def test_resume_with_inference_plays_a_run_of_ml_agents(left, tmp_path):
    told = Command(tmp_path, configuration(tmp_path), "--resume", "--inference").end_after("Step: 500.")
    assert "Not Training." in told
    assert (left / "Simple" / "checkpoint.pt").read_bytes() == SAMPLE.path.read_bytes()
