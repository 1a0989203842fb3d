import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign, consecutive_slices, policy_layout
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import ACTIVATIONS, Inputs, categorical_log_probs, gaussian_log_probs
from headrace.stages.policy.network.torch_policy import TorchPolicy
from headrace.stages.policy.numpy_policy import NumpyPolicy, act_together
from headrace.stages.policy.observations import Normalizer
from headrace.stages.policy.protocol import ActingPolicy

OBSERVATIONS = (ObservationSpec("a", (3,)), ObservationSpec("b", (2,), "int64"))
SMALL = {"hidden_units": 16}


def design_for(actions, squashed=False, **settings):
    return PolicyDesign(
        BehaviorSpec("Test", OBSERVATIONS, actions), NetworkSettings.model_validate({**SMALL, **settings}), squashed
    )


def policy_of(design, tensors, version=7):
    layout = policy_layout(design)
    policy = NumpyPolicy(design)
    weights = np.concatenate([tensors[name].reshape(-1) for name, _ in layout])
    policy.load(PolicyUpdate("Test", version, weights, layout, step=0))
    return policy


def normalizer_tensors(random):
    normalizer = Normalizer(5)
    normalizer.update(random.normal(1.0, 3.0, (50, 5)).astype(np.float32))
    return dict(zip(("normalizer.mean", "normalizer.inverse_std"), normalizer.tensors(), strict=True))


def make(actions, seed=0, scale=3.0, **settings):
    """A policy with its network: weights scaled up, so that it prefers some actions."""
    design = design_for(actions, **settings)
    random = np.random.default_rng(seed)
    network = ActorCritic(design, 1, False, random)
    network.values.mul_(scale)
    if network.log_sigma is not None:
        network.log_sigma.data.copy_(torch.linspace(-1.0, 0.5, actions.continuous_size))
    tensors = {**network.acting_tensors(), **(normalizer_tensors(random) if design.settings.normalize else {})}
    return policy_of(design, tensors), network, tensors


def observations(d, seed=5):
    random = np.random.default_rng(seed)
    return random.normal(size=(d, 3)).astype(np.float32), random.integers(-2, 3, (d, 2))


def inputs_for(seen, tensors):
    x = np.concatenate(seen, axis=1).astype(np.float32)
    if "normalizer.mean" in tensors:
        x = np.clip((x - tensors["normalizer.mean"]) * tensors["normalizer.inverse_std"], -5, 5)
    return Inputs(torch.from_numpy(x))


def test_the_numpy_policy_is_an_acting_policy_without_memory():
    made = make(ActionSpec(2))[0]
    policy: ActingPolicy = made
    assert (made.version, policy.memory_size, policy.previous_action_size) == (7, 0, 0)
    assert policy.act(observations(2), None, np.random.default_rng(0)).recall is None


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize(
    ("actions", "normalize", "activation"),
    [
        (actions, (number + place) % 2 == 0, activation)
        for number, actions in enumerate([ActionSpec(3), ActionSpec(0, (2, 3)), ActionSpec(2, (3, 2))])
        for place, activation in enumerate(ACTIVATIONS)
    ],
)
def test_its_heads_are_those_of_the_network_in_torch(actions, squashed, normalize, activation):
    design = design_for(actions, squashed, normalize=normalize, activation=activation)
    random = np.random.default_rng(1)
    network = seeded(random, lambda: ActorNetwork(design))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.from_numpy(random.normal(0, 0.3, parameter.shape).astype(np.float32)))
    tensors = {**network.acting_tensors(), **(normalizer_tensors(random) if normalize else {})}
    seen = observations(50)
    with torch.no_grad():
        expected, _ = network(inputs_for(seen, tensors))
    np.testing.assert_allclose(policy_of(design, tensors).heads(seen), expected.numpy(), atol=2e-5)


def clock_policy(seed, start=1.7e9, rest=True):
    """A policy that sees a clock, and what its network takes in of times."""
    spec = BehaviorSpec("Test", (ObservationSpec("time", (2,), "float64"), ObservationSpec("v", (1,))), ActionSpec(2))
    design = PolicyDesign(spec, NetworkSettings.model_validate({**SMALL, "normalize": True}), False)
    random, normalizer = np.random.default_rng(seed), Normalizer(3)
    normalizer.update(np.concatenate([start + random.normal(0, 60, (50, 2)), random.normal(size=(50, 1))], axis=1))
    network = seeded(random, lambda: ActorNetwork(design))
    tensors = network.acting_tensors()
    tensors["normalizer.mean"], tensors["normalizer.inverse_std"] = normalizer.tensors()
    tensors["normalizer.mean_rest"] = normalizer.mean_rest
    layout = (*policy_layout(design), *((("normalizer.mean_rest", (3,)),) if rest else ()))
    weights = np.concatenate([tensors[name].reshape(-1) for name, _ in layout])
    policies = NumpyPolicy(design), TorchPolicy(design)
    for policy in policies:
        policy.load(PolicyUpdate("Test", 1, weights, layout, 0))
    return *policies, lambda seen: torch.from_numpy(normalizer.apply(np.concatenate(seen, axis=1))), network


