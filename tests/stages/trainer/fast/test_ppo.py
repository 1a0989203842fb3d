"""Manual gradients of PPO are those of autograd, for every combination of actions, masks, heads, layers and losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from tensors import assert_close

from headrace.config import NetworkSettings, PPOHyperparameters, RegularizationSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import BF16, MASK_PENALTY, TORCHS_OWN, PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.layers import ACTIVATIONS, Inputs
from headrace.stages.trainer.fast.ppo import ManualPPOUpdate
from headrace.stages.trainer.on_policy.anchor import Anchor
from headrace.stages.trainer.on_policy.rollout import Minibatch
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOUpdate
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas

ACTIONS = st.builds(
    ActionSpec,
    continuous_size=st.integers(0, 3),
    discrete_branches=st.lists(st.integers(2, 4), max_size=3).map(tuple),
).filter(lambda actions: actions.continuous_size or actions.discrete_branches)
CASES = st.fixed_dictionaries(
    {
        "actions": ACTIONS,
        "activation": st.sampled_from(list(ACTIVATIONS)),
        "hidden_units": st.integers(1, 9) | st.sampled_from([16, 48]) | st.integers(127, 129),
        "num_layers": st.integers(1, 3),
        "vector": st.integers(1, 5),
        "signals": st.integers(1, 3),
        "shared": st.booleans(),
        "masked": st.booleans(),
        "regularized": st.booleans(),
        "per_dimension": st.booleans(),
        "weighted": st.booleans(),
        "rows": st.integers(1, 12),
        "expected_rows": st.sampled_from([0, 10**6]),
        "beta": st.sampled_from([0.0, 0.01, 1.0]),
        "value_coefficient": st.sampled_from([0.0, 0.5, 2.0]),
        "share": st.sampled_from([None, 0.375]),
        "seed": st.integers(0, 10**6),
    }
)


def minibatch_of(case, random: np.random.Generator) -> Minibatch:
    """Rows as a rollout gives them: columns of one wide matrix, side by side."""
    actions, rows = case["actions"], case["rows"]
    columns = actions.continuous_size + len(actions.discrete_branches) if case["per_dimension"] else 1
    masked = case["masked"] and actions.discrete_branches
    widths = {
        "vectors": case["vector"],
        "continuous": actions.continuous_size,
        "penalties": actions.mask_size if masked else 0,
        "old_log_probs": columns,
        "advantages": columns if case["weighted"] else 1,
        "returns": case["signals"],
    }
    wide = torch.from_numpy(random.standard_normal((rows, sum(widths.values())))).to(torch.get_default_dtype())
    parts = dict(zip(widths, torch.split(wide, list(widths.values()), dim=1), strict=True))
    choices = [random.integers(0, size, (rows, 1)) for size in actions.discrete_branches]
    if masked:
        forbidden = random.random((rows, actions.mask_size)) < 0.3
        first = 0
        for size, chosen in zip(actions.discrete_branches, choices, strict=True):
            np.put_along_axis(forbidden[:, first : first + size], chosen, False, axis=1)
            first += size
        parts["penalties"].copy_(torch.from_numpy(np.where(forbidden, MASK_PENALTY, 0.0)))
    parts["old_log_probs"] -= 1.5 * max(1, len(choices))
    return Minibatch(
        choices=tuple(torch.from_numpy(chosen) for chosen in choices),
        inputs=Inputs(parts["vectors"]),
        continuous=parts["continuous"],
        penalties=parts["penalties"],
        old_log_probs=parts["old_log_probs"],
        advantages=parts["advantages"],
        returns=parts["returns"],
        rows=torch.arange(rows),
        share=case["share"] or 1.0,
        anchor=anchor_of(actions, parts["penalties"], random) if case["regularized"] else None,
    )


def anchor_of(actions, penalties, random: np.random.Generator) -> torch.Tensor:
    """An anchor's columns for rows with these penalties, in the same masks."""
    made = torch.from_numpy(random.standard_normal((len(penalties), 2 * actions.continuous_size + actions.mask_size)))
    made = made.to(penalties)
    logits = made[:, 2 * actions.continuous_size :]
    logits += penalties if penalties.shape[1] else 0.0
    for branch in torch.split(logits, list(actions.discrete_branches), dim=1):
        branch.copy_(torch.log_softmax(branch, dim=1))
    return made


