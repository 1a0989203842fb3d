"""Whole updates whose actor's gradients are found by hand are those of autograd, and each way repeats itself exactly."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from trainer_samples import (
    CONTINUOUS,
    DISCRETE,
    HYBRID,
    IMAGE,
    VECTOR,
    Reported,
    all_weights,
    context_of,
    experience,
)

from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.factory import make_trainer


def poca(autograd, actions=HYBRID, observed=(VECTOR,), statistics=None, network=None, **hyperparameters):
    spec = BehaviorSpec("Test", observed, replace(actions, masked=bool(actions.discrete_branches)), grouped=True)
    hyperparameters = {"num_epoch": 3, **hyperparameters}
    context = context_of(
        "poca", spec, statistics=statistics, hyperparameters=hyperparameters, network_settings=network or {}
    )
    return make_trainer(replace(context, autograd=autograd))


def learned(trainer, updates=4):
    for seed in range(updates):
        trainer.add(experience(trainer.context.spec, [16, 16], seed))
        trainer.learn()
    return all_weights(trainer)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("actions", "hyperparameters"),
    [
        (HYBRID, {}),
        (CONTINUOUS, {"max_grad_norm": 0.1, "decoupled": True}),
        (HYBRID, {"ratio_per_dimension": True, "beta": 0.1}),
        (DISCRETE, {"target_kl": 1e-3, "beta": 0.0}),
    ],
    ids=str,
)
def test_both_ways_end_in_the_same_weights_and_report_the_same(actions, hyperparameters):
    by_hand, by_autograd = Reported(), Reported()
    ours = learned(poca(False, actions, statistics=by_hand, **hyperparameters))
    theirs = learned(poca(True, actions, statistics=by_autograd, **hyperparameters))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    assert by_hand.values.keys() == by_autograd.values.keys()
    for name, values in by_hand.values.items():
        np.testing.assert_allclose(values, by_autograd.values[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.lengthy
@pytest.mark.parametrize("autograd", [False, True])
def test_updates_are_reproducible_and_resume_from_a_saved_state(autograd):
    whole, again, resumed = (poca(autograd) for _ in range(3))
    np.testing.assert_array_equal(learned(whole, 2), learned(again, 2))
    resumed.load_state_dict(whole.state_dict())
    np.testing.assert_array_equal(learned(whole), learned(resumed))


@pytest.mark.lengthy
def test_a_state_saved_with_autograd_resumes_with_gradients_by_hand():
    saved, resumed = poca(True), poca(False)
    learned(saved, 2)
    resumed.load_state_dict(saved.state_dict())
    np.testing.assert_allclose(learned(saved), learned(resumed), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("autograd", "observed", "network", "why"),
    [
        (False, (VECTOR,), {}, None),
        (True, (VECTOR,), {}, "torch_settings.gradients requests autograd"),
        (False, (VECTOR, IMAGE), {}, "its actor is more than a perceptron over vectors"),
        (False, (VECTOR,), {"memory": {"memory_size": 4}}, "its actor is more than a perceptron over vectors"),
    ],
)
def test_a_trainer_finds_them_by_hand_where_it_can_and_says_where_it_cannot(autograd, observed, network, why, caplog):
    with caplog.at_level(logging.INFO):
        poca(autograd, observed=observed, network=network)
    said = [record.getMessage() for record in caplog.records if "autograd" in record.getMessage()]
    expected = f"Test: autograd computes the gradients, which is slower than the built-in formulas: {why}."
    assert said == ([] if why is None else [expected])