def test_float64_is_normalised_before_it_is_rounded():
    by_numpy, by_torch, normalized, network = clock_policy(0)
    seen = 1.7e9 + np.array([[0.0, 60.0], [60.0, 0.0], [1.0, -1.0]]), np.zeros((3, 1), np.float32)
    with torch.no_grad():
        expected, _ = network(Inputs(normalized(seen)))
    np.testing.assert_allclose(by_numpy.heads(seen), expected, atol=1e-5)
    np.testing.assert_allclose(by_torch.heads(seen)[0], expected, atol=1e-5)


def test_policies_that_see_float64_decide_together_as_each_alone():
    policies = [clock_policy(seed, start)[0] for seed, start in ((0, 1.7e9), (1, 1.6e9))]
    seen = 1.7e9 + np.arange(8.0).reshape(4, 2), np.zeros((4, 1), np.float32)
    rows = np.array([0, 2]), np.array([1, 3])
    together = act_together([*zip(policies, rows, strict=True)], seen, None, np.random.default_rng(0), True)
    for policy, own in zip(policies, rows, strict=True):
        alone = policy.act(tuple(each[own] for each in seen), None, np.random.default_rng(0), True)
        np.testing.assert_array_equal(together.actions.continuous[own], alone.actions.continuous)


def test_a_policy_that_learned_from_float32_and_has_no_rest_of_its_mean_plays_with_float64():
    by_numpy, by_torch, _, _ = clock_policy(0, start=100.0, rest=False)
    seen = 100.0 + np.zeros((1, 2)), np.zeros((1, 1), np.float32)
    np.testing.assert_allclose(by_numpy.heads(seen), by_torch.heads(seen)[0], atol=1e-5)


@pytest.mark.parametrize(
    "actions",
    [ActionSpec(3), ActionSpec(0, (4,)), ActionSpec(0, (2, 3), masked=True), ActionSpec(2, (3, 2), masked=True)],
    ids=["continuous", "discrete", "branches", "hybrid"],
)
def test_torch_finds_the_log_probabilities_that_numpy_stored(actions):
    policy, network, tensors = make(actions, normalize=True)
    seen = observations(200)
    masks = None
    branches = consecutive_slices(actions.discrete_branches)
    if actions.masked:
        masks = np.random.default_rng(0).random((200, actions.mask_size)) < 0.6
        for branch in branches:
            masks[:, branch.start] |= ~masks[:, branch].any(axis=1)
    columns = policy.act(seen, masks, np.random.default_rng(2)).columns

    heads = network(inputs_for(seen, tensors))[0]
    found = []
    c = actions.continuous_size
    if c:
        found.append(
            gaussian_log_probs(heads[:, :c], network.log_sigma, torch.from_numpy(columns["continuous_actions"]))
        )
    for index, branch in enumerate(branches):
        logits = heads[:, c:][:, branch]
        if masks is not None:
            logits = logits + torch.from_numpy(np.where(masks[:, branch], np.float32(0), MASK_PENALTY))
        chosen = torch.from_numpy(columns["discrete_actions"][:, index : index + 1].astype(np.int64))
        found.append(categorical_log_probs(logits, chosen)[0])
    np.testing.assert_allclose(columns["log_probs"], torch.cat(found, 1).detach().numpy(), atol=1e-5, rtol=0)


def test_bounded_actions_are_a_third_of_the_clipped_sample_and_unbounded_ones_the_sample_itself():
    policy, _, _ = make(ActionSpec(3, unbounded=(1,)), scale=10.0)
    decision = policy.act(observations(50), None, np.random.default_rng(0))
    raw = decision.columns["continuous_actions"]
    assert np.abs(raw).max() > 3.0
    np.testing.assert_allclose(decision.actions.continuous[:, [0, 2]], np.clip(raw[:, [0, 2]], -3, 3) / 3, rtol=1e-6)
    np.testing.assert_array_equal(decision.actions.continuous[:, 1], raw[:, 1])


