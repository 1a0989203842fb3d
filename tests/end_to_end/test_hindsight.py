"""Whole runs that learn in hindsight."""

import pytest
from goal_env import FACTORY, BitFlipping
from run_configs import INLINE, changed
from run_folders import streams, weights_digest
from runs import run_here

from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import run

BITS = {
    "environment": {"kind": "gymnasium", "factory": FACTORY, "num_envs": 2, "options": {"bits": 3}},
    "env_settings": {"seed": 1},
    "behaviors": {
        "Bits": {
            "trainer_type": "sac",
            "max_steps": 60,
            "hyperparameters": {
                "batch_size": 8,
                "buffer_size": 64,
                "buffer_init_steps": 0,
                "random_steps": 0,
                "steps_per_update": 4,
                "save_replay_buffer": True,
                "hindsight": {"goals": "future"},
            },
            "network_settings": {"hidden_units": 8, "num_layers": 1},
        }
    },
}


def bits(**changes):
    return changed(BITS, {**INLINE, "pipeline__hosts__learners__threads": 1, **changes})


@pytest.mark.lengthy
def test_a_run_learns_in_hindsight_and_resumes(tmp_path, caplog):
    first = run_here(bits(), tmp_path, "bits")
    again = run_here(bits(behaviors__Bits__max_steps=90), tmp_path, "bits", resume=True)
    assert (first.behaviors["Bits"].step, again.behaviors["Bits"].step) == (60, 91), "two at a time"
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == []


@pytest.mark.lengthy
def test_an_environment_object_computes_the_rewards_of_hindsight(tmp_path):
    plain = bits(environment__factory=None, environment__options={}, environment__num_envs=1)
    plain["checkpoint_settings"] = {"results_dir": str(tmp_path), "run_id": "given"}
    assert run(plain, environment=BitFlipping(3)).behaviors["Bits"].step == 60


@pytest.mark.lengthy
def test_an_environment_without_compute_reward_is_refused(tmp_path):
    with pytest.raises(RunFailed, match=r"has no method compute_reward\(achieved_goal, desired_goal, info\)"):
        run_here(bits(environment__options={"broken": "missing"}), tmp_path, "lacking")


@pytest.mark.slow
def test_a_deterministic_run_learns_the_same_however_it_is_cut_and_from_its_recording(tmp_path):
    changes = {
        "pipeline__deterministic": True,
        "record__edges": ["trainer"],
        "behaviors__Bits__checkpoint_interval": 70,
    }
    run_here(bits(behaviors__Bits__max_steps=140, **changes), tmp_path, "whole")
    run_here(bits(behaviors__Bits__max_steps=70, **changes), tmp_path, "cut")
    run_here(bits(behaviors__Bits__max_steps=140, **changes), tmp_path, "cut", resume=True)
    recorded = streams(tmp_path / "whole")
    run_here(bits(behaviors__Bits__max_steps=140, replay__streams=list(recorded)), tmp_path, "replayed")
    found = {weights_digest(tmp_path / run_id, "Bits") for run_id in ("whole", "cut", "replayed")}
    assert len(found) == 1
