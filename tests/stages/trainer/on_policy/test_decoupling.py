"""Decoupled PPO: the clip is centred on the policy before the update, and rows of older policies weigh less."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from opened_trainers import opened_trainer_of
from tensors import assert_close
from trainer_samples import HYBRID, IMAGE, VECTOR, Reported, all_weights, experience, played

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import clipped_policy_loss

COEFFICIENTS = Coefficients(1e-3, 0.0, epsilon=0.2)
MEMORY = {"memory": {"memory_size": 4, "sequence_length": 4}}
SET = ObservationSpec("set", (4, 5))
MASKED = ActionSpec(2, (3, 2), masked=True)


def test_a_row_s_loss_is_that_of_the_formula():
    """By hand: the policy that acted had 0.5, the one before the update 0.4, the one being trained 0.6; A = 2, ε = 0.2.

    The ratio is 0.6 / 0.4 = 1.5, clipped to 1.2, the weight 0.4 / 0.5 = 0.8: 0.8 · 2 · 1.2 = 1.92. Around the policy that
    acted it would be 2 · min(0.6 / 0.5, 1.2) = 2.4.
    """
    logs = [torch.tensor([[log(p)]], dtype=torch.float64) for p in (0.5, 0.4, 0.6)]
    acted, current, trained = logs
    loss = clipped_policy_loss(trained - current, torch.tensor([[2.0 * 0.8]]), 0.2)
    assert loss.item() == pytest.approx(-1.92)
    assert clipped_policy_loss(trained - acted, torch.tensor([[2.0]]), 0.2).item() == pytest.approx(-2.4)


@pytest.mark.parametrize("per_dimension", [False, True], ids=["joint", "per dimension"])
def test_the_weight_of_a_late_row_equals_that_of_torchs_distributions(per_dimension):
    """All that the update learns from, computed again row by row with torch.distributions."""
    spec = BehaviorSpec("Test", (VECTOR,), MASKED)
    made = lambda decoupled: opened_trainer_of(  # noqa: E731
        "ppo", spec, hyperparameters={"decoupled": decoupled, "ratio_per_dimension": per_dimension}
    )
    trainer, coupled = made(True), made(False)
    batch = experience(spec, [9, 14, 9])
    batch.rows["action_masks"][:20, 0] = False
    batch.rows["discrete_actions"][:20, 0] = 1
    for each in (trainer, coupled):
        each.add(batch)
    found, plain = in_order(trainer), in_order(coupled)
    with torch.no_grad():
        heads = trainer.network.heads(found.inputs)
    for i in range(32):
        gaussian = torch.distributions.Normal(heads[i, :2], trainer.network.log_sigma.detach().exp())
        logits = heads[i, 2:5].clone()
        logits[~torch.from_numpy(batch.rows["action_masks"][i, :3])] = -torch.inf
        chosen = torch.from_numpy(batch.rows["discrete_actions"][i])
        now = [
            *gaussian.log_prob(torch.from_numpy(batch.rows["continuous_actions"][i])).tolist(),
            torch.distributions.Categorical(logits=logits).log_prob(chosen[0]).item(),
            torch.distributions.Categorical(logits=heads[i, 5:]).log_prob(chosen[1]).item(),
        ]
        then = batch.rows["log_probs"][i].tolist()
        if not per_dimension:
            now, then = [sum(now)], [sum(then)]
        weights = [min(exp(a - b), 1.0) for a, b in zip(now, then, strict=True)]
        assert found.old_log_probs[i].tolist() == pytest.approx(now, rel=1e-4, abs=1e-5)
        assert plain.old_log_probs[i].tolist() == pytest.approx(then, rel=1e-5)
        expected = [weight * plain.advantages[i].item() for weight in weights]
        assert found.advantages[i].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert_close(found.returns, plain.returns, msg="value targets are as they were")


def in_order(trainer, batch_size=1000):
    (minibatch,) = trainer.prepare().rollout.in_order(batch_size)
    return minibatch


CASES: dict[str, Any] = {
    "hybrid": ("ppo", (VECTOR,), MASKED, {"normalize": True}, {}),
    "hybrid per dimension": ("ppo", (VECTOR,), MASKED, {}, {"ratio_per_dimension": True}),
    "shared critic": ("ppo", (VECTOR,), HYBRID, {}, {"shared_critic": True}),
    "images and sets": ("ppo", (IMAGE, SET, VECTOR), HYBRID, {}, {}),
    "memory": ("ppo", (VECTOR,), HYBRID, {**MEMORY, "normalize": True}, {}),
    "memory of images": ("ppo", (IMAGE,), HYBRID, MEMORY, {"shared_critic": True}),
    "groups": ("poca", (VECTOR,), MASKED, {"normalize": True}, {}),
    "groups with memory": ("poca", (VECTOR, IMAGE), HYBRID, MEMORY, {"ratio_per_dimension": True}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_every_ratio_is_1_before_the_first_step(case):
    """The policy loss is minus the mean of the weighted advantages then, and its clip leaves no row out."""
    kind, observations, actions, network, hyperparameters = CASES[case]
    spec = BehaviorSpec("Test", observations, actions, grouped=kind == "poca")
    trainer = opened_trainer_of(kind, spec, network_settings=network, hyperparameters=hyperparameters)
    memory = 4 if "memory" in network else 0
    trainer.add(experience(spec, [11, 7, 5, 10], 0, memory))
    rollout = trainer.prepare().rollout
    (minibatches,) = rollout.epochs(1, 16, np.random.default_rng(0))
    seen = 0
    for minibatch in minibatches:
        own = minibatch
        policy = trainer.update.losses(minibatch, COEFFICIENTS)[0][0]
        assert own.advantages.shape == own.old_log_probs.shape
        assert_close(policy, -own.advantages.mean(), rtol=1e-4, atol=1e-6)
        seen += 1
    assert seen


@pytest.mark.parametrize("network", [{}, MEMORY], ids=["feed-forward", "memory"])
@pytest.mark.parametrize("per_dimension", [False, True], ids=["joint", "per dimension"])
def test_rows_of_the_current_policy_are_learned_from_as_without_it_to_rounding(network, per_dimension):
    spec, reported = BehaviorSpec("Test", (VECTOR,), ActionSpec(2, (3,))), Reported()
    trainers = [
        opened_trainer_of(
            "ppo",
            spec,
            statistics=reported,
            network_settings=network,
            hyperparameters={"num_epoch": 3, "decoupled": decoupled, "ratio_per_dimension": per_dimension},
        )
        for decoupled in (True, False)
    ]
    batch = played(trainers[0], spec, 32)
    for trainer in trainers:
        trainer.add(batch)
        trainer.learn()
    np.testing.assert_allclose(all_weights(trainers[0]), all_weights(trainers[1]), rtol=1e-3, atol=2e-5)
    assert reported.values["Policy/Importance Weight"] == [pytest.approx(1.0, abs=1e-5)], "of the decoupled one alone"


def test_the_mean_weight_is_reported_and_falls_with_the_rows_age():
    spec, reported = BehaviorSpec("Test", (VECTOR,), ActionSpec(2)), Reported()
    trainer = opened_trainer_of(
        "ppo", spec, statistics=reported, hyperparameters={"num_epoch": 10, "learning_rate": 0.05}
    )
    batch = played(trainer, spec, 32)
    for _ in range(3):
        trainer.add(batch)
        trainer.learn()
    fresh, late, later = reported.values["Policy/Importance Weight"]
    assert fresh == pytest.approx(1.0, abs=1e-5)
    assert fresh > late > later > 0
