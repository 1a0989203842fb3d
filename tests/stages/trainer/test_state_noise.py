"""Every trainer that acts learns with gSDE, the deviations of its noise too, and says that autograd finds the gradients."""

import logging

import numpy as np
import pytest
from trainer_samples import CONTINUOUS, DISCRETE, HYBRID, VECTOR, experience, trainer_of

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import make_policy

MEMORY = {"memory_size": 8, "sequence_length": 4}


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("kind", "actions", "memory", "squash"),
    [
        ("ppo", CONTINUOUS, None, True),
        ("ppo", HYBRID, MEMORY, False),
        ("poca", HYBRID, None, False),
        ("sac", CONTINUOUS, None, False),
        ("sac", HYBRID, MEMORY, False),
        ("impala", HYBRID, None, True),
    ],
)
def test_the_deviations_of_noise_are_learned(kind, actions, memory, squash, caplog):
    spec = BehaviorSpec("Test", (VECTOR,), actions, grouped=kind == "poca")
    caplog.set_level(logging.INFO)
    gsde = {"use_expln": True, "squash_output": squash}
    trainer = trainer_of(kind, spec, network_settings={"memory": memory, "gsde": gsde})
    assert trainer.squashed == (squash or kind == "sac")
    if memory is None:
        assert "Test: autograd computes the gradients" in caplog.text
        assert kind == "poca" or "its noise depends on the state (network_settings.gsde)" in caplog.text
    design, before, updates = design_of(spec, trainer.context.settings), trainer.policy().tensors(), 0
    for seed in range(3):
        trainer.add(experience(spec, [16, 12, 8], seed, design.memory_size, design.squashed))
        while trainer.ready():
            trainer.learn()
            updates += 1
    assert updates >= 2
    after = trainer.policy().tensors()
    assert before["log_sigma"].shape[1] == actions.continuous_size
    for name, tensor in after.items():
        assert np.isfinite(tensor).all()
        assert not np.array_equal(tensor, before[name]) or name.startswith("normalizer"), name
    make_policy(design).load(trainer.policy())


def test_noise_of_choices_is_refused_by_name():
    with pytest.raises(StageError, match=r"Test: network_settings.gsde adds noise to continuous actions, but all"):
        trainer_of("ppo", BehaviorSpec("Test", (VECTOR,), DISCRETE), network_settings={"gsde": {}})


def test_actions_without_bounds_can_not_end_at_them():
    spec = BehaviorSpec("Test", (VECTOR,), ActionSpec(3, unbounded=(0, 2)))
    with pytest.raises(StageError, match=r"squash_output squashes actions to their bounds, but actions 0, 2, counted"):
        trainer_of("ppo", spec, network_settings={"gsde": {"squash_output": True}})
