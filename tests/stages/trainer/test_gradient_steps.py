"""Trainers report how many gradient steps their policies have had, also across a resume."""

import pytest
from trainer_samples import CONTINUOUS, VECTOR, Reported, experience, trainer_of

from headrace.queues.specs import BehaviorSpec

STEPS = "Policy/Gradient Steps"
SIZES = {"batch_size": 8, "buffer_size": 32, "num_epoch": 3}


@pytest.mark.parametrize(
    ("kind", "hyperparameters", "grouped", "per_call"),
    [
        ("ppo", SIZES, False, 12),
        ("poca", SIZES, True, 12),
        ("impala", {"batch_size": 2, "unroll_length": 16}, False, 1),
        ("sac", {"batch_size": 8, "buffer_size": 500, "steps_per_update": 4}, False, 8),
        ("bc", {**SIZES, "held_out": 0}, False, 12),
    ],
)
def test_gradient_steps_are_counted_from_the_start_of_training(kind, hyperparameters, grouped, per_call):
    spec = BehaviorSpec("Test", (VECTOR,), CONTINUOUS, grouped=grouped)
    first, second = Reported(), Reported()
    trainer = trainer_of(kind, spec, statistics=first, hyperparameters=hyperparameters)
    for seed in range(2):
        learn(trainer, seed)
    again = trainer_of(kind, spec, statistics=second, hyperparameters=hyperparameters)
    again.load_state_dict(trainer.state_dict())
    learn(again, 2)
    assert first.values[STEPS] == [per_call, 2 * per_call]
    assert second.values[STEPS] == [3 * per_call]
    assert first.hows[STEPS] == "last"


def learn(trainer, seed):
    trainer.add(experience(trainer.context.spec, [16, 16], seed, squashed=trainer.squashed))
    assert trainer.ready()
    trainer.learn()