def test_deterministic_actions_are_the_mean_and_the_most_likely_choice():
    policy, network, tensors = make(ActionSpec(2, (4,), masked=True))
    seen = observations(30)
    masks = np.ones((30, 4), np.bool_)
    heads = network(inputs_for(seen, tensors))[0].detach().numpy()
    best = heads[:, 2:].argmax(axis=1)
    masks[np.arange(10), best[:10]] = False
    decision = policy.act(seen, masks, np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(decision.columns["continuous_actions"], heads[:, :2], atol=1e-5)
    np.testing.assert_array_equal(decision.actions.discrete[10:, 0], best[10:])
    allowed = np.where(masks, heads[:, 2:], -np.inf)
    np.testing.assert_array_equal(decision.actions.discrete[:, 0], allowed.argmax(axis=1))


def test_samples_have_the_mean_and_spread_of_the_gaussian():
    policy, _, _ = make(ActionSpec(2), scale=0.0)
    raw = policy.act(observations(40_000), None, np.random.default_rng(4)).columns["continuous_actions"]
    np.testing.assert_allclose(raw.mean(axis=0), [0.0, 0.0], atol=0.03)
    np.testing.assert_allclose(raw.std(axis=0), np.exp([-1.0, 0.5]), rtol=0.02)


def test_a_nan_in_the_observations_is_an_error_that_shows_them():
    policy, _, _ = make(ActionSpec(2))
    seen = observations(4)
    seen[0][3, 1] = np.nan
    with pytest.raises(
        NotFiniteError, match=r"Test: the environment gave row 3 of 4 agents an observation that is not finite"
    ):
        policy.act(seen, None, np.random.default_rng(0))


def test_a_decision_stays_unchanged_when_the_policy_acts_again():
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


def test_the_same_generator_state_gives_the_same_decision():
    policy, _, _ = make(ActionSpec(2, (3,)))
    first, second = (policy.act(observations(5), None, np.random.default_rng(9)) for _ in range(2))
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column, second.columns[name])


def test_the_weights_are_copied_on_loading():
    policy, _, tensors = make(ActionSpec(2))
    layout = policy_layout(design_for(ActionSpec(2)))
    update = PolicyUpdate("Test", 1, np.concatenate([tensors[n].reshape(-1) for n, _ in layout]), layout, 0)
    policy.load(update)
    before = policy.act(observations(3), None, np.random.default_rng(0)).columns["continuous_actions"]
    update.weights[:] = 0.0
    after = policy.act(observations(3), None, np.random.default_rng(0)).columns["continuous_actions"]
    np.testing.assert_array_equal(before, after)


def zeros(layout):
    return PolicyUpdate("Test", 1, np.zeros(sum(int(np.prod(shape)) for _, shape in layout), np.float32), layout, 0)


def test_a_policy_of_another_network_is_refused_by_tensor():
    policy, _, _ = make(ActionSpec(2))
    with pytest.raises(StageError, match=r"expected tensor body.0.weight \(5, 16\), got \(5, 8\)"):
        policy.load(zeros(policy_layout(design_for(ActionSpec(2), hidden_units=8))))
    with pytest.raises(StageError, match=r"expected tensor normalizer.mean to be absent, got \(5,\)"):
        policy.load(zeros(policy_layout(design_for(ActionSpec(2), normalize=True))))
    with pytest.raises(StageError, match=r"expected tensor action.weight \(16, 2\), got \(16, 4\)"):
        policy.load(zeros(policy_layout(design_for(ActionSpec(2), squashed=True))))


def test_tensors_may_come_in_any_order():
    policy, _, tensors = make(ActionSpec(2))
    layout = tuple(reversed(policy_layout(design_for(ActionSpec(2)))))
    shuffled = NumpyPolicy(design_for(ActionSpec(2)))
    weights = np.concatenate([tensors[name].reshape(-1) for name, _ in layout])
    shuffled.load(PolicyUpdate("Test", 1, weights, layout, 0))
    np.testing.assert_array_equal(shuffled.heads(observations(3)), policy.heads(observations(3)))


def test_a_squashed_policy_has_log_sigma_among_its_heads_and_not_among_its_tensors():
    layout = dict(policy_layout(design_for(ActionSpec(2, (3,)), squashed=True)))
    assert layout["action.weight"] == (16, 2 + 2 + 3)
    assert "log_sigma" not in layout


def test_acting_without_a_policy_is_an_error():
    policy = NumpyPolicy(design_for(ActionSpec(2)))
    with pytest.raises(StageError, match="no policy has been loaded"):
        policy.act(observations(1), None, np.random.default_rng(0))


def test_a_design_that_needs_torch_is_refused():
    with pytest.raises(StageError, match="make_policy"):
        NumpyPolicy(design_for(ActionSpec(2), memory={}))


