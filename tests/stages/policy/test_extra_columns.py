"""Columns that a trainer asks of the policies: what is in them, and what can't be asked for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from fakes import trajectories
from numpy.typing import NDArray

from headrace.config import NetworkSettings
from headrace.queues.columns import Column, decision_columns
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import LoadError, StageError
from headrace.stages.policy.design import (
    MASK_PENALTY,
    PolicyDesign,
    action_heads_column,
    check_extra_columns,
    policy_layout,
    require_columns,
    split_action_heads,
)
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import Inputs, categorical_log_probs, gaussian_log_probs, log_tanh_slope
from headrace.stages.policy.numpy_policy import NumpyPolicy, make_policy
from headrace.stages.policy.protocol import Recall
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS

ACTIONS = {
    "continuous": ActionSpec(2),
    "discrete": ActionSpec(0, (4,)),
    "masked": ActionSpec(0, (3, 2), masked=True),
    "hybrid": ActionSpec(2, (3, 2), masked=True),
}
NETWORKS = {"plain": None, "recurrent": {"memory_size": 6, "sequence_length": 4}}
CASES = [
    pytest.param(actions, squashed, memory, id=f"{name}-{network}{'-squashed' * squashed}")
    for (name, actions), (network, memory), squashed in product(ACTIONS.items(), NETWORKS.items(), (False, True))
    if actions.continuous_size or not squashed
]
ROWS = 60


def design_for(actions, squashed=False, memory=None, extra=("action_heads",)):
    spec = BehaviorSpec("Test", (ObservationSpec("o", (3,)),), actions)
    network = NetworkSettings.model_validate({"hidden_units": 8, "num_layers": 1, "memory": memory})
    return PolicyDesign(spec, network, squashed, extra_columns=extra)


def make(design):
    """A policy and the network whose weights it has: large enough that actions differ in likelihood."""
    random = np.random.default_rng(1)
    network = seeded(random, lambda: ActorNetwork(design)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.from_numpy(random.normal(0, 0.4, parameter.shape).astype(np.float32)))
    tensors, layout = network.acting_tensors(), policy_layout(design)
    policy = make_policy(design)
    policy.load(PolicyUpdate("Test", 3, np.concatenate([tensors[name].reshape(-1) for name, _ in layout]), layout, 0))
    return policy, network


def masks_for(actions: ActionSpec) -> NDArray[np.bool_] | None:
    """Masks that leave the first choice of each branch and forbid half of the others."""
    if not actions.masked:
        return None
    masks = np.random.default_rng(2).random((ROWS, actions.mask_size)) < 0.5
    masks[:, np.cumsum((0, *actions.discrete_branches[:-1]))] = True
    return masks


def decide(design):
    """What a policy decides for some rows, and the heads that its network has for them in torch."""
    policy, network = make(design)
    random = np.random.default_rng(4)
    seen = random.normal(size=(ROWS, 3)).astype(np.float32)
    inputs, recall = Inputs(torch.from_numpy(seen)), None
    if design.memory_size:
        recall = Recall(
            random.normal(size=(ROWS, design.memory_size)).astype(np.float32),
            random.normal(size=(ROWS, design.previous_action_size)).astype(np.float32),
        )
        inputs = inputs._replace(
            memories=torch.from_numpy(recall.memories), previous_actions=torch.from_numpy(recall.previous_actions)
        )
    decision = policy.act((seen,), masks_for(design.spec.actions), np.random.default_rng(5), recall=recall)
    with torch.no_grad():
        heads, _ = network(inputs)
    return decision, heads, network


@pytest.mark.parametrize(("actions", "squashed", "memory"), CASES)
def test_action_heads_are_those_of_the_network_with_these_weights(actions, squashed, memory):
    design = design_for(actions, squashed, memory)
    assert isinstance(make_policy(design), NumpyPolicy) == (memory is None)
    decision, heads, network = decide(design)
    column = decision.columns["action_heads"]
    assert (column.dtype, column.shape[1:]) == ("float32", action_heads_column(design.spec).shape)
    found, c = split_action_heads(design.spec, column), actions.continuous_size
    np.testing.assert_allclose(found.means, heads[:, :c], atol=2e-5)
    if squashed:
        np.testing.assert_allclose(found.log_sigmas, heads[:, c : 2 * c].clamp(*LOG_SIGMA_LIMITS), atol=2e-5)
    elif c:
        np.testing.assert_array_equal(found.log_sigmas, np.tile(network.log_sigma.detach(), (ROWS, 1)))
    logits = heads[:, -actions.mask_size :] if actions.mask_size else heads[:, :0]
    np.testing.assert_allclose(np.concatenate([logits[:, :0], *found.logits], axis=1), logits, atol=2e-5)


@pytest.mark.parametrize(("actions", "squashed", "memory"), CASES)
def test_action_heads_and_actions_give_the_recorded_log_probabilities(actions, squashed, memory):
    design = design_for(actions, squashed, memory)
    columns = decide(design)[0].columns
    heads = split_action_heads(design.spec, torch.from_numpy(columns["action_heads"]))
    found, kept = [], np.ones(ROWS, np.bool_)
    if actions.continuous_size:
        taken = torch.from_numpy(columns["continuous_actions"])
        if squashed:  # an action next to 1 no longer tells what was drawn
            kept = (taken.abs() < 0.99).all(1).numpy()
            drawn = torch.atanh(taken)
            found.append(gaussian_log_probs(heads.means, heads.log_sigmas, drawn) - log_tanh_slope(drawn))
        else:
            found.append(gaussian_log_probs(heads.means, heads.log_sigmas, taken))
    ends = np.cumsum(actions.discrete_branches)[:-1]
    masks = np.split(columns["action_masks"], ends, axis=1) if actions.masked else [None] * len(heads.logits)
    for index, (logits, allowed) in enumerate(zip(heads.logits, masks, strict=True)):
        if allowed is not None:
            logits = logits + torch.from_numpy(np.where(allowed, np.float32(0), MASK_PENALTY))
        chosen = torch.from_numpy(columns["discrete_actions"][:, index : index + 1].astype(np.int64))
        found.append(categorical_log_probs(logits, chosen)[0])
    assert kept.sum() > 20
    np.testing.assert_allclose(columns["log_probs"][kept], torch.cat(found, 1)[kept], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("actions", "squashed", "memory"), CASES)
def test_asking_for_a_column_changes_nothing_else_of_a_decision(actions, squashed, memory):
    asked, plain = (decide(design_for(actions, squashed, memory, extra))[0] for extra in (("action_heads",), ()))
    assert asked.columns.keys() - plain.columns.keys() == {"action_heads"}
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(asked.columns[name], column)
    np.testing.assert_array_equal(asked.actions.continuous, plain.actions.continuous)
    np.testing.assert_array_equal(asked.actions.discrete, plain.actions.discrete)


@pytest.mark.parametrize(("actions", "squashed", "memory"), CASES)
def test_a_decision_has_the_columns_that_its_design_announces(actions, squashed, memory):
    design = design_for(actions, squashed, memory)
    table = {c.name: (np.dtype(c.dtype), c.shape) for c in decision_columns(design.spec, design.added_columns)}
    columns = decide(design)[0].columns
    assert {name: (column.dtype, column.shape[1:]) for name, column in columns.items()} == table


def test_action_heads_stay_when_the_policy_acts_again():
    policy, _ = make(design_for(ActionSpec(0, (3,))))
    first = policy.act((np.ones((2, 3), np.float32),), None, np.random.default_rng(0)).columns["action_heads"]
    kept = first.copy()
    policy.act((np.zeros((2, 3), np.float32),), None, np.random.default_rng(0))
    np.testing.assert_array_equal(first, kept)


def test_columns_that_no_policy_gives_are_refused_with_those_that_policies_give():
    check_extra_columns(["action_heads"], "Mine")
    with pytest.raises(LoadError, match="Mine requests the columns logits, .*can name action_heads; .*always present$"):
        check_extra_columns(["action_heads", "logits"], "Mine")
    with pytest.raises(LoadError, match="requests the columns values, .* the trainer must compute a baseline"):
        check_extra_columns(["values"], "Mine")


def test_rows_without_a_requested_column_or_with_a_different_one_of_its_name_are_refused():
    batch = trajectories([3, 2])
    column = Column("action_heads", "float32", (4,))
    whole = batch.replace(action_heads=np.zeros((5, 4), np.float32))
    require_columns(whole, [column])
    with pytest.raises(
        StageError, match=r"action_heads for each decision, float32 \(4,\), but got no column of this name\. A rec"
    ):
        require_columns(batch, [column])
    for other in (np.zeros((5, 3), np.float32), np.zeros((5, 4))):
        with pytest.raises(StageError, match=rf"but got {other.dtype} \({other.shape[1]},\)"):
            require_columns(batch.replace(action_heads=other), [column])
