"""Trainers of ours compute by torch's own defaults, whatever an environment in the same process has set."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import defaults_of


@contextmanager
def dtype(of_users):
    torch.set_default_dtype(of_users)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "changed",
    [lambda: dtype(torch.float64), lambda: torch.device("meta"), torch.no_grad, torch.inference_mode],
    ids=["dtype", "device", "no_grad", "inference_mode"],
)
def test_an_update_is_the_same_whatever_has_been_set_and_that_holds_again_behind_it(changed):
    with changed():
        before = (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
        with defaults_of(PPOTrainer):
            layer = torch.nn.Linear(2, 1)
            layer(torch.ones(3, 2)).sum().backward()
        assert (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()) == before
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[3.0, 3.0]]
    assert (layer.weight.dtype, layer.weight.device.type) == (torch.float32, "cpu")