@pytest.mark.lengthy
def test_acting_needs_neither_torch_nor_an_environment_package():
    code = """
import sys, headrace.stages.environments.factory, headrace.pipeline.policies.export, headrace.pipeline.roles.actor
import headrace.stages.trainer.stage
from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.numpy_policy import make_policy
spec = BehaviorSpec("Test", (ObservationSpec("o", (2,)),), ActionSpec(2))
make_policy(PolicyDesign(spec, NetworkSettings(), squashed=True))
print([name for name in ("torch", "gymnasium", "pettingzoo") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=_root(), check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def _root():
    from pathlib import Path

    return Path(__file__).parents[3]


def drawn(actions, seed=0, squashed=False, **design):
    """A policy of random weights."""
    made = replace(design_for(actions, squashed), **design)
    random = np.random.default_rng(seed)
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in policy_layout(made)}
    return policy_of(made, tensors)


KINDS = {
    "discrete": (ActionSpec(discrete_branches=(3, 2)), False),
    "Gaussian": (ActionSpec(continuous_size=2), False),
    "squashed": (ActionSpec(continuous_size=2), True),
    "both": (ActionSpec(continuous_size=1, discrete_branches=(3,)), False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_policies_that_act_together_draw_as_one_would_for_all_rows(kind):
    actions, squashed = KINDS[kind]
    policy, copy = (drawn(actions, squashed=squashed) for _ in range(2))
    seen, rows = observations(9), (np.array([0, 2, 3, 8]), np.array([1, 4, 5, 6, 7]))
    alone = policy.act(seen, None, np.random.default_rng(3))
    together = act_together([(policy, rows[0]), (copy, rows[1])], seen, None, np.random.default_rng(3))
    assert together.columns.keys() == alone.columns.keys()
    for name, column in alone.columns.items():
        np.testing.assert_allclose(together.columns[name], column, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_the_policies_that_act_together_decides_for_its_rows(kind):
    actions, squashed = KINDS[kind]
    policies = [drawn(actions, seed, squashed) for seed in (0, 1)]
    seen, rows = observations(9), (np.array([0, 2, 3, 8]), np.array([1, 4, 5, 6, 7]))
    random = np.random.default_rng(3)
    together = act_together(list(zip(policies, rows, strict=True)), seen, None, random, deterministic=True)
    for policy, some in zip(policies, rows, strict=True):
        alone = policy.act(tuple(o[some] for o in seen), None, random, deterministic=True)
        for name, column in alone.columns.items():
            np.testing.assert_allclose(together.columns[name][some], column, rtol=1e-5, atol=1e-6)


def test_policies_of_other_designs_or_that_draw_uniformly_do_not_act_together():
    three, two = (drawn(ActionSpec(discrete_branches=(n,))) for n in (3, 2))
    learned, fresh = (drawn(ActionSpec(continuous_size=2), squashed=True, random_steps=10) for _ in range(2))
    layout = policy_layout(replace(design_for(ActionSpec(continuous_size=2), True), random_steps=10))
    weights = np.zeros(sum(math.prod(shape) for _, shape in layout), np.float32)
    learned.load(PolicyUpdate("Test", 8, weights, layout, step=20))
    assert three.joins(three, deterministic=False)
    assert not three.joins(two, deterministic=True)
    assert not learned.joins(fresh, deterministic=False)  # that one still draws uniformly
    assert learned.joins(fresh, deterministic=True)


@pytest.mark.parametrize("normalize", [False, True])
def test_policies_that_act_together_have_the_same_heads_bit_for_bit_as_separately(normalize):
    design = design_for(ActionSpec(3), normalize=normalize)
    policies = [make(ActionSpec(3), seed, normalize=normalize)[0] for seed in range(4)]
    seen, owners = observations(40), np.random.default_rng(1).integers(0, 4, 40)
    parts = [(policy, np.flatnonzero(owners == i)) for i, policy in enumerate(policies)]
    together = act_together(parts, seen, None, np.random.default_rng(2), deterministic=True)
    for policy, rows in parts:
        alone = policy.heads(tuple(o[rows] for o in seen))[:, : design.spec.actions.continuous_size]
        np.testing.assert_array_equal(together.columns["continuous_actions"][rows], alone)


def test_of_policies_that_act_together_the_one_whose_heads_are_not_finite_is_named():
    design = design_for(ActionSpec(2))
    _, _, tensors = make(ActionSpec(2))
    lost = policy_of(design, tensors, version=8)
    lost._weights[0][:] = np.nan
    parts = [(policy_of(design, tensors), np.array([0, 2, 4])), (lost, np.array([1, 3]))]
    with pytest.raises(NotFiniteError, match="policy version 8 outputs .* for row 0 of 2 agents"):
        act_together(parts, observations(5), None, np.random.default_rng(0))
