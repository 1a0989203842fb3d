"""One gradient step against an independent reference: NumPy in float64, networks and losses written out anew."""

from math import log

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings, SACHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.protocol import new_random
from headrace.stages.trainer.replay.replay_memory import ReplayMinibatch
from headrace.stages.trainer.sac import SACNetworks, SACUpdate

B, V, S = 6, 3, 2
CONTINUOUS, DISCRETE, HYBRID = ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(2, (3, 2))
MASKED, MASKED_HYBRID = ActionSpec(0, (3, 2), masked=True), ActionSpec(2, (3, 2), masked=True)
KINDS = pytest.mark.parametrize(
    "actions",
    [CONTINUOUS, DISCRETE, MASKED, HYBRID, MASKED_HYBRID],
    ids=["continuous", "discrete", "masked", "hybrid", "masked hybrid"],
)
SETTINGS = NetworkSettings(hidden_units=8, num_layers=1, activation="tanh")


def follows_q(actions):
    """Whether what comes next is valued by targets of both Qs, not of V."""
    return actions.continuous_size > 0 and not actions.masked


def make_update(actions, **hyperparameters):
    design = PolicyDesign(BehaviorSpec("Test", (ObservationSpec("o", (V,)),), actions), SETTINGS, squashed=True)
    given = SACHyperparameters.model_validate({"init_entcoef": 0.3, "tau": 0.25, **hyperparameters})
    return SACUpdate(SACNetworks.drawn(design, given, S, new_random(4), "cpu"), design, given)


def make_batch(actions, seed=0):
    random = np.random.default_rng(seed)
    inputs, following = (Inputs(_floats(random.normal(size=(B, V)))) for _ in range(2))
    continuous = _floats(np.tanh(random.normal(size=(B, actions.continuous_size))))
    choices, begin = [], 0
    for size in actions.discrete_branches:
        choices.append(torch.from_numpy(begin + random.integers(0, size, (B, 1))))
        begin += size
    penalties = allowed = None
    if actions.masked:
        masks = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 0, 0, 1, 1], [1, 1, 1, 0, 1]] + [[0, 1, 1, 1, 0]] * 2)
        penalties = _floats(np.where(masks, 0.0, MASK_PENALTY))
        allowed = _floats(np.stack([masks[:, :3].sum(axis=1), masks[:, 3:].sum(axis=1)], axis=1))
    return ReplayMinibatch(inputs, inputs, following, continuous, tuple(choices), penalties, allowed, None)


def make_rest(actions, seed=1):
    """Rewards, discounts and noise."""
    random = np.random.default_rng(seed)
    discounts = np.array([0.9, 0.5]) * (1.0 - np.array([[0, 0], [1, 0]] + [[0, 0]] * (B - 2)))
    return (
        _floats(random.normal(size=(B, S))),
        _floats(discounts),
        _floats(random.normal(size=((2 if follows_q(actions) else 1) * B, actions.continuous_size))),
    )


def _floats(array):
    return torch.from_numpy(np.asarray(array, np.float32))


def run(update, batch, rest, learning_rate=0.01):
    """What a step finds, and the gradients that it took."""
    rewards, discounts, noise = rest
    measures = update.step(batch, rewards, discounts, noise, learning_rate)
    gradients = {
        name: {key: view.numpy().copy() for key, view in flat.named_views(flat.gradients).items()}
        for name, flat in (("actor", update.actor), ("critics", update.critics), ("coefficients", update.coefficients))
    }
    return measures, gradients