def ppo_of(case, design: PolicyDesign, random: np.random.Generator, replicas: Replicas):
    """PPO's network, its update, and a minibatch."""
    spec, per_dimension = design.spec, case["per_dimension"]
    network = ActorCritic(design, case["signals"], case["shared"], random)
    settings = PPOHyperparameters(
        value_coefficient=case["value_coefficient"],
        ratio_per_dimension=per_dimension,
        batch_size=max(1, case["expected_rows"]),
        buffer_size=10**6,
    )
    anchor = Anchor(network, RegularizationSettings(coefficient=0.7), spec.actions) if case["regularized"] else None
    update = PPOUpdate(network, spec, settings, replicas, anchor)
    return network, update, minibatch_of(case, random)


class OneOfTwo(Replicas):
    """One replica of two; gradients are found without a word to the other."""

    size = 2

    def add_up(self, *tensors: torch.Tensor) -> None:
        raise AssertionError("only once they are found")


def both_ways(case, products=TORCHS_OWN) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Losses, log-ratios, and the actor's and the critic's gradients: by autograd, and by hand."""
    random = np.random.default_rng(case["seed"])
    spec = BehaviorSpec("Agent?team=0", (ObservationSpec("o", (case["vector"],)),), case["actions"])
    network_settings = NetworkSettings(
        hidden_units=case["hidden_units"], num_layers=case["num_layers"], activation=case["activation"]
    )
    design = PolicyDesign(spec, network_settings, products=products)
    replicas = SINGLE_TRAINER if case["share"] is None else OneOfTwo()
    network, update, minibatch = ppo_of(case, design, random, replicas)
    network.values += torch.from_numpy(0.5 * random.standard_normal(len(network.values)))
    network.gradients.fill_(7.0)  # of the minibatch before
    coefficients = Coefficients(1e-3, case["beta"], 0.2)
    weights, found = update.loss_weights(coefficients).to(network.values), []
    for way in (update, ManualPPOUpdate(update)):
        losses, log_ratios = way.find_gradients(minibatch, coefficients, weights)
        found.append((losses, log_ratios.clone(), network.parts * network.gradients))
    return dict(zip(("losses", "log-ratios", "gradients"), zip(*found, strict=True), strict=True))


@pytest.mark.lengthy
@given(case=CASES)
@examples(20)
def test_in_double_precision_they_agree_to_a_billionth(case):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = both_ways(case)
    finally:
        torch.set_default_dtype(before)
    for by_autograd, by_hand in found.values():
        assert_close(by_hand, by_autograd, rtol=1e-9, atol=1e-9)


@pytest.mark.lengthy
@given(case=CASES)
@examples(12)
def test_in_single_precision_they_agree_to_five_digits(case):
    for by_autograd, by_hand in both_ways(case).values():
        scale = float(by_autograd.abs().max())
        assert_close(by_hand, by_autograd, rtol=1e-5, atol=1e-5 * max(1.0, scale))


@pytest.mark.lengthy
@given(case=CASES)
@examples(8)
def test_in_bfloat16_they_agree_within_its_rounding(case):
    """Factors of both are rounded, but not at the same places: autograd's way rounds results as well."""
    wide = case | {"hidden_units": 160, "num_layers": 2, "rows": 64}
    for by_autograd, by_hand in zip(*both_ways(wide, BF16)["gradients"], strict=True):
        assert float((by_hand - by_autograd).norm()) <= 0.05 * float(by_autograd.norm())
