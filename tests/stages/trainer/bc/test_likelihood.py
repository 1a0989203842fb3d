"""What is said of a policy, worked out by hand; what learning does to one."""

from math import log, pi

import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.trainer.bc import LOG_SIGMA_FLOOR, MaximumLikelihood
from headrace.stages.trainer.imitation.cloning import Examples
from headrace.stages.trainer.protocol import new_random

MEMORY = {"memory": {"sequence_length": 4, "memory_size": 4}}


def pupil(actions, **settings):
    design = PolicyDesign(
        BehaviorSpec("Test", (ObservationSpec("v", (2,)),), actions),
        NetworkSettings.model_validate({"hidden_units": 8, "num_layers": 1, **settings}),
    )
    actor = FlatParameters(seeded(new_random(0), lambda: ActorNetwork(design)))
    return design, actor, MaximumLikelihood(design, actor)


def fixed(actor, bias, log_sigma=None):
    """Makes the policy answer the same, whatever it sees."""
    actor.module.action.weight.detach().zero_()
    actor.module.action.bias.detach().copy_(torch.tensor(bias))
    if log_sigma is not None:
        actor.module.log_sigma.detach().copy_(torch.tensor(log_sigma))


def examples(design, continuous=(), choices=(), masks=None, lengths=None):
    n = max(len(continuous), len(choices))
    observed = EncodedObservations(np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32))
    return Examples(
        design,
        observed,
        np.array(continuous, np.float32).reshape(n, -1),
        np.array(choices, np.int64).reshape(n, -1),
        masks,
        np.zeros((n, design.previous_action_size), np.float32),
        np.array([n] if lengths is None else lengths),
    )


@pytest.mark.parametrize("settings", [{}, MEMORY])
def test_continuous_actions_are_judged_by_their_density_and_the_error_of_what_the_environment_gets(settings):
    design, actor, likelihood = pupil(ActionSpec(2, unbounded=(1,)), **settings)
    fixed(actor, [1.5, 2.0], [0.0, log(2.0)])
    found = likelihood.evaluate(examples(design, [[1.5, 2.0], [6.0, 6.0], [0.0, 0.0]], lengths=[2, 1]), None)
    constant = -log(2 * pi) - log(2.0)
    assert found["Log Likelihood"] == pytest.approx(
        constant - 0.5 * np.mean([0, 4.5**2 + (4 / 2) ** 2, 1.5**2 + (2 / 2) ** 2])
    )
    # In the first dimension the environment gets clip(a, -3, 3) / 3, in the second the action as it is.
    assert found["Error"] == pytest.approx(np.mean([0, 0, 0.5**2, 4**2, 0.5**2, 2**2]))
    assert "Accuracy" not in found


@pytest.mark.parametrize("settings", [{}, MEMORY])
def test_choices_are_judged_by_their_probability_and_the_share_that_is_the_most_likely_one(settings):
    design, actor, likelihood = pupil(ActionSpec(0, (2, 3)), **settings)
    fixed(actor, [log(1.0), log(3.0), log(5.0), log(2.0), log(1.0)])
    found = likelihood.evaluate(examples(design, choices=[[1, 0], [0, 0], [0, 1]], lengths=[1, 2]), None)
    assert found["Log Likelihood"] == pytest.approx(np.mean(np.log([3 / 4 * 5 / 8, 1 / 4 * 5 / 8, 1 / 4 * 2 / 8])))
    assert found["Accuracy"] == pytest.approx(3 / 6)
    assert "Error" not in found


def test_masked_choices_have_no_likelihood():
    design, actor, likelihood = pupil(ActionSpec(0, (3,), masked=True))
    fixed(actor, [log(1.0), log(2.0), log(5.0)])
    masks = np.array([[True, True, False]])
    found = likelihood.evaluate(examples(design, choices=[[1]], masks=masks), None)
    assert found["Log Likelihood"] == pytest.approx(log(2 / 3))
    assert found["Accuracy"] == 1


@pytest.mark.lengthy
def test_learning_finds_the_experts_mean_and_spread():
    design, actor, likelihood = pupil(ActionSpec(1))
    drawn = np.random.default_rng(1).normal(1.2, 0.3, (512, 1))
    for _ in range(30):
        likelihood.learn(examples(design, drawn), None, 1, 64, 1e-2, new_random(0))
    with torch.no_grad():
        assert actor.module.log_sigma.exp().item() == pytest.approx(0.3, rel=0.1)


@pytest.mark.lengthy
def test_the_spread_never_falls_below_its_floor():
    design, actor, likelihood = pupil(ActionSpec(1))
    fixed(actor, [0.5], [LOG_SIGMA_FLOOR + 0.01])
    loss = likelihood.learn(examples(design, [[0.5]] * 64), None, 20, 8, 1e-2, new_random(0))
    assert np.isfinite(loss)
    assert actor.module.log_sigma.item() == pytest.approx(LOG_SIGMA_FLOOR, abs=0.03)


@pytest.mark.parametrize(("settings", "per_epoch"), [({}, 4), (MEMORY, 5)])
def test_every_epoch_uses_every_step_in_batches_of_at_most_the_configured_size(settings, per_epoch):
    design, _, likelihood = pupil(ActionSpec(1), **settings)
    # 31 steps in batches of 8; or 9 sequences of 4 at most, two at a time.
    likelihood.learn(examples(design, [[0.5]] * 31, lengths=[9, 22]), None, 3, 8, 1e-3, new_random(0))
    assert likelihood.state_dict()["steps"] == 3 * per_epoch


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was():
    design, actor, likelihood = pupil(ActionSpec(1))
    fixed(actor, [np.inf])
    before = actor.values.clone()
    with pytest.raises(NotFiniteError, match="Test: a loss or a weight became NaN or infinite"):
        likelihood.learn(examples(design, [[0.5]] * 8), None, 1, 4, 1e-2, new_random(0))
    assert torch.equal(actor.values, before)
    assert likelihood.state_dict()["steps"] == 0
