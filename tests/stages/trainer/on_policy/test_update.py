import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings, PPOHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.on_policy.rollout import Rollout
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOUpdate

HYBRID = ActionSpec(2, (3, 2), masked=True)


def make(actions=HYBRID, seed=0, shared=False, **hyper):
    spec = BehaviorSpec("Test", (ObservationSpec("o", (3,)),), actions)
    hyperparameters = PPOHyperparameters(**{"batch_size": 8, "buffer_size": 32, "num_epoch": 1, **hyper})
    settings = NetworkSettings(hidden_units=8, num_layers=2, activation="tanh")
    network = ActorCritic(PolicyDesign(spec, settings), 1, shared, np.random.default_rng(seed))
    return PPOUpdate(network, spec, hyperparameters), network


def columns(n, p, seed=0):
    random = np.random.default_rng(seed)
    normal = lambda width: random.normal(size=(n, width)).astype(np.float32)  # noqa: E731
    penalties = np.zeros((n, 5), np.float32)
    penalties[: n // 2, 0] = MASK_PENALTY
    floats = [normal(3), normal(2), penalties, normal(p) * 0.3 - 3.0 * (5 - p) / 4, normal(1), normal(1)]
    choices = np.stack([random.integers(1, 3, n), random.integers(0, 2, n)], axis=1)
    return floats, choices


def rollout(floats, choices):
    names = ("continuous", "penalties", "old_log_probs", "advantages", "returns")
    return Rollout(Inputs(torch.from_numpy(floats[0])), dict(zip(names, floats[1:], strict=True)), choices)


def by_distributions(network, floats, choices, per_dimension, epsilon, beta):
    """The whole loss again, with torch.distributions."""
    inputs, continuous, penalties, old, advantages, returns = (torch.from_numpy(c) for c in floats)
    heads, values = network(Inputs(inputs))
    gaussian = torch.distributions.Normal(heads[:, :2], network.log_sigma.exp())
    logits = heads[:, 2:] + penalties
    branches = [torch.distributions.Categorical(logits=part) for part in logits.split([3, 2], dim=1)]
    chosen = [b.log_prob(torch.from_numpy(choices[:, i]))[:, None] for i, b in enumerate(branches)]
    log_probs = torch.cat([gaussian.log_prob(continuous), *chosen], dim=1)
    if not per_dimension:
        log_probs = log_probs.sum(dim=1, keepdim=True)
    ratio = (log_probs - old).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages).mean()
    entropy = gaussian.entropy().mean() + sum(b.entropy().mean() for b in branches)
    return -surrogate + 0.5 * ((values - returns) ** 2).mean() - beta * entropy, entropy


