import numpy as np
import pytest
import torch
from opened_trainers import opened_trainer_of
from tensors import assert_close
from trainer_samples import DISCRETE, VECTOR, experience

from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.poca import baseline_loss

SPEC = BehaviorSpec("Test", (VECTOR,), DISCRETE, grouped=True)
COEFFICIENTS = Coefficients(1e-3, 0.01, epsilon=0.2)


@pytest.fixture
def trainer():
    made = opened_trainer_of("poca", SPEC, hyperparameters={"batch_size": 36, "buffer_size": 36})
    made.add(experience(SPEC, [12, 12, 12], 0))
    return made


def minibatch_of(trainer):
    (minibatches,) = trainer.prepare().rollout.epochs(1, 36, np.random.default_rng(0))
    (minibatch,) = minibatches
    return minibatch


def test_the_weighted_losses_are_those_of_the_formula(trainer):
    """L = L_policy + 0.5 (L_V + 0.5 L_b) - β H."""
    batch = minibatch_of(trainer)
    policy, value, baseline, entropy = trainer.update.losses(batch, COEFFICIENTS)[0]
    trainer.network.gradients.zero_()
    (policy + 0.5 * (value + 0.5 * baseline) - 0.01 * entropy).backward()
    expected = trainer.network.gradients.clone()
    trainer.network.gradients.zero_()
    losses, _ = trainer.update.losses(batch, COEFFICIENTS)
    (torch.stack(losses) @ trainer.update.loss_weights(COEFFICIENTS)).backward()
    assert_close(trainer.network.gradients, expected)


def test_before_the_first_step_the_policy_loss_is_that_of_unchanged_ratios(trainer):
    batch = minibatch_of(trainer)
    policy, value, baseline, _ = trainer.update.losses(batch, COEFFICIENTS)[0]
    values, baselines, _ = trainer.network.module.critic(batch.teams)
    assert value.item() == pytest.approx((values - batch.returns).square().mean().item())
    assert_close(baselines, batch.old_baselines, msg="nothing is clipped yet")
    assert baseline.item() == pytest.approx((baselines - batch.returns).square().mean().item())
    assert torch.isfinite(policy)


def test_every_parameter_of_actor_and_critic_learns(trainer):
    losses, _ = trainer.update.losses(minibatch_of(trainer), COEFFICIENTS)
    trainer.network.gradients.zero_()
    torch.autograd.backward(losses[:3], [torch.tensor(1.0)] * 3)
    named = trainer.network.named_views(trainer.network.gradients)
    silent = [name for name, gradient in named.items() if not gradient.abs().max() and not name.endswith("key.bias")]
    assert not silent


def loss(baseline, old, target, epsilon=0.2):
    baseline = torch.tensor([[baseline]], requires_grad=True)
    value = baseline_loss(baseline, torch.tensor([[old]]), torch.tensor([[target]]), epsilon)
    value.backward()
    return value.item(), baseline.grad.item()


def test_within_the_clip_range_it_is_the_squared_error():
    value, slope = loss(1.1, 1.0, 2.0)
    assert value == pytest.approx(0.81)
    assert slope == pytest.approx(-1.8)


def test_beyond_the_clip_range_towards_the_target_the_gradient_is_zero():
    value, slope = loss(1.5, 1.0, 2.0)
    assert value == pytest.approx(0.64), "that of 1.2"
    assert slope == 0.0


def test_beyond_it_away_from_the_target_the_way_back_stays_open():
    value, slope = loss(0.5, 1.0, 2.0)
    assert value == pytest.approx(2.25)
    assert slope == pytest.approx(-3.0)


def test_the_value_loss_is_the_mean_over_rows_and_signals():
    baselines, old = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    value = baseline_loss(baselines, old, torch.zeros(2, 2), 0.2)
    assert value.item() == pytest.approx((1 + 4 + 9 + 16) / 4)
