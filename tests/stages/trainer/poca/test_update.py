import numpy as np
import pytest
import torch
from trainer_samples import DISCRETE, VECTOR, experience, trainer_of

from queues.specs import BehaviorSpec
from stages.trainer.on_policy.update import Coefficients

SPEC = BehaviorSpec("Test", (VECTOR,), DISCRETE, grouped=True)
COEFFICIENTS = Coefficients(1e-3, 0.2, 0.01)


@pytest.fixture
def trainer():
    made = trainer_of("poca", SPEC, hyperparameters={"batch_size": 36, "buffer_size": 36})
    made.add(experience(SPEC, [12, 12, 12], 0))
    return made


def minibatch_of(trainer):
    rewards = trainer._groups.received(trainer._buffer)[:, None].astype(np.float64)
    prepared = trainer._groups.prepare(trainer._buffer, rewards, None)
    (minibatches,) = prepared.rollout.epochs(1, 36, np.random.default_rng(0))
    (minibatch,) = minibatches
    return minibatch


def test_the_weighted_losses_are_those_of_the_formula(trainer):
    """L = L_policy + 0.5 (L_V + 0.5 L_b) - β H."""
    batch = minibatch_of(trainer)
    policy, value, baseline, entropy = trainer._update.losses(batch, COEFFICIENTS)
    trainer._network.gradients.zero_()
    (policy + 0.5 * (value + 0.5 * baseline) - 0.01 * entropy).backward()
    expected = trainer._network.gradients.clone()
    trainer._network.gradients.zero_()
    losses = trainer._update.losses(batch, COEFFICIENTS)
    torch.autograd.backward(losses, trainer._update._loss_weights(COEFFICIENTS))
    torch.testing.assert_close(trainer._network.gradients, expected)


def test_before_the_first_step_the_policy_loss_is_that_of_unchanged_ratios(trainer):
    batch = minibatch_of(trainer)
    policy, value, baseline, _ = trainer._update.losses(batch, COEFFICIENTS)
    values, baselines = trainer._network.judge(batch.teams)
    assert value.item() == pytest.approx((values - batch.own.returns).square().mean().item())
    torch.testing.assert_close(baselines, batch.old_baselines, msg="nothing is clipped yet")
    assert baseline.item() == pytest.approx((baselines - batch.own.returns).square().mean().item())
    assert torch.isfinite(policy)


def test_every_parameter_of_actor_and_critic_learns(trainer):
    losses = trainer._update.losses(minibatch_of(trainer), COEFFICIENTS)
    trainer._network.gradients.zero_()
    torch.autograd.backward(losses[:3], [torch.tensor(1.0)] * 3)
    named = trainer._network.named_views(trainer._network.gradients)
    silent = [name for name, gradient in named.items() if not gradient.abs().max() and not name.endswith("key.bias")]
    assert not silent
