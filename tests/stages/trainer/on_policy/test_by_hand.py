"""Gradients by hand are those of autograd, for every combination of actions, masks, heads, layers and losses."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import NetworkSettings, PPOHyperparameters
from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.policy.design import PolicyDesign
from stages.policy.layout import MASK_PENALTY
from stages.policy.network.actor_critic import ActorCritic
from stages.policy.network.inputs import Inputs
from stages.trainer.on_policy.minibatches import Minibatch
from stages.trainer.on_policy.update import Coefficients, OnPolicyUpdate
from stages.trainer.ppo.by_hand import PPOByHand
from stages.trainer.ppo.update import PPOUpdate

ACTIONS = st.builds(
    ActionSpec,
    continuous_size=st.integers(0, 3),
    discrete_branches=st.lists(st.integers(2, 4), max_size=3).map(tuple),
).filter(lambda actions: actions.continuous_size or actions.discrete_branches)
CASES = st.fixed_dictionaries(
    {
        "actions": ACTIONS,
        "activation": st.sampled_from(["tanh", "relu", "swish", "elu"]),
        "hidden_units": st.integers(1, 9) | st.integers(127, 129),
        "num_layers": st.integers(1, 3),
        "vector": st.integers(1, 5),
        "signals": st.integers(1, 3),
        "shared": st.booleans(),
        "masked": st.booleans(),
        "per_dimension": st.booleans(),
        "weighted": st.booleans(),
        "rows": st.integers(1, 12),
        "expected_rows": st.sampled_from([0, 10**6]),
        "beta": st.sampled_from([0.0, 0.01, 1.0]),
        "seed": st.integers(0, 10**6),
    }
)


def minibatch_of(case, random: np.random.Generator, columns: int) -> Minibatch:
    """Rows as a rollout gives them: columns of one wide matrix, side by side."""
    actions, rows = case["actions"], case["rows"]
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
    )


def both_ways(case, bf16: bool = False) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Losses, log-ratios and gradients: by autograd, and by hand."""
    random = np.random.default_rng(case["seed"])
    spec = BehaviorSpec("Agent?team=0", (ObservationSpec("o", (case["vector"],)),), case["actions"])
    network_settings = NetworkSettings(
        hidden_units=case["hidden_units"], num_layers=case["num_layers"], activation=case["activation"]
    )
    network = ActorCritic(PolicyDesign(spec, network_settings, bf16=bf16), case["signals"], case["shared"], random)
    network.values += torch.from_numpy(0.5 * random.standard_normal(len(network.values)))
    network.gradients.fill_(7.0)  # of the minibatch before
    by_hand = PPOByHand(network, spec.actions, case["per_dimension"], case["expected_rows"])
    update = PPOUpdate(network, spec, PPOHyperparameters(ratio_per_dimension=case["per_dimension"]), by_hand=by_hand)
    columns = case["actions"].continuous_size + len(case["actions"].discrete_branches)
    minibatch = minibatch_of(case, random, columns if case["per_dimension"] else 1)
    coefficients = Coefficients(1e-3, case["beta"], 0.2)
    weights, found = update.loss_weights(coefficients).to(network.values), []
    update._measuring = True
    for way in (OnPolicyUpdate.find_gradients, PPOUpdate.find_gradients):
        update._log_ratios.clear()
        losses = way(update, minibatch, coefficients, weights)
        found.append((losses, update._log_ratios[0].clone(), network.gradients.clone()))
    return dict(zip(("losses", "log-ratios", "gradients"), zip(*found, strict=True), strict=True))


@given(case=CASES)
def test_in_double_precision_they_agree_to_a_billionth(case):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = both_ways(case)
    finally:
        torch.set_default_dtype(before)
    for by_autograd, by_hand in found.values():
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-9, atol=1e-9)


@given(case=CASES)
def test_in_single_precision_they_agree_to_five_digits(case):
    for what, (by_autograd, by_hand) in both_ways(case).items():
        scale = float(by_autograd.abs().max()) if what == "gradients" else 1.0
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-5, atol=1e-5 * max(1.0, scale))


@given(case=CASES)
def test_in_bfloat16_they_agree_within_its_rounding(case):
    """Factors of both are rounded, but not at the same places: autograd's way rounds results as well."""
    by_autograd, by_hand = both_ways(case | {"hidden_units": 160, "num_layers": 2, "rows": 64}, bf16=True)["gradients"]
    assert float((by_hand - by_autograd).norm()) <= 0.05 * float(by_autograd.norm())
