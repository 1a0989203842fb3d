"""Manual gradients of soft actor-critic are those of autograd, for all sizes, activations and signals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from tensors import assert_close

from headrace.config import NetworkSettings, SACHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import BF16, TORCHS_OWN, PolicyDesign
from headrace.stages.policy.network.layers import ACTIVATIONS, Inputs
from headrace.stages.trainer.fast.sac import ManualSACUpdate
from headrace.stages.trainer.replay.replay_memory import ReplayMinibatch
from headrace.stages.trainer.sac import SACNetworks, SACUpdate

CASES = st.fixed_dictionaries(
    {
        "actions": st.integers(1, 3),
        "activation": st.sampled_from(list(ACTIVATIONS)),
        "hidden_units": st.integers(1, 9) | st.integers(31, 34),
        "num_layers": st.integers(1, 3),
        "vector": st.integers(1, 3) | st.just(40),
        "signals": st.integers(1, 3),
        "rows": st.integers(1, 12),
        "wide": st.booleans(),
        "equal": st.booleans(),
        "auto": st.booleans(),
        "seed": st.integers(0, 10**6),
    }
)
MEASURED = ("losses", "q1", "q2", "targets", "values", "negentropies")


def batch_of(case, random, dtype):
    """A minibatch, rewards, discounts and noise."""

    def drawn(*shape):
        return torch.from_numpy(random.standard_normal(shape)).to(dtype)

    rows, vector, actions = case["rows"], case["vector"], case["actions"]
    seen, following = Inputs(drawn(rows, vector)), Inputs(drawn(rows, vector))
    batch = ReplayMinibatch(seen, seen, following, drawn(rows, actions).tanh(), (), None, None, None)
    discounts = 0.9 * torch.from_numpy(random.integers(0, 2, (rows, case["signals"]))).to(dtype)
    return batch, drawn(rows, case["signals"]), discounts, drawn(2 * rows, actions)


def update_of(case, by_hand, products=TORCHS_OWN):
    """An update whose weights are drawn from the case's seed."""
    spec = BehaviorSpec("Agent?team=0", (ObservationSpec("o", (case["vector"],)),), ActionSpec(case["actions"]))
    network = {name: case[name] for name in ("hidden_units", "num_layers", "activation")}
    design = PolicyDesign(spec, NetworkSettings.model_validate(network), squashed=True, products=products)
    hyperparameters = SACHyperparameters(
        entropy_coefficient="auto" if case["auto"] else "fixed", tau=0.3, init_entcoef=0.2, target_entropy=-0.7
    )
    random = np.random.default_rng(case["seed"])
    networks = SACNetworks.drawn(design, hyperparameters, case["signals"], random, "cpu")
    update = SACUpdate(networks, design, hyperparameters)
    if by_hand:
        update = ManualSACUpdate(update)
    if case["wide"]:  # spreads beyond their limits, and actions at their ends
        update.actor.values.mul_(20.0)
    if case["equal"]:
        half = len(update.critics.values) // 2
        update.critics.values[half:] = update.critics.values[:half]
    return update


def both_ways(case, dtype, steps=2, products=TORCHS_OWN):
    """Of each of several steps what was measured, and the gradients and weights: by autograd, and by hand."""
    found = []
    for by_hand in (False, True):
        random, update = np.random.default_rng(case["seed"] + 1), update_of(case, by_hand, products)
        of_steps = []
        for step in range(steps):
            sized = case if step else case | {"rows": case["rows"] + 1}  # buffers of one size must not show in the next
            measures = update.step(*batch_of(sized, random, dtype), 1e-2)
            flats = (update.actor, update.critics, update.coefficients, update.target)
            of_steps += [getattr(measures, name).clone() for name in MEASURED]
            of_steps += [vector.clone() for flat in flats for vector in (flat.gradients, flat.values)]
        found.append(of_steps)
    return list(zip(*found, strict=True))


@pytest.mark.lengthy
@given(case=CASES)
@examples(24)
def test_in_double_precision_they_agree_to_a_billionth(case):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = both_ways(case, torch.float64)
    finally:
        torch.set_default_dtype(before)
    for by_autograd, by_hand in found:
        assert_close(by_hand, by_autograd, rtol=1e-9, atol=1e-9)


@pytest.mark.lengthy
@given(case=CASES)
@examples(15)
def test_in_single_precision_they_agree_to_five_digits(case):
    for by_autograd, by_hand in both_ways(case | {"wide": False}, torch.float32, steps=1)[:-2]:
        scale = max(1.0, float(by_autograd.abs().max()))
        assert_close(by_hand, by_autograd, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.lengthy
@given(case=CASES)
@examples(8)
def test_in_bfloat16_they_agree_within_its_rounding(case):
    sized = case | {"hidden_units": 160, "num_layers": 2, "rows": 32, "wide": False}
    *_, (by_autograd, by_hand), _ = both_ways(sized, torch.float32, steps=1, products=BF16)[:10]
    assert float((by_hand - by_autograd).norm()) <= 0.05 * float(by_autograd.norm())


@pytest.mark.lengthy
@pytest.mark.parametrize("activation", ["relu", "swish"])
def test_two_threads_give_the_same_bits_as_one(activation):
    case = {"actions": 2, "activation": activation, "hidden_units": 40, "num_layers": 2, "vector": 3, "signals": 2}
    case |= {"rows": 70, "wide": True, "equal": False, "auto": True, "seed": 5}
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            update = update_of(case, by_hand=True)
            update.use_threads(threads)
            random = np.random.default_rng(7)
            measured = [update.step(*batch_of(case, random, torch.float32), 1e-2).losses for _ in range(3)]
            found.append([*measured, *(flat.values for flat in (update.actor, update.critics, update.target))])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)
