from math import log

import pytest
import torch

from headrace.stages.trainer.ppo import clipped_policy_loss


def loss_and_gradient(ratios, advantages, epsilon=0.2):
    log_probs = torch.tensor([[log(r) for r in row] for row in ratios], dtype=torch.float64, requires_grad=True)
    loss = clipped_policy_loss(log_probs, torch.tensor(advantages).double()[:, None], epsilon)
    loss.backward()
    return loss.item(), log_probs.grad.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [
        (1.5, 2.0, -2.4, 0.0),  # better, and already beyond 1.2: no further push
        (0.5, 2.0, -1.0, -1.0),  # better, but less likely than before: unclipped
        (1.5, -2.0, 3.0, 3.0),  # worse, and more likely than before: unclipped
        (0.5, -2.0, 1.6, 0.0),  # worse, and already below 0.8
        (1.1, 2.0, -2.2, -2.2),  # within the range
    ],
)
def test_the_surrogate_is_clipped_on_the_side_where_it_would_gain(ratio, advantage, expected, gradient):
    loss, gradients = loss_and_gradient([[ratio]], [advantage])
    assert loss == pytest.approx(expected, rel=1e-6)
    assert gradients[0][0] == pytest.approx(gradient, rel=1e-6)


def test_per_dimension_each_column_is_clipped_by_itself_and_all_are_averaged():
    # Columns of one row with advantage 2: min(3, 2.4) and min(1, 1.6); mean of 2.4 and 1, sign turned.
    loss, gradients = loss_and_gradient([[1.5, 0.5]], [2.0])
    assert loss == pytest.approx(-1.7)
    assert gradients[0] == pytest.approx([0.0, -0.5])