@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_the_gradient_of_a_step_equals_that_of_the_loss_computed_from_distributions(per_dimension, beta):
    update, network = make(ratio_per_dimension=per_dimension)
    floats, choices = columns(8, 4 if per_dimension else 1)
    loss, entropy = by_distributions(network, floats, choices, per_dimension, 0.2, beta)
    (expected,) = [torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters.values()))])]
    losses = update.run(rollout(floats, choices), Coefficients(1e-3, beta, epsilon=0.2), np.random.default_rng(0), 0)
    assert_close(network.gradients, expected, rtol=1e-4, atol=1e-6)
    assert losses["Policy/Entropy"] == pytest.approx(entropy.item(), rel=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_norms_of_actor_and_critic_are_limited_apart_or_over_all_if_they_share_a_body(shared):
    rows = rollout(*columns(8, 1))
    free, limited = make(shared=shared), make(shared=shared, max_grad_norm=0.01)
    for update, _ in (free, limited):
        update.run(rows, Coefficients(1e-3, 0.0, epsilon=0.2), np.random.default_rng(0), 0)
    parts = limited[1].parts
    assert len(parts) == (1 if shared else 2)
    assert (parts.sum(0) == 1).all()
    for part in parts:
        assert (part * free[1].gradients).norm() > 0.1, "without a limit"
        assert (part * limited[1].gradients).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_actor_and_critic_may_have_one_limit_as_torch_has_it():
    rows = rollout(*columns(8, 1))
    (free, whole), (limited, network) = make(), make(max_grad_norm=0.01, shared_grad_norm=True)
    for update in (free, limited):
        update.run(rows, Coefficients(1e-3, 0.0, epsilon=0.2), np.random.default_rng(0), 0)
    expected = torch.nn.Parameter(torch.zeros_like(whole.gradients))
    expected.grad = whole.gradients.clone()
    torch.nn.utils.clip_grad_norm_([expected], 0.01)
    assert_close(network.gradients, expected.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_norm_before_the_limit_is_reported(shared):
    rows = rollout(*columns(8, 1))
    (free, network), (limited, _) = make(shared=shared), make(shared=shared, max_grad_norm=0.01)
    found = [
        update.run(rows, Coefficients(1e-3, 0.0, epsilon=0.2), np.random.default_rng(0), 0)
        for update in (free, limited)
    ]
    norm = network.gradients.norm().item()
    assert [measures["Policy/Gradient Norm"] for measures in found] == pytest.approx([norm, norm], rel=1e-5)
    parts = {"Policy/Actor Gradient Norm", "Policy/Critic Gradient Norm"} & found[1].keys()
    assert len(parts) == (0 if shared else 2)
    assert sum(found[1][part] ** 2 for part in parts) == pytest.approx(0.0 if shared else norm**2, rel=1e-5)


def test_a_large_value_loss_takes_nothing_of_the_actor_s_gradient():
    floats, choices = columns(8, 1)
    large = [*floats[:5], 1000.0 * floats[5]]
    weights = []
    for rows in (rollout(floats, choices), rollout(large, choices)):
        update, network = make(max_grad_norm=0.5)
        update.run(rows, Coefficients(1e-3, 0.0, epsilon=0.2), np.random.default_rng(0), 0)
        weights.append(network.acting_tensors())
    for name, tensor in weights[0].items():
        np.testing.assert_array_equal(tensor, weights[1][name])


def test_an_update_makes_every_epochs_minibatches_and_the_shuffle_decides_the_result():
    results = []
    for seed in (0, 0, 1):
        update, network = make(num_epoch=3)
        update.run(rollout(*columns(30, 1)), Coefficients(1e-2, 0.01, epsilon=0.2), np.random.default_rng(seed), 0)
        assert update.state_dict()["steps"] == 3 * 3
        results.append(network.values.clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_loss_that_is_not_finite_restores_weights_and_optimizer_and_names_itself():
    update, network = make()
    good = rollout(*columns(32, 1))
    update.run(good, Coefficients(1e-2, 0.0, epsilon=0.2), np.random.default_rng(0), 0)
    weights, optimizer = network.values.clone(), update.state_dict()
    floats, choices = columns(32, 1)
    floats[5][4] = np.inf
    said = r"Test: update at step 640: the value loss of minibatch . of 4 is inf"
    with pytest.raises(NotFiniteError, match=said), update.adam.undone_on_failure():
        update.run(rollout(floats, choices), Coefficients(1e-2, 0.0, epsilon=0.2), np.random.default_rng(0), 640)
    assert torch.equal(network.values, weights)
    after = update.state_dict()
    assert after["steps"] == optimizer["steps"]
    for moment in ("first_moment", "second_moment"):
        for name, array in optimizer[moment].items():
            np.testing.assert_array_equal(after[moment][name], array)


def test_weights_that_only_the_last_step_spoiled_are_restored_as_well():
    update, network = make()
    weights = network.values.clone()
    said = "the last minibatch made some weights NaN or infinite"
    with pytest.raises(NotFiniteError, match=said), update.adam.undone_on_failure():
        update.run(rollout(*columns(8, 1)), Coefficients(float("inf"), 0.0, epsilon=0.2), np.random.default_rng(0), 0)
    assert torch.equal(network.values, weights)


def test_a_failure_after_a_step_undoes_the_update():
    update, network = make(num_epoch=2)
    seen = []
    rows = rollout(*columns(20, 1))
    coefficients = Coefficients(1e-2, 0.0, epsilon=0.2)
    update.run(rows, coefficients, np.random.default_rng(0), 0, lambda numbers: seen.append(numbers.tolist()))
    assert [len(rows) for rows in seen] == [8] * 4
    assert len({*seen[0], *seen[1]}) == 16
    weights, moments = network.values.clone(), update.state_dict()

    def fail(rows):
        raise NotFiniteError("the signal's loss is NaN")

    with pytest.raises(NotFiniteError, match="signal"), update.adam.undone_on_failure():
        update.run(rows, coefficients, np.random.default_rng(0), 0, fail)
    assert torch.equal(network.values, weights)
    assert update.state_dict()["steps"] == moments["steps"]
