import pytest
import torch
from tensors import TorchAdam, assert_close

from headrace.stages.errors import NotFiniteError
from headrace.stages.trainer.adam import Adam, GradientParts


@pytest.mark.lengthy
def test_steps_equal_those_of_torchs_adam():
    generator = torch.Generator().manual_seed(0)
    values, gradients = torch.randn(40, generator=generator), torch.zeros(40)
    reference = torch.nn.Parameter(values.clone())
    theirs = TorchAdam([reference], 1e-2, 1e-5)
    ours = Adam(values, gradients, epsilon=1e-5)
    for _ in range(50):
        gradients.copy_(torch.randn(40, generator=generator))
        reference.grad = gradients.clone()
        theirs.step()
        ours.step(1e-2)
    assert_close(values, reference.detach(), rtol=1e-5, atol=1e-6)


def test_the_first_step_has_the_length_of_the_learning_rate_whatever_the_gradient():
    values, gradients = torch.zeros(2), torch.tensor([1e-3, -50.0])
    Adam(values, gradients).step(0.1)
    assert_close(values, torch.tensor([-0.1, 0.1]), rtol=1e-4, atol=0.0)


def test_after_a_failed_update_the_next_one_is_made_as_if_nothing_had_happened():
    values, gradients = torch.zeros(3), torch.ones(3)
    adam = Adam(values, gradients)
    adam.step(0.1)
    gradients.fill_(float("nan"))
    with pytest.raises(NotFiniteError), adam.undone_on_failure():
        adam.step(0.1)
        raise NotFiniteError("a loss is NaN")
    gradients.fill_(1.0)
    adam.step(0.1)

    expected = torch.zeros(3)
    uninterrupted = Adam(expected, gradients)
    uninterrupted.step(0.1)
    uninterrupted.step(0.1)
    assert torch.equal(values, expected)
    assert adam.steps == 2


def test_a_failed_update_leaves_parameters_and_state_unchanged():
    values, gradients = torch.zeros(3), torch.ones(3)
    adam = Adam(values, gradients)
    adam.step(0.1)
    kept, moment = values.clone(), adam.first_moment.clone()
    with pytest.raises(NotFiniteError), adam.undone_on_failure():
        adam.step(0.1)
        raise NotFiniteError("a loss is NaN")
    assert torch.equal(values, kept)
    assert (torch.equal(adam.first_moment, moment), adam.steps) == (True, 1)


def test_long_parts_of_the_gradients_are_scaled_to_the_limit_and_short_ones_left_alone():
    gradients = torch.tensor([3.0, 0.3, 4.0, 0.4])
    norms = GradientParts(gradients, torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])).clip(1.0)
    assert_close(norms, torch.tensor([5.0, 0.5]))
    assert_close(gradients, torch.tensor([0.6, 0.3, 0.8, 0.4]))


def test_all_gradients_may_be_one_part():
    gradients = torch.tensor([3.0, 0.0, 4.0])
    GradientParts(gradients, torch.ones(1, 3)).clip(1.0)
    assert_close(gradients, torch.tensor([0.6, 0.0, 0.8]))


def test_parts_may_have_one_limit_together():
    gradients = torch.tensor([3.0, 1.0, 4.0, 2.0])
    parts = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    norms = GradientParts(gradients, parts, together=True).clip(1.0)
    assert_close(norms, torch.tensor([30.0**0.5]))
    assert_close(gradients, torch.tensor([3.0, 1.0, 4.0, 2.0]) / 30.0**0.5, rtol=1e-5, atol=0)


def test_a_norm_that_is_not_a_number_stays_one():
    gradients = torch.tensor([3.0, torch.nan, 4.0, torch.inf])
    norms = GradientParts(gradients, torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])).clip(1.0)
    assert not torch.isfinite(norms).any()
    assert not torch.isfinite(gradients).all()
