"""Trainers whose hidden products are in bfloat16: the same states and policies, and each precision exact against itself."""

import numpy as np
import pytest
from trainer_samples import IMAGE, VECTOR, experience, flat_weights

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.policy.design import BF16, TORCHS_OWN
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import TrainerContext

CASES = pytest.mark.parametrize(
    ("kind", "observation", "hyperparameters", "autograd"),
    [
        ("sac", VECTOR, {"batch_size": 16, "steps_per_update": 4}, False),
        ("ppo", IMAGE, {"batch_size": 16, "buffer_size": 32, "num_epoch": 1}, False),
        ("ppo", VECTOR, {"batch_size": 16, "buffer_size": 32, "num_epoch": 1}, False),
        ("ppo", VECTOR, {"batch_size": 16, "buffer_size": 32, "num_epoch": 1}, True),
    ],
    ids=["sac", "images", "manual gradients", "autograd"],
)


def trainer_with(bf16, kind, observation, hyperparameters, autograd):
    spec = BehaviorSpec("Test", (observation,), ActionSpec(2))
    block = {
        "trainer_type": kind,
        "hyperparameters": hyperparameters,
        "network_settings": {"hidden_units": 128, "num_layers": 2},
    }
    return make_trainer(
        TrainerContext(
            "Test",
            BehaviorSettings.model_validate(block),
            spec,
            products=BF16 if bf16 else TORCHS_OWN,
            accelerated=not autograd,
        )
    )


def learned(trainer, seeds):
    for seed in seeds:
        trainer.add(experience(trainer.context.spec, [16, 16], seed, squashed=trainer.squashed))
        trainer.learn()
    return flat_weights(trainer)


@pytest.mark.lengthy
@CASES
def test_each_precision_gives_the_same_weights_again_and_both_nearly_the_same(
    kind, observation, hyperparameters, autograd
):
    plain, rounded, again = (
        learned(trainer_with(bf16, kind, observation, hyperparameters, autograd), range(2))
        for bf16 in (False, True, True)
    )
    assert np.array_equal(rounded, again)
    assert not np.array_equal(plain, rounded)
    np.testing.assert_allclose(rounded, plain, atol=0.01)


@CASES
def test_a_state_saved_in_one_precision_resumes_in_the_other(kind, observation, hyperparameters, autograd):
    first = observation is VECTOR and not autograd  # in bfloat16, else in float32
    saved = trainer_with(first, kind, observation, hyperparameters, autograd)
    learned(saved, [0])
    resumed = trainer_with(not first, kind, observation, hyperparameters, autograd)
    resumed.load_state_dict(saved.state_dict())
    ours, theirs = resumed.policy(), saved.policy()
    assert ours.weights.dtype == np.float32
    assert ours.layout == theirs.layout
    assert np.array_equal(ours.weights, theirs.weights)
    assert np.isfinite(learned(resumed, [1])).all()
