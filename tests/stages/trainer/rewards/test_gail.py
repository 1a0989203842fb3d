"""Generative adversarial imitation: rewards and losses against the formulae written out, and what they do."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.rewards.gail import discrimination_loss, imitation_rewards


class FixedChance:
    """Stands in for a generator: always the first demonstrated steps, the same share, the same noise."""

    def __init__(self, share, noise):
        self.share, self.noise = share, noise

    def integers(self, high, size):
        return np.arange(size) % high

    def random(self, size, dtype):
        return np.full(size, self.share, dtype)

    def standard_normal(self, size, dtype):
        return np.full(size, self.noise, dtype)


class WrittenOut:
    """The discriminator in float64, from the weights of a signal with one hidden layer."""

    def __init__(self, signal):
        self.weights = {name: w.astype(np.float64) for name, w in signal.state_dict()["network"]["weights"].items()}

    def means(self, seen):
        hidden = seen @ self.weights["body.layers.0.weight"].T + self.weights["body.layers.0.bias"]
        hidden = hidden / (1.0 + np.exp(-hidden))
        if "sigma" not in self.weights:
            return hidden
        return hidden @ self.weights["bottleneck.weight"].T + self.weights["bottleneck.bias"]

    def probability(self, seen, noise=0.0):
        z = self.means(seen) + noise * self.weights.get("sigma", 0.0)
        return 1.0 / (1.0 + np.exp(-(z @ self.weights["estimate.weight"][0] + self.weights["estimate.bias"])))

    def penalty(self, points, step=1e-5):
        slopes = [
            (self.probability(points + step * axis) - self.probability(points - step * axis)) / (2 * step)
            for axis in np.eye(points.shape[1])
        ]
        return ((np.linalg.norm(slopes, axis=0) - 1.0) ** 2).mean()


def seen_by(transitions):
    """What a discriminator with actions sees of transitions with branches of 3 and 2 choices: [B, 3 + 7 + 1]."""
    choices = transitions.choices.numpy()
    parts = [transitions.inputs.vectors, transitions.continuous, np.eye(3)[choices[:, 0]], np.eye(2)[choices[:, 1]]]
    return np.hstack([*parts, transitions.terminated.numpy()[:, None]])


def as_transitions(demonstrations, make_transitions):
    n = len(demonstrations)
    return make_transitions(
        demonstrations.spec,
        n,
        inputs=Inputs.from_encoded(ObservationLayout(demonstrations.spec).encode(demonstrations.observations)),
        continuous=torch.from_numpy(demonstrations.continuous),
        choices=torch.from_numpy(demonstrations.choices),
    )


def test_reward_is_minus_log_of_one_minus_d():
    d = torch.tensor([0.0, 0.5, 0.9], dtype=torch.float64)
    expected = [-math.log(1.0 - p * (1.0 - 1e-7)) for p in d.tolist()]
    np.testing.assert_allclose(imitation_rewards(torch.logit(d)), expected, rtol=1e-9, atol=1e-12)


def test_reward_stays_finite_and_exact_if_the_discriminator_is_sure():
    assert imitation_rewards(torch.tensor([200.0])).item() == pytest.approx(-math.log(1e-7), rel=1e-6)
    assert imitation_rewards(torch.tensor([-200.0])).item() == 0.0


def test_discrimination_loss_is_the_cross_entropy_of_both_sides():
    expert, own = torch.tensor([0.8, 0.5], dtype=torch.float64), torch.tensor([0.1, 0.5], dtype=torch.float64)
    expected = -np.mean([math.log(0.8) + math.log(0.9), math.log(0.5) + math.log(0.5)])
    assert discrimination_loss(torch.logit(expert), torch.logit(own)).item() == pytest.approx(expected, rel=1e-6)


def test_discrimination_loss_is_bounded_if_the_discriminator_errs():
    loss = discrimination_loss(torch.tensor([-200.0]), torch.tensor([200.0]))
    assert loss.item() == pytest.approx(-2 * math.log(1e-7), rel=1e-6)


def test_reward_comes_from_observations_actions_and_end(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal = make_signal("gail", spec, use_actions=True)
    transitions = make_transitions(spec, 6, terminated=torch.tensor([0.0, 1.0] * 3))
    d = WrittenOut(signal).probability(seen_by(transitions))
    np.testing.assert_allclose(signal.rewards(transitions), -np.log(1.0 - d * (1.0 - 1e-7)), rtol=1e-5)
    assert not signal.ignores_termination


def test_without_use_actions_only_observations_count(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal, transitions = make_signal("gail", spec), make_transitions(spec, 6)
    other = replace(transitions, continuous=-transitions.continuous, terminated=torch.ones(6))
    assert signal.rewards(transitions).tolist() == signal.rewards(other).tolist()


@pytest.mark.parametrize("use_vail", [False, True])
def test_loss_is_discrimination_and_ten_penalties_and_the_bottleneck(
    make_spec, make_signal, make_transitions, make_demonstrations, use_vail
):
    spec = make_spec()
    demonstrations = make_demonstrations(spec, (4, 2), terminated=(False, True))
    signal = make_signal("gail", spec, demonstrations=demonstrations, use_actions=True, use_vail=use_vail)
    signal.load_state_dict({**signal.state_dict(), "beta": 0.25})
    network, signal.random = WrittenOut(signal), FixedChance(share=0.25, noise=0.5)
    own = make_transitions(spec, 6, terminated=torch.tensor([0.0, 1.0] * 3))
    ends = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])  # the second trajectory terminated, the first was cut
    expert_seen = seen_by(replace(as_transitions(demonstrations, make_transitions), terminated=ends))
    own_seen = seen_by(own)

    loss, reported = signal.losses(own)

    expert_d, own_d = network.probability(expert_seen, 0.5), network.probability(own_seen, 0.5)
    discrimination = -(np.log(expert_d) + np.log(1.0 - own_d)).mean()
    penalty = network.penalty(0.25 * expert_seen + 0.75 * own_seen)
    expected = discrimination + 10.0 * penalty
    assert reported["Losses/GAIL Loss"].item() == pytest.approx(discrimination, rel=1e-4)
    assert reported["Policy/GAIL Grad Mag Loss"].item() == pytest.approx(10.0 * penalty, rel=1e-4)
    assert reported["Policy/GAIL Expert Estimate"].item() == pytest.approx(expert_d.mean(), rel=1e-4)
    assert reported["Policy/GAIL Policy Estimate"].item() == pytest.approx(own_d.mean(), rel=1e-4)
    assert ("Losses/GAIL KL Loss" in reported) == use_vail
    if use_vail:
        # With σ = 1, as at the start, the divergence of each side is half its squared mean.
        divergence = (0.5 * network.means(expert_seen) ** 2 + 0.5 * network.means(own_seen) ** 2).sum(axis=1).mean()
        assert reported["Losses/GAIL KL Loss"].item() == pytest.approx(divergence, rel=1e-4)
        expected += 0.25 * (divergence - 0.5)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_beta_follows_the_divergence(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal = make_signal("gail", spec, use_vail=True)
    assert signal.state_dict()["beta"] == 0.0
    signal.load_state_dict({**signal.state_dict(), "beta": 1.0})
    reported = signal.learn(make_transitions(spec, 6))
    expected = 1.0 + 0.0005 * (reported["Losses/GAIL KL Loss"] - 0.5)
    assert signal.state_dict()["beta"] == reported["Policy/GAIL Beta"] == pytest.approx(expected)


def test_rewards_have_no_noise_of_the_bottleneck(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal, transitions = make_signal("gail", spec, use_vail=True), make_transitions(spec, 6)
    assert signal.rewards(transitions).tolist() == signal.rewards(transitions).tolist()
    d = WrittenOut(signal).probability(transitions.inputs.vectors.numpy())
    np.testing.assert_allclose(signal.rewards(transitions), -np.log(1.0 - d), rtol=1e-4)


@pytest.mark.lengthy
@pytest.mark.parametrize(("use_vail", "updates"), [(False, 100), (True, 200)])
def test_two_easy_distributions_are_distinguished(
    make_spec, make_signal, make_transitions, make_demonstrations, use_vail, updates
):
    spec = make_spec(actions=ActionSpec(1))
    demonstrations = make_demonstrations(spec, (100, 100))
    demonstrations.observations[0][:] += 2.0
    signal = make_signal("gail", spec, demonstrations=demonstrations, use_vail=use_vail)
    random = np.random.default_rng(0)

    def own():
        vectors = torch.from_numpy(random.normal(-2.0, 1.0, (64, 3)).astype(np.float32))
        return make_transitions(spec, 64, inputs=Inputs(vectors))

    for _ in range(updates):
        reported = signal.learn(own())
    # The penalty keeps it from being as sure as it could be, the bottleneck more so.
    assert reported["Policy/GAIL Expert Estimate"] > 0.55
    assert reported["Policy/GAIL Policy Estimate"] < 0.4
    like_expert = make_transitions(spec, 64, inputs=Inputs(torch.from_numpy(demonstrations.observations[0][:64])))
    assert signal.rewards(like_expert).mean() > 2 * signal.rewards(own()).mean()


@pytest.mark.lengthy
def test_actions_are_distinguished_if_observations_are_equal(
    make_spec, make_signal, make_transitions, make_demonstrations
):
    spec = make_spec(actions=ActionSpec(1))
    demonstrations = make_demonstrations(spec, (100, 100))
    demonstrations.continuous[:] = np.abs(demonstrations.continuous)
    signal = make_signal("gail", spec, demonstrations=demonstrations, use_actions=True)

    def own(seed, sign):
        transitions = make_transitions(spec, 64, seed)
        return replace(transitions, continuous=sign * transitions.continuous.abs())

    for i in range(100):
        signal.learn(own(i, -1.0))
    assert signal.rewards(own(1000, 1.0)).mean() > 1.5 * signal.rewards(own(1001, -1.0)).mean()


def test_the_normaliser_uses_only_the_demonstrations(make_spec, make_signal, make_transitions, make_demonstrations):
    spec = make_spec()
    demonstrations = make_demonstrations(spec, (500, 500))
    demonstrations.observations[0][:] = 100.0 + 10.0 * demonstrations.observations[0]
    settings = {"hidden_units": 8, "num_layers": 1, "normalize": True}
    signal = make_signal("gail", spec, demonstrations=demonstrations, network_settings=settings)
    before = signal.state_dict()["normalizer"]
    np.testing.assert_allclose(before["mean"], demonstrations.observations[0].mean(axis=0), rtol=2e-3)
    own = make_transitions(spec, 6)
    signal.observe(own.inputs.vectors.numpy())
    signal.learn(own)
    assert signal.state_dict()["normalizer"]["mean"].tolist() == before["mean"].tolist()
    # The discriminator sees what is normalised: the mean of all demonstrations is a vector of zeros to it.
    at_mean = Inputs(torch.from_numpy(before["mean"].astype(np.float32))[None])
    d = WrittenOut(signal).probability(np.zeros((1, 3)))
    rewards = signal.rewards(make_transitions(spec, 1, inputs=at_mean))
    np.testing.assert_allclose(rewards, -np.log(1.0 - d), rtol=1e-3)
