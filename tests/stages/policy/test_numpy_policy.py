import subprocess
import sys

import numpy as np
import pytest
import torch

from config import NetworkSettings
from queues.columns import decision_columns
from queues.messages import PolicyUpdate
from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.errors import NotFiniteError, StageError
from stages.policy import ActingPolicy, Normalizer, NumpyPolicy, policy_layout
from stages.policy.distributions import categorical_log_probs, gaussian_log_probs
from stages.policy.layout import MASK_PENALTY, branch_slices
from stages.policy.network import ActorCritic
from stages.policy.numpy_policy import sample_categorical

OBSERVATIONS = (ObservationSpec("a", (3,)), ObservationSpec("b", (2,), "int64"))


def make(actions, seed=0, scale=3.0, **settings):
    """A policy with its network: weights scaled up, so that it prefers some actions."""
    spec = BehaviorSpec("Test", OBSERVATIONS, actions)
    network_settings = NetworkSettings(**{"hidden_units": 16, **settings})
    random = np.random.default_rng(seed)
    network = ActorCritic(spec, network_settings, 1, False, random)
    network.values.mul_(scale)
    if network.log_sigma is not None:
        network.log_sigma.data.copy_(torch.linspace(-1.0, 0.5, actions.continuous_size))
    tensors = network.acting_tensors()
    if network_settings.normalize:
        normalizer = Normalizer(5)
        normalizer.update(random.normal(1.0, 3.0, (50, 5)).astype(np.float32))
        tensors["normalizer.mean"], tensors["normalizer.inverse_std"] = normalizer.tensors()
    layout = policy_layout(spec, network_settings)
    weights = np.concatenate([tensors[name].reshape(-1) for name, _ in layout])
    policy = NumpyPolicy(spec, network_settings)
    policy.load(PolicyUpdate("Test", 7, weights, layout, step=0))
    return policy, network, tensors


def observations(d, seed=5):
    random = np.random.default_rng(seed)
    return random.normal(size=(d, 3)).astype(np.float32), random.integers(-2, 3, (d, 2))


def update_with(policy_tensors, spec, settings):
    layout = policy_layout(spec, settings)
    return PolicyUpdate("Test", 1, np.concatenate([policy_tensors[n].reshape(-1) for n, _ in layout]), layout, 0)


def test_it_is_an_acting_policy():
    policy: ActingPolicy = make(ActionSpec(2))[0]
    assert policy.version == 7