class Reference:
    """The losses as functions of all weights, in float64."""

    def __init__(self, weights, actions, batch, rest):
        self.weights = {
            name: {key: array.astype(np.float64) for key, array in part.items()} for name, part in weights.items()
        }
        self.actions = actions
        self.inputs, self.following = (i.vectors.double().numpy() for i in (batch.critic_inputs, batch.target_inputs))
        self.taken = batch.continuous.double().numpy()
        self.choices = [choice.numpy()[:, 0] for choice in batch.choices]
        self.penalties = None if batch.penalties is None else batch.penalties.double().numpy()
        self.rewards, self.discounts, self.noise = (tensor.double().numpy() for tensor in rest)

    def dense(self, part, prefix, head, x):
        w = self.weights[part]
        hidden = np.tanh(x @ w[f"{prefix}body.layers.0.weight"].T + w[f"{prefix}body.layers.0.bias"])
        return hidden @ w[f"{prefix}{head}.weight"].T + w[f"{prefix}{head}.bias"]

    def q(self, name, continuous, part="critics", inputs=None):
        x = np.concatenate((self.inputs if inputs is None else inputs, continuous), axis=1)
        return self.dense(part, f"{name}.", "head", x).reshape(B, S, -1)

    def policy(self, inputs=None, noise=None):
        """Continuous actions, probabilities per branch, and negentropies [B, G]."""
        inputs, noise = (self.inputs, self.noise[:B]) if inputs is None else (inputs, noise)
        heads, c = self.dense("actor", "", "action", inputs), self.actions.continuous_size
        drawn, shares, negentropies = np.empty((B, 0)), [], []
        if c:
            sigma = np.exp(np.clip(heads[:, c : 2 * c], -20, 2))
            u = heads[:, :c] + sigma * noise
            density = -0.5 * noise**2 - np.log(sigma) - 0.5 * log(2 * np.pi)
            negentropies.append((density - np.log(1 - np.tanh(u) ** 2)).sum(axis=1))
            drawn = np.tanh(u)
        at = 2 * c
        for size in self.actions.discrete_branches:
            logits = heads[:, at : at + size]
            if self.penalties is not None:
                logits = logits + self.penalties[:, at - 2 * c : at - 2 * c + size]
            e = np.exp(logits - logits.max(axis=1, keepdims=True))
            share = e / e.sum(axis=1, keepdims=True)
            shares.append(share)
            logs = np.log(np.where(share > 0, share, 1.0))
            negentropies.append((share * logs).sum(axis=1))
            at += size
        return drawn, shares, np.stack(negentropies, axis=1)

    def soft(self, part="critics", inputs=None, noise=None):
        """Soft value [B, S] of the policy: by the rules, per kind of action."""
        drawn, shares, negentropies = self.policy(inputs, noise)
        alphas, branches = np.exp(self.weights["coefficients"]["logs"]), len(self.actions.discrete_branches)
        expected = []
        for name in ("q1", "q2"):
            q = self.q(name, drawn, part, inputs)
            if not branches:
                expected.append(q[:, :, 0])
                continue
            splits = np.split(q, np.cumsum(self.actions.discrete_branches)[:-1], axis=2)
            terms = [np.einsum("ba,bsa->bs", p, part) for p, part in zip(shares, splits, strict=True)]
            expected.append(sum(terms) / branches)
        value, group = np.minimum(*expected), 0
        if self.actions.continuous_size:
            value = value - (alphas[0] * negentropies[:, 0])[:, None]
            group = 1
        for branch in range(branches):
            value = value - (alphas[group + branch] * negentropies[:, group + branch])[:, None] / branches
        return value

    def following_value(self):
        """By the target of V, or the soft value of what the policy would do there, by the targets of Q."""
        if follows_q(self.actions):
            return self.soft("target", self.following, self.noise[B:])
        return self.dense("target", "", "head", self.following)

    def q_loss(self, name):
        target = self.rewards + self.discounts * self.following_value()
        q = self.q(name, self.taken)
        if self.choices:
            picked = [q[np.arange(B), :, choice] for choice in self.choices]
            found = sum(picked) / len(picked)
        else:
            found = q[:, :, 0]
        return 0.5 * ((found - target) ** 2).mean()

    def value_loss(self, soft):
        if follows_q(self.actions):  # there is no V: what is told is how well values are learned, which are Q's
            return (self.q_loss("q1") + self.q_loss("q2")) / 2
        return 0.5 * ((self.dense("critics", "value.", "head", self.inputs) - soft) ** 2).mean()

    def policy_loss(self):
        return -self.soft().mean()

    def slope(self, part, key, index, loss):
        """Central difference of a loss by one weight."""
        array, step = self.weights[part][key], 1e-5
        before = array[index]
        values = []
        for sign in (1, -1):
            array[index] = before + sign * step
            values.append(loss())
        array[index] = before
        return (values[0] - values[1]) / (2 * step)


