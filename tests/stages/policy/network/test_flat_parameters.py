import numpy as np
import pytest
import torch
from tensors import assert_close
from torch import nn

from headrace.stages.errors import StageError
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded


def module():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def test_parameters_are_views_of_one_vector_in_their_order_and_keep_their_values():
    made = module()
    before = torch.cat([p.detach().clone().flatten() for p in made.parameters()])
    flat = FlatParameters(made)
    assert torch.equal(flat.values, before)
    flat.values.mul_(2.0)
    assert torch.equal(made[0].weight.detach().flatten(), 2 * before[:6])


def test_backward_adds_up_in_one_vector():
    flat = FlatParameters(module())
    x = torch.randn(4, 2)
    flat.module(x).sum().backward()
    once = flat.gradients.clone()
    assert once.any()
    flat.module(x).sum().backward()
    assert_close(flat.gradients, 2 * once)


def test_a_state_goes_from_one_to_another_and_is_a_copy():
    first, second = FlatParameters(module()), FlatParameters(module())
    state = first.state_dict()
    second.load(state)
    first.values.zero_()
    assert torch.equal(second.values[:6], torch.from_numpy(state["0.weight"]).flatten())
    assert second.values.any()


def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing():
    flat = FlatParameters(module())
    before = flat.values.clone()
    state = {name: array + 1 for name, array in flat.state_dict().items()}
    with pytest.raises(StageError, match=r"weights: expected tensor 2.bias \(1,\), got none"):
        flat.load({name: array for name, array in state.items() if name != "2.bias"})
    with pytest.raises(StageError, match=r"expected tensor 0.bias \(3,\), got \(4,\)"):
        flat.load({**state, "0.bias": np.zeros(4)})
    assert torch.equal(flat.values, before)


def test_views_by_name_are_of_the_vector_given():
    flat = FlatParameters(module())
    moment = torch.zeros_like(flat.values)
    flat.named_views(moment)["0.bias"].fill_(1.0)
    assert moment.sum() == 3


def test_seeded_modules_depend_only_on_the_generator():
    torch.manual_seed(1)
    first = FlatParameters(seeded(np.random.default_rng(5), module)).values
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = FlatParameters(seeded(np.random.default_rng(5), module)).values
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)