@pytest.mark.parametrize("activation", ["swish", "tanh", "relu", "elu"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "actions",
    [
        ActionSpec(3),
        ActionSpec(0, (4,)),
        ActionSpec(0, (2, 3), masked=True),
        ActionSpec(2, (3, 2), masked=True),
    ],
    ids=["continuous", "discrete", "branches", "hybrid"],
)
def test_torch_finds_the_log_probabilities_that_numpy_stored(actions, normalize, activation):
    policy, network, tensors = make(actions, normalize=normalize, activation=activation)
    seen = observations(200)
    masks = None
    if actions.masked:
        masks = np.random.default_rng(0).random((200, actions.mask_size)) < 0.6
        for branch in branch_slices(policy._spec):
            masks[:, branch.start] |= ~masks[:, branch].any(axis=1)
    columns = policy.act(seen, masks, np.random.default_rng(2)).columns

    x = np.concatenate(seen, axis=1).astype(np.float32)
    if normalize:
        x = np.clip((x - tensors["normalizer.mean"]) * tensors["normalizer.inverse_std"], -5, 5)
    heads = network(torch.from_numpy(x))[0]
    found = []
    c = actions.continuous_size
    if c:
        found.append(
            gaussian_log_probs(heads[:, :c], network.log_sigma, torch.from_numpy(columns["continuous_actions"]))
        )
    for index, branch in enumerate(branch_slices(policy._spec)):
        logits = heads[:, c:][:, branch]
        if masks is not None:
            logits = logits + torch.from_numpy(np.where(masks[:, branch], np.float32(0), MASK_PENALTY))
        chosen = torch.from_numpy(columns["discrete_actions"][:, index : index + 1].astype(np.int64))
        found.append(categorical_log_probs(logits, chosen)[0])
    np.testing.assert_allclose(columns["log_probs"], torch.cat(found, 1).detach().numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("actions", [ActionSpec(3), ActionSpec(0, (4, 2)), ActionSpec(2, (3,), masked=True)])
def test_columns_have_the_dtypes_and_shapes_of_the_column_table(actions):
    policy, _, _ = make(actions)
    decision = policy.act(observations(6), None, np.random.default_rng(0))
    expected = {c.name: (np.dtype(c.dtype), (6, *c.shape)) for c in decision_columns(policy._spec)}
    assert {n: (a.dtype, a.shape) for n, a in decision.columns.items()} == expected
    assert decision.actions.continuous.shape == (6, actions.continuous_size)
    assert decision.actions.continuous.dtype == np.float32
    assert decision.actions.discrete.shape == (6, len(actions.discrete_branches))


def test_bounded_actions_are_a_third_of_the_clipped_sample_and_unbounded_ones_the_sample_itself():
    policy, _, _ = make(ActionSpec(3, unbounded=(1,)), scale=10.0)
    decision = policy.act(observations(50), None, np.random.default_rng(0))
    raw = decision.columns["continuous_actions"]
    assert np.abs(raw).max() > 3.0
    np.testing.assert_allclose(decision.actions.continuous[:, [0, 2]], np.clip(raw[:, [0, 2]], -3, 3) / 3, rtol=1e-6)
    np.testing.assert_array_equal(decision.actions.continuous[:, 1], raw[:, 1])


def test_deterministic_actions_are_the_mean_and_the_most_likely_choice():
    policy, network, _ = make(ActionSpec(2, (4,), masked=True))
    seen = observations(30)
    masks = np.ones((30, 4), np.bool_)
    x = torch.from_numpy(np.concatenate(seen, axis=1).astype(np.float32))
    heads = network(x)[0].detach().numpy()
    best = heads[:, 2:].argmax(axis=1)
    masks[np.arange(10), best[:10]] = False
    decision = policy.act(seen, masks, np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(decision.columns["continuous_actions"], heads[:, :2], atol=1e-5)
    np.testing.assert_array_equal(decision.actions.discrete[10:, 0], best[10:])
    allowed = np.where(masks, heads[:, 2:], -np.inf)
    np.testing.assert_array_equal(decision.actions.discrete[:, 0], allowed.argmax(axis=1))


def test_choices_come_as_often_as_their_probabilities_say():
    logits = np.tile(np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32)) + 2.0, (40_000, 1))
    choices, log_probs = sample_categorical(logits, np.random.default_rng(3), False)
    shares = np.bincount(choices, minlength=4) / len(choices)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.01)
    np.testing.assert_allclose(np.exp(log_probs), np.array([0.5, 0.3, 0.15, 0.05])[choices], rtol=1e-5)


def test_samples_have_the_mean_and_spread_of_the_gaussian():
    policy, _, _ = make(ActionSpec(2), scale=0.0)
    raw = policy.act(observations(40_000), None, np.random.default_rng(4)).columns["continuous_actions"]
    np.testing.assert_allclose(raw.mean(axis=0), [0.0, 0.0], atol=0.03)
    np.testing.assert_allclose(raw.std(axis=0), np.exp([-1.0, 0.5]), rtol=0.02)


class Extreme:
    """The least or the largest number that a generator can draw: a real class with the one method needed."""

    def __init__(self, value):
        self.value = value

    def random(self, n, dtype):
        return np.full(n, self.value, dtype)


@pytest.mark.parametrize("drawn", [0.0, 1.0 - 2.0**-24])
def test_forbidden_choices_are_not_taken_even_at_the_edges_of_the_draw(drawn):
    random = np.random.default_rng(0)
    logits = random.normal(0, 5, (2000, 6)).astype(np.float32)
    masks = random.random((2000, 6)) < 0.5
    masks[:, 3] |= ~masks.any(axis=1)
    choices, log_probs = sample_categorical(np.where(masks, logits, logits + MASK_PENALTY), Extreme(drawn), False)
    assert masks[np.arange(2000), choices].all()
    assert np.isfinite(log_probs).all()


