"""gSDE: noise that depends on the state, as Stable-Baselines3's `StateDependentNoiseDistribution` has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.layers import Inputs, gaussian_scores
from headrace.stages.policy.network.torch_policy import TorchPolicy
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.policy.protocol import Recall
from headrace.stages.policy.sampling import StateNoise, sample_gaussian, sample_squashed

ENCODING = np.array([[-0.8, -1.32, -0.25, 0.42], [1.14, 0.11, -0.55, -0.78], [0.75, 1.63, 0.27, -1.23]], np.float32)
MEANS = np.array([[-0.96, 1.6], [0.2, -1.73], [-0.08, -1.16]], np.float32)
LOG_STD = np.array([[-0.63, -0.49], [-0.71, 0.55], [-0.06, -0.59], [0.41, 0.83]], np.float32)
MATRIX = np.array([[-1.64, -0.26], [-0.98, -0.17], [-1.29, 0.02], [-0.04, -0.3]], np.float32)
"""Standard normals."""

THEIRS = {
    (False, False, True): (
        [[0.653156, 1.824638], [-0.133538, -1.413455], [-1.774322, -0.910518]],
        [-4.02919, -2.90008, -4.29461],
    ),
    (False, False, False): (
        [[0.653156, 1.626536], [-0.133538, -1.554818], [-1.774322, -0.838989]],
        [-3.12426, -2.57669, -3.6425],
    ),
    (False, True, True): (
        [[0.573791, 0.949299], [-0.13275, -0.888226], [-0.944081, -0.721381]],
        [-1.31553, -1.32668, -1.34078],
    ),
    (True, False, True): (
        [[0.655898, 1.845255], [-0.138631, -1.569165], [-1.782352, -1.083017]],
        [-3.90123, -2.54098, -4.01319],
    ),
    (True, True, True): (
        [[0.575627, 0.951297], [-0.13775, -0.916893], [-0.944948, -0.794315]],
        [-1.14523, -0.68491, -0.78218],
    ),
    (True, True, False): (
        [[0.575627, 0.928459], [-0.13775, -0.92061], [-0.944948, -0.715918]],
        [-0.76894, -0.5292, -0.57759],
    ),
}
"""By use_expln, squash and full_std: Stable-Baselines3 2.9.2's actions and log-probabilities."""


def design_of(squashed=False, memory=None, actions=None, hidden=8, **gsde):
    spec = BehaviorSpec("Own", (ObservationSpec("o", (3,)),), actions or ActionSpec(2))
    settings = {"hidden_units": hidden, "gsde": gsde, "initial_log_std": -0.5, "memory": memory}
    return PolicyDesign(spec, NetworkSettings.model_validate(settings), squashed, explores=True)


def drawn(design, means, encoding, log_std, matrix):
    """Actions and log-probabilities by a matrix of standard normals, as policies find them; the heads."""
    noise = StateNoise(design)
    noise.load(log_std)
    heads = noise.heads(means, encoding)
    kept = np.tile(np.append(np.float32(1), matrix.reshape(-1)), (len(means), 1))
    added, _ = noise.draw(encoding, kept, np.random.default_rng(0))
    log_probs, c = np.empty_like(means), means.shape[1]
    sample = sample_squashed if design.squashed else sample_gaussian
    log_sigma = heads[:, c : 2 * c]
    standard = added * np.exp(-log_sigma)
    return sample(heads[:, :c], log_sigma, standard, log_probs), log_probs, heads


