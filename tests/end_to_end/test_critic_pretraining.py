"""A critic is trained before the policy moves: by a fixed policy's play, or by a recorded stream."""

import numpy as np
import pytest
from run_configs import INLINE, cartpole, changed
from run_folders import streams
from runs import run_here

from headrace.pipeline.policies.export import read_export

IMPALA = {
    "trainer_type": "impala",
    "max_steps": 600,
    "summary_freq": 200,
    "hyperparameters": {
        "unroll_length": 5,
        "batch_size": 8,
        "batch_size_from_replay": 0,
        "critic_pretrain_steps": 600,
    },
    "network_settings": {"hidden_units": 32, "num_layers": 1, "normalize": False, "activation": "tanh"},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A run of PPO, recorded at the trainer's receiver."""
    folder = tmp_path_factory.mktemp("teacher")
    plain = cartpole(behaviors__CartPole__max_steps=1500, record={"edges": ["trainer"]}, **INLINE)
    plain["behaviors"]["CartPole"]["network_settings"]["normalize"] = False
    return run_here(plain, folder, "teacher")


def parts(run):
    """The acting weights of a run's last policy, and its trainer's, the critic's too."""
    export = read_export(run.behaviors["CartPole"].export)
    assert export.learner is not None
    return export.update.weights, export.learner["weights"]


def test_a_loaded_policy_does_not_change_until_its_critic_is_trained(teacher, tmp_path):
    export = str(teacher.behaviors["CartPole"].export)
    plain = changed(cartpole(**INLINE), {"behaviors__CartPole": {**IMPALA, "init_path": export}})
    run = run_here(plain, tmp_path, "pretrained")
    np.testing.assert_array_equal(parts(run)[0], parts(teacher)[0])
    longer = changed(plain, {"behaviors__CartPole__max_steps": 900})
    moved = run_here(longer, tmp_path, "moved")
    assert not np.array_equal(parts(moved)[0], parts(teacher)[0])


def test_a_recorded_stream_trains_the_critic_that_the_next_run_begins_with(teacher, tmp_path):
    plain = changed(cartpole(**INLINE), {"behaviors__CartPole": IMPALA})
    critic = run_here(changed(plain, {"replay": {"streams": streams(teacher.folder)}}), tmp_path, "critic")
    untrained = run_here(changed(plain, {"env_settings__seed": 8}), tmp_path, "other")
    # An update takes 40 steps: this run ends before its first.
    short = changed(plain, {"behaviors__CartPole__max_steps": 39, "env_settings__seed": 8})
    begun = run_here(short, tmp_path, "next", initialize_from="critic")
    for found, expected in zip(parts(begun)[1].items(), parts(critic)[1].items(), strict=True):
        assert found[0] == expected[0]
        np.testing.assert_array_equal(found[1], expected[1])
    assert not np.array_equal(parts(untrained)[1]["value.weight"], parts(critic)[1]["value.weight"])