def test_a_single_allowed_choice_is_always_taken_with_probability_one():
    policy, _, _ = make(ActionSpec(0, (3, 2), masked=True))
    masks = np.tile([False, True, False, False, True], (100, 1))
    decision = policy.act(observations(100), masks, np.random.default_rng(0))
    assert (decision.actions.discrete == [1, 1]).all()
    np.testing.assert_array_equal(decision.columns["log_probs"], 0.0)
    np.testing.assert_array_equal(decision.columns["action_masks"], masks)


def test_a_mask_that_forbids_everything_names_row_and_branch():
    policy, _, _ = make(ActionSpec(0, (3, 2), masked=True))
    masks = np.ones((4, 5), np.bool_)
    masks[2, 3:] = False
    with pytest.raises(StageError, match="row 2 forbids all 2 choices of branch 1"):
        policy.act(observations(4), masks, np.random.default_rng(0))


def test_a_nan_in_the_observations_is_an_error_that_shows_them():
    policy, _, _ = make(ActionSpec(2))
    seen = observations(4)
    seen[0][3, 1] = np.nan
    with pytest.raises(NotFiniteError, match=r"Test: policy version 7 .* for row 3 of 4 agents"):
        policy.act(seen, None, np.random.default_rng(0))


def test_what_was_returned_stays_when_it_acts_again():
    policy, _, _ = make(ActionSpec(2, (3,)))
    random = np.random.default_rng(0)
    first = policy.act(observations(8, seed=1), None, random)
    kept = {name: column.copy() for name, column in first.columns.items()}
    policy.act(observations(8, seed=2), None, random)
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column, kept[name])


def test_the_number_of_agents_may_change_from_call_to_call():
    policy, _, _ = make(ActionSpec(2, (3,)))
    seen = observations(9)
    alone = [
        policy.act(tuple(o[i : i + 1] for o in seen), None, np.random.default_rng(0), deterministic=True)
        for i in range(9)
    ]
    for count in (9, 2, 0, 7):
        part = policy.act(tuple(o[:count] for o in seen), None, np.random.default_rng(0), deterministic=True)
        assert len(part.columns["log_probs"]) == count
        for i in range(count):
            np.testing.assert_allclose(
                part.columns["continuous_actions"][i], alone[i].columns["continuous_actions"][0], atol=1e-6
            )


def test_one_generator_state_gives_one_decision():
    policy, _, _ = make(ActionSpec(2, (3,)))
    first, second = (policy.act(observations(5), None, np.random.default_rng(9)) for _ in range(2))
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column, second.columns[name])


def test_the_weights_are_copied_on_loading():
    policy, _, tensors = make(ActionSpec(2))
    update = update_with(tensors, policy._spec, NetworkSettings(hidden_units=16))
    policy.load(update)
    before = policy.act(observations(3), None, np.random.default_rng(0)).columns["continuous_actions"]
    update.weights[:] = 0.0
    after = policy.act(observations(3), None, np.random.default_rng(0)).columns["continuous_actions"]
    np.testing.assert_array_equal(before, after)


def test_a_policy_of_another_network_is_refused_by_tensor():
    policy, _, _ = make(ActionSpec(2))
    other = NetworkSettings(hidden_units=8)
    layout = policy_layout(policy._spec, other)
    size = sum(int(np.prod(shape)) for _, shape in layout)
    with pytest.raises(StageError, match=r"expected tensor body.0.weight \(5, 16\), got body.0.weight \(5, 8\)"):
        policy.load(PolicyUpdate("Test", 1, np.zeros(size, np.float32), layout, 0))


def test_acting_without_a_policy_is_an_error():
    policy = NumpyPolicy(BehaviorSpec("Test", OBSERVATIONS, ActionSpec(2)), NetworkSettings())
    with pytest.raises(StageError, match="no policy was loaded"):
        policy.act(observations(1), None, np.random.default_rng(0))


def test_acting_needs_no_torch():
    code = "import sys, stages.policy, stages.trainer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=_root()).returncode == 0


def _root():
    from pathlib import Path

    return Path(__file__).parents[3]