@pytest.mark.parametrize(("expln", "squashed", "full"), list(THEIRS))
def test_actions_and_log_probabilities_are_those_of_stable_baselines3(expln, squashed, full):
    log_std = LOG_STD if full else LOG_STD[:, :1]
    design = design_of(squashed, use_expln=expln, full_std=full)
    actions, log_probs, heads = drawn(design, MEANS, ENCODING, log_std, MATRIX)
    expected, expected_log_probs = THEIRS[expln, squashed, full]
    np.testing.assert_allclose(actions, expected, atol=2e-6)
    np.testing.assert_allclose(log_probs.sum(axis=1), expected_log_probs, atol=3e-5)
    found, entropy, _ = gaussian_scores(torch.from_numpy(heads), None, torch.from_numpy(actions), squashed)
    np.testing.assert_allclose(found.sum(dim=1), expected_log_probs, atol=3e-5)
    if squashed:
        np.testing.assert_allclose(entropy * 2, -np.mean(expected_log_probs), atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("expln", [False, True])
def test_random_inputs_give_what_stable_baselines3_gives(expln, squashed):
    distributions = pytest.importorskip("stable_baselines3.common.distributions")
    random = np.random.default_rng(3)
    for full in (True, False):
        rows, features, c = 200, 32, 3
        encoding = np.tanh(random.normal(size=(rows, features))).astype(np.float32)
        means = random.uniform(-1, 1, (rows, c)).astype(np.float32)
        log_std = random.uniform(-3, 0.5, (features, c if full else 1)).astype(np.float32) - np.float32(squashed)
        matrix = random.normal(size=(features, c)).astype(np.float32)
        theirs = distributions.StateDependentNoiseDistribution(c, full, expln, squashed)
        theirs.latent_sde_dim = features
        tensors = [torch.from_numpy(each) for each in (means, log_std, encoding)]
        theirs.proba_distribution(*tensors)
        theirs.exploration_mat = torch.from_numpy(matrix) * theirs.get_std(tensors[1])
        theirs.exploration_matrices = theirs.exploration_mat.repeat(rows, 1, 1)
        expected = theirs.sample()
        design = design_of(squashed, use_expln=expln, full_std=full, actions=ActionSpec(c))
        actions, log_probs, _ = drawn(design, means, encoding, log_std, matrix)
        np.testing.assert_allclose(actions, expected, atol=5e-6)
        # Theirs adds 1e-6 to the slope of tanh, which counts near ±1.
        inner = (np.abs(actions) < 0.99).all(axis=1)
        assert inner.sum() > rows / 2 or not squashed
        chosen = inner if squashed else slice(None)
        np.testing.assert_allclose(log_probs.sum(axis=1)[chosen], theirs.log_prob(expected)[chosen], atol=3e-4)


# Policies: NumPy's and torch's, and what they keep of their agents. ---------------------------------------------------


def weights_of(design, seed=0):
    torch.manual_seed(seed)
    actor = ActorNetwork(design)
    if actor.log_sigma is not None:
        actor.log_sigma.data += torch.randn_like(actor.log_sigma) * 0.3
    tensors = actor.acting_tensors()
    layout = tuple((name, tensor.shape) for name, tensor in tensors.items())
    weights = np.concatenate([each.reshape(-1) for each in tensors.values()])
    update = PolicyUpdate("Own", 1, weights, layout, 1)
    return actor, update


def acting(design, kind=NumpyPolicy, seed=0):
    policy = kind(design)
    policy.load(weights_of(design, seed)[1])
    return policy


SEEN = (np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32),)


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("settings", [{}, {"use_expln": True, "full_std": False, "sample_freq": 3}])
def test_numpy_torch_and_the_network_that_learns_agree(squashed, settings):
    design = design_of(squashed, actions=ActionSpec(2, (3,)), clip_mean=0.003, **settings)
    ours, theirs = (acting(design, kind) for kind in (NumpyPolicy, TorchPolicy))
    assert dict(policy_layout(design))["log_sigma"] == (8, 1 if settings else 2)
    actor, _ = weights_of(design)
    heads = actor(Inputs(torch.from_numpy(SEEN[0])))[0].detach().numpy()
    np.testing.assert_allclose(ours.heads(SEEN), heads, atol=1e-6)
    assert (np.abs(heads[:, :2]).max() <= 0.00301) == squashed, "means are limited where they are squashed"
    recalls = [nothing_recalled(policy, design.spec.actions, 5) for policy in (ours, theirs)]
    assert ours.memory_size == theirs.memory_size == 1 + 8 * 2
    randoms = [np.random.default_rng(4) for _ in range(2)]
    for _ in range(4):
        both = [
            policy.act(SEEN, None, random, False, recall)
            for policy, random, recall in zip((ours, theirs), randoms, recalls, strict=True)
        ]
        recalls = [each.recall for each in both]
        for one, other in zip(*(each.columns.values() for each in both), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
        np.testing.assert_array_equal(recalls[0].memories, recalls[1].memories)


def noises(policy, recalls, decisions, random, observations=SEEN):
    """The noise of each decision, and what is recalled at last."""
    found = []
    for _ in range(decisions):
        decision = policy.act(observations, None, random, False, recalls)
        recalls = decision.recall
        found.append(decision.columns["continuous_actions"] - policy.heads(observations)[:, :2])
    return np.stack(found), recalls


def test_an_agent_keeps_its_matrix_for_sample_freq_decisions_and_each_agent_has_its_own():
    policy = acting(design_of(sample_freq=3))
    same = (np.repeat(SEEN[0][:1], 2, axis=0),)
    found, recall = noises(policy, nothing_recalled(policy, ActionSpec(2), 2), 4, np.random.default_rng(0), same)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert (np.abs(found[3] - found[2]) > 1e-4).all()
    assert (np.abs(found[0][0] - found[0][1]) > 1e-4).all()
    # A new agent, or one in a new episode, begins anew; the other one goes on, whoever decides beside it.
    fresh = Recall(recall.memories.copy(), recall.previous_actions)
    fresh.memories[1] = 0
    later, _ = noises(policy, fresh, 1, np.random.default_rng(9), same)
    np.testing.assert_allclose(later[0, 0], found[3, 0], atol=1e-6)
    assert np.abs(later[0, 1] - found[3, 1]).min() > 1e-5


def test_without_a_frequency_the_matrix_stays_for_the_episode_and_a_newer_policy_scales_it():
    design = design_of()
    policy = acting(design)
    found, recall = noises(policy, nothing_recalled(policy, ActionSpec(2), 5), 40, np.random.default_rng(0))
    assert np.ptp(found, axis=0).max() < 1e-6
    _, update = weights_of(design)
    tensors = update.tensors()
    tensors["log_sigma"] += np.float32(np.log(2.0))
    policy.load(replace(update, weights=np.concatenate([each.reshape(-1) for each in tensors.values()])))
    doubled, _ = noises(policy, recall, 1, np.random.default_rng(0))
    np.testing.assert_allclose(doubled[0], 2 * found[0], rtol=1e-4)


def test_the_noise_has_the_spread_that_its_log_probabilities_say():
    policy = acting(replace(design_of(), explores=False))
    assert policy.memory_size == 0
    many = (np.repeat(SEEN[0][:1], 20_000, axis=0),)
    found, recall = noises(policy, None, 1, np.random.default_rng(0), many)
    assert recall is None, "without memories each decision has a matrix of its own"
    np.testing.assert_allclose(found[0].std(axis=0), np.exp(policy.heads(SEEN)[0, 2:]), rtol=0.03)


@pytest.mark.parametrize("kind", [NumpyPolicy, TorchPolicy])
def test_deterministic_decisions_are_the_mean_and_draw_nothing(kind):
    policy, random = acting(design_of(), kind), np.random.default_rng(0)
    before = random.bit_generator.state
    first = nothing_recalled(policy, ActionSpec(2), 5)
    decision = policy.act(SEEN, None, random, True, first)
    heads = policy.heads(SEEN)
    np.testing.assert_array_equal(
        decision.columns["continuous_actions"], (heads if kind is NumpyPolicy else heads[0])[:, :2]
    )
    assert random.bit_generator.state == before
    assert decision.recall is not None
    assert not decision.recall.memories.any()


def test_noise_stands_behind_a_recurrent_memory():
    design = design_of(memory={"memory_size": 6, "sequence_length": 4}, sample_freq=2)
    policy = acting(design, TorchPolicy)
    assert policy.memory_size == 6 + 1 + 3 * 2
    random, decision = np.random.default_rng(0), None
    kept = []
    for _ in range(3):
        decision = policy.act(SEEN, None, random, False, None if decision is None else decision.recall)
        assert decision.columns["memories"].shape == (5, 6)
        kept.append(decision.recall.memories[:, 6:])
    assert [each[0, 0] for each in kept] == [1, 0, 1]
    np.testing.assert_array_equal(kept[0][:, 1:], kept[1][:, 1:])
    assert (kept[1][:, 1:] != kept[2][:, 1:]).all()


def test_gradients_reach_the_hidden_layers_by_the_noise_only_if_configured():
    for learns in (False, True):
        actor = ActorNetwork(design_of(), learns)
        actor(Inputs(torch.from_numpy(SEEN[0])))[0][:, 2:].sum().backward()
        found = {name: parameter.grad for name, parameter in actor.named_parameters()}
        reached = found["body.layers.0.weight"]
        assert (reached is not None and bool(reached.any())) == learns
        matrix = found["log_sigma"]
        assert matrix is not None
        assert matrix.any()


def test_a_policy_without_gsde_is_refused_by_its_matrix():
    plain = replace(design_of(), settings=NetworkSettings(hidden_units=8))
    with pytest.raises(StageError, match=r"expected tensor log_sigma \(8, 2\), got \(2,\)"):
        NumpyPolicy(design_of()).load(weights_of(plain)[1])


def test_without_continuous_actions_there_is_no_such_noise():
    design = design_of(actions=ActionSpec(0, (3,)))
    assert design.gsde is None
    assert design.perceptron
