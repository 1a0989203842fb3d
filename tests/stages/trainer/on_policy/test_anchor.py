"""The anchor of a regularised policy: its divergence, the way that it goes, and what a checkpoint keeps of it."""

from __future__ import annotations

from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence

from headrace.config import PPOHyperparameters, RegularizationSettings
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.trainer.on_policy.anchor import Anchor, described, divergence


class Fixed:
    """A network as far as an anchor looks at it."""

    squashed = False
    log_sigma = torch.tensor([0.3, -0.2])

    def __init__(self, *weights: float) -> None:
        self.values = torch.tensor(weights)

    def named_views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"w": vector}


BATCH: Any = SimpleNamespace(inputs=None, real=None, penalties=torch.empty(1, 0))


def anchor_of(network: Any, **settings: Any) -> Anchor:
    return Anchor(network, RegularizationSettings(**settings), ActionSpec(0, (2,)))


def weights(anchor: Anchor) -> list[float]:
    return [float(number) for number in anchor.state_dict()["anchor"]["w"]]


def test_the_divergence_is_that_of_torch_s_distributions_summed_over_actions():
    sizes, random = (2, (3, 2)), torch.Generator().manual_seed(1)
    now, then = torch.randn(5, 7, generator=random), torch.randn(5, 7, generator=random)
    log_sigma, of_other = torch.tensor([0.3, -0.2]), torch.tensor([-0.5, 0.1])
    found = divergence(described(now, log_sigma, *sizes), described(then, of_other, *sizes), 2)
    gaussian = kl_divergence(Normal(now[:, :2], log_sigma.exp()), Normal(then[:, :2], of_other.exp()))
    branches = [
        kl_divergence(Categorical(logits=now[:, part]), Categorical(logits=then[:, part]))
        for part in (slice(2, 5), slice(5, 7))
    ]
    assert found.tolist() == pytest.approx((gaussian.sum(1) + sum(branches)).tolist(), rel=1e-5)


def test_forbidden_actions_have_no_share_in_the_divergence_or_its_gradient():
    penalties = torch.tensor([[0.0, 0.0, float(MASK_PENALTY)]])
    now = torch.tensor([[log(3.0), 0.0, 5.0]], requires_grad=True)
    then = torch.tensor([[0.0, 0.0, -7.0]])
    found = divergence(described(now, None, 0, (3,), penalties), described(then, None, 0, (3,), penalties), 0)
    assert found.item() == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5), rel=1e-5), "of (3/4, 1/4) from (1/2, 1/2)"
    found.backward()
    assert now.grad is not None
    # p (log p / q - k) of each
    slope = 0.75 * (log(1.5) - found.item())
    assert now.grad[0].tolist() == pytest.approx([slope, -slope, 0.0], abs=1e-6)


def test_an_anchor_begins_where_the_policy_is_and_follows_it_by_agent_steps():
    network = Fixed(1.0, 2.0)
    anchor = anchor_of(network, anchor_steps=100)
    assert anchor.state_dict() == {"anchor": None, "average": None}
    found = anchor.columns(lambda inputs: torch.tensor([[0.0, log(3.0)]]), [BATCH])
    assert found.tolist() == [pytest.approx([log(0.25), log(0.75)])]
    network.values += 10.0
    anchor.follow(50)
    half = exp(-0.5)
    assert weights(anchor) == pytest.approx([11 - 10 * half, 12 - 10 * half])
    anchor.follow(20)
    anchor.follow(30)
    assert weights(anchor) == pytest.approx([11 - 10 * half**2, 12 - 10 * half**2]), "however large updates are"


def test_the_network_has_its_own_weights_back_whatever_happens():
    network = Fixed(1.0)
    anchor = anchor_of(network)
    anchor.load_state_dict({"anchor": {"w": np.array([5.0], np.float32)}})

    def heads(inputs: Any) -> torch.Tensor:
        assert network.values.tolist() == [5.0]
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        anchor.columns(heads, [BATCH])
    assert network.values.tolist() == [1.0]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_the_average_weighs_weights_by_a_power_of_the_step_and_continues_from_a_checkpoint(share):
    network, steps = Fixed(0.0), np.arange(10, 2001, 10)
    anchor = anchor_of(network, averaged_share=share)
    seen = np.random.default_rng(2).random(len(steps), np.float32)
    for step, weight in zip(steps, seen, strict=True):
        if step == 1000:
            state, anchor = anchor.state_dict(), anchor_of(network, averaged_share=share)
            anchor.load_state_dict(state)
        network.values[0] = float(weight)
        anchor.average(10, int(step))
    with anchor.averaged():
        average = float(network.values[0])
    assert float(network.values[0]) == seen[-1]
    assert average == pytest.approx(np.average(seen, weights=steps ** (1 / share - 1.0)), abs=0.005)


def test_an_anchor_of_another_network_is_refused():
    for wrong in ({"coefficient": 0}, {"anchor_steps": 0}):
        with pytest.raises(ValueError, match="greater than 0"):
            PPOHyperparameters.model_validate({"regularization": wrong})
    with pytest.raises(ValueError, match="less than or equal to 1"):
        PPOHyperparameters.model_validate({"regularization": {"averaged_share": 1.5}})
