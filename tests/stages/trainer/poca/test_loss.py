import pytest
import torch

from stages.trainer.poca.loss import baseline_loss


def loss(baseline, old, target, epsilon=0.2):
    baseline = torch.tensor([[baseline]], requires_grad=True)
    value = baseline_loss(baseline, torch.tensor([[old]]), torch.tensor([[target]]), epsilon)
    value.backward()
    return value.item(), baseline.grad.item()


def test_within_the_clip_range_it_is_the_squared_error():
    value, slope = loss(1.1, 1.0, 2.0)
    assert value == pytest.approx(0.81)
    assert slope == pytest.approx(-1.8)


def test_beyond_it_towards_the_target_nothing_more_is_to_be_had():
    value, slope = loss(1.5, 1.0, 2.0)
    assert value == pytest.approx(0.64), "that of 1.2"
    assert slope == 0.0


def test_beyond_it_away_from_the_target_the_way_back_stays_open():
    value, slope = loss(0.5, 1.0, 2.0)
    assert value == pytest.approx(2.25)
    assert slope == pytest.approx(-3.0)


def test_it_is_the_mean_over_rows_and_signals():
    baselines, old = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    value = baseline_loss(baselines, old, torch.zeros(2, 2), 0.2)
    assert value.item() == pytest.approx((1 + 4 + 9 + 16) / 4)
