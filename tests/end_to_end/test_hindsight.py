"""Whole runs that learn in hindsight."""

import pytest
from goal_env import FACTORY, BitFlipping
from run_configs import INLINE, changed
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.run import run
from headrace.pipeline.trial_run import try_run

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
def test_a_run_learns_in_hindsight_and_goes_on_from_its_checkpoint(tmp_path, caplog):
    first = run_here(bits(), tmp_path, "bits")
    again = run_here(bits(behaviors__Bits__max_steps=90), tmp_path, "bits", resume=True)
    assert (first.behaviors["Bits"].step, again.behaviors["Bits"].step) == (60, 91), "two at a time"
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == []


@pytest.mark.lengthy
def test_an_object_of_the_callers_is_asked_itself(tmp_path):
    plain = bits(environment__factory=None, environment__options={}, environment__num_envs=1)
    plain["checkpoint_settings"] = {"results_dir": str(tmp_path), "run_id": "given"}
    env = BitFlipping(3)
    assert run(plain, environment=env).behaviors["Bits"].step == 60
    env.broken = "scalar"
    plain["checkpoint_settings"]["run_id"] = "broken"
    with pytest.raises(Exception, match=r"given to run..: its compute_reward.. returned a float for 5 rows"):
        run(plain, environment=env)


@pytest.mark.lengthy
def test_the_trial_of_a_run_names_what_hindsight_lacks(tmp_path):
    config = RunConfig.from_plain(bits(environment__options={"broken": "missing"}))
    (remark,) = try_run(config, own_folder=str(tmp_path))
    assert remark["serious"]
    assert "has no method compute_reward(achieved_goal, desired_goal, info)" in remark["text"]