@KINDS
def test_losses_and_gradients_are_those_of_the_formulae(actions):
    update, batch, rest = make_update(actions), make_batch(actions), make_rest(actions)
    reference = Reference(update.weights(), actions, batch, rest)
    measures, gradients = run(update, batch, rest)
    soft = reference.soft()
    losses = [reference.policy_loss(), reference.q_loss("q1"), reference.q_loss("q2"), reference.value_loss(soft)]
    np.testing.assert_allclose(measures.losses, losses, rtol=1e-4)
    targets = reference.rewards + reference.discounts * reference.following_value()
    np.testing.assert_allclose(measures.targets, targets, rtol=1e-3, atol=1e-4)
    squares = [sum((view**2).sum() for view in gradients[name].values()) for name in ("actor", "critics")]
    np.testing.assert_allclose(update.gradient_norms(), np.sqrt(squares), rtol=1e-4)

    def critic_loss():
        value_loss = 0.0 if follows_q(actions) else reference.value_loss(soft)
        return reference.q_loss("q1") + reference.q_loss("q2") + value_loss

    random = np.random.default_rng(2)
    for part, loss in (("actor", reference.policy_loss), ("critics", critic_loss)):
        for key, found in gradients[part].items():
            index = tuple(int(random.integers(size)) for size in found.shape)
            assert found[index] == pytest.approx(reference.slope(part, key, index, loss), rel=1e-3, abs=1e-6), key


@pytest.mark.parametrize("target", [None, -0.75])
@pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE, HYBRID], ids=["continuous", "discrete", "hybrid"])
def test_coefficients_move_towards_their_target_entropy(actions, target):
    update, batch, rest = make_update(actions, target_entropy=target), make_batch(actions), make_rest(actions)
    _, _, negentropies = Reference(update.weights(), actions, batch, rest).policy()
    targets = ([target or -2.0] if actions.continuous_size else []) + [
        0.2 * log(size) for size in actions.discrete_branches
    ]
    _, gradients = run(update, batch, rest)
    expected = -(negentropies.mean(axis=0) + np.array(targets))
    np.testing.assert_allclose(gradients["coefficients"]["logs"], expected, rtol=1e-4)
    # Adam's first step is the learning rate, against the gradient's sign
    expected_logs = log(0.3) - 0.01 * np.sign(expected)
    np.testing.assert_allclose(update.coefficients.module.logs.detach(), expected_logs, rtol=1e-4)


def test_the_target_entropy_of_choices_counts_only_those_that_are_allowed():
    update, batch, rest = make_update(MASKED), make_batch(MASKED), make_rest(MASKED)
    _, _, negentropies = Reference(update.weights(), MASKED, batch, rest).policy()
    targets = 0.2 * np.log(batch.allowed.numpy())
    _, gradients = run(update, batch, rest)
    np.testing.assert_allclose(gradients["coefficients"]["logs"], -(negentropies + targets).mean(axis=0), rtol=1e-4)


def test_a_fixed_coefficient_stays():
    update = make_update(HYBRID, entropy_coefficient="fixed")
    run(update, make_batch(HYBRID), make_rest(HYBRID))
    np.testing.assert_allclose(update.coefficients.module.logs.detach().exp(), [0.3, 0.3, 0.3], rtol=1e-6)


@KINDS
def test_the_target_follows_v_or_of_continuous_actions_without_masks_both_qs(actions):
    update = make_update(actions)
    before = update.weights()
    prefix = "" if follows_q(actions) else "value."
    assert before["target"].keys() == {key.removeprefix(prefix) for key in before["critics"] if key.startswith(prefix)}
    for key, array in before["target"].items():
        np.testing.assert_array_equal(array, before["critics"][f"{prefix}{key}"])
    run(update, make_batch(actions), make_rest(actions))
    after = update.weights()
    for key, array in after["target"].items():
        expected = 0.75 * before["target"][key] + 0.25 * after["critics"][f"{prefix}{key}"]
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)


def test_forbidden_choices_have_no_probability_and_no_gradient():
    update, batch = make_update(MASKED), make_batch(MASKED)
    _, probabilities, negentropies = update._draw(batch.actor_inputs, torch.empty((B, 0)), batch.penalties)
    assert (probabilities[batch.penalties < 0] == 0.0).all()
    assert torch.isfinite(negentropies).all()
    assert_close(negentropies[2, 0], torch.tensor(0.0))  # one choice is left: no entropy
    negentropies.sum().backward()
    assert torch.isfinite(update.actor.gradients).all()


def test_a_failed_update_leaves_weights_and_optimizers_unchanged():
    update, batch, rest = make_update(HYBRID), make_batch(HYBRID), make_rest(HYBRID)
    run(update, batch, rest)
    with pytest.raises(NotFiniteError), update.undone_on_failure():
        first, _ = run(update, batch, rest)
        weights = update.weights()
        raise NotFiniteError("a loss is NaN")
    again, _ = run(update, batch, rest)
    assert_close(first.losses, again.losses, rtol=0, atol=0)
    for name, part in update.weights().items():
        for key, array in part.items():
            np.testing.assert_array_equal(array, weights[name][key])
