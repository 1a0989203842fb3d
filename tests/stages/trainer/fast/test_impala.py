"""Manual gradients of the actor–learner are those of autograd, for all its losses."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ImpalaHyperparameters, NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.layers import ACTIVATIONS, Inputs
from headrace.stages.trainer.fast.impala import ManualImpalaUpdate
from headrace.stages.trainer.impala import ImpalaUpdate, Unrolls
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.protocol import ReplicaSlice

CASES = st.fixed_dictionaries(
    {
        "actions": st.builds(
            ActionSpec,
            continuous_size=st.integers(0, 3),
            discrete_branches=st.lists(st.integers(2, 4), max_size=3).map(tuple),
        ).filter(lambda actions: actions.continuous_size or actions.discrete_branches),
        "activation": st.sampled_from(list(ACTIVATIONS)),
        "num_layers": st.integers(1, 2),
        "signals": st.integers(1, 3),
        "shared": st.booleans(),
        "masked": st.booleans(),
        "replayed": st.booleans(),
        "cloned": st.booleans(),
        "reduction": st.sampled_from(["sum", "mean"]),
        "clip_advantage": st.sampled_from([None, 0.5, True]),
        "beta": st.sampled_from([0.0, 0.01, 1.0]),
        "lengths": st.lists(st.integers(1, 4), min_size=2, max_size=4),
        "seed": st.integers(0, 10**6),
    }
)


def unrolls_of(case, random: np.random.Generator) -> Unrolls:
    """Random rows, of which those of the last trajectory may be replayed."""
    actions, lengths, signals = case["actions"], np.array(case["lengths"]), case["signals"]
    rows, size = int(lengths.sum()), actions.continuous_size
    kind = torch.get_default_dtype()
    normal = lambda *shape: torch.from_numpy(random.standard_normal(shape)).to(kind)  # noqa: E731
    fresh = rows - int(lengths[-1]) if case["replayed"] else rows
    heads = size + sum(actions.discrete_branches)
    penalties = torch.zeros(rows, heads)
    if size < heads:
        penalties[: rows // 2, size] = float(MASK_PENALTY)
    recorded_heads = recorded_values = None
    if fresh < rows:
        acted = normal(rows - fresh, heads + size) * 0.5
        recorded_heads = acted if case["cloned"] else None
        recorded_values = normal(rows - fresh, signals)
    return Unrolls(
        Inputs(normal(rows + len(lengths), 3)),
        None,
        normal(rows, size),
        tuple(torch.from_numpy(random.integers(1, width, (rows, 1))) for width in actions.discrete_branches),
        penalties if case["masked"] else None,
        random.normal(-2.0, 0.5, rows).astype(np.float32),
        random.standard_normal((rows, signals)),
        lengths,
        random.random((len(lengths), signals)) < 0.5,
        fresh,
        recorded_heads,
        recorded_values,
        rows,
        fresh,
        ReplicaSlice(slice(0, rows), 1.0),
    )


def learned(case, by_hand: bool):
    """The gradients of an update, and what it found."""
    random = np.random.default_rng(case["seed"])
    spec = BehaviorSpec("Test", (ObservationSpec("o", (3,)),), case["actions"])
    settings = NetworkSettings(hidden_units=7, num_layers=case["num_layers"], activation=case["activation"])
    network = ActorCritic(PolicyDesign(spec, settings), case["signals"], case["shared"], random)
    network.values += torch.from_numpy(0.3 * random.standard_normal(len(network.values))).to(network.values)
    network.gradients.fill_(7.0)  # of the update before
    hyperparameters = ImpalaHyperparameters(
        loss_reduction=case["reduction"],
        clip_advantage=case["clip_advantage"],
        policy_cloning_cost=0.3,
        value_cloning_cost=0.2,
        max_grad_norm=None,
    )
    update = ImpalaUpdate(
        network,
        spec,
        hyperparameters,
        np.full(case["signals"], 0.9),
    )
    if by_hand:
        update = ManualImpalaUpdate(update)
    found = update.learn(unrolls_of(case, random), Coefficients(1e-3, case["beta"]), 0)
    return network.gradients, found


def compare(case, precision: torch.dtype, near: float) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(precision)
    try:
        (expected, theirs), (gradients, ours) = learned(case, False), learned(case, True)
    finally:
        torch.set_default_dtype(before)
    assert gradients.dtype == precision
    assert (gradients - expected).abs().max() <= near * max(1.0, float(expected.abs().max()))
    for name in ("Policy/Entropy", *(name for name in theirs.statistics if name.startswith("loss/"))):
        expected_value = theirs.statistics[name]
        assert abs(ours.statistics[name] - expected_value) <= near * max(1.0, abs(expected_value)), name


@given(case=CASES)
def test_in_single_precision_they_agree_to_five_digits(case):
    compare(case, torch.float32, 1e-5)


@given(case=CASES)
def test_in_double_precision_they_agree_to_a_billionth(case):
    compare(case, torch.float64, 1e-9)
