"""What is compiled gives what NumPy gives, to a millionth, and refuses what it can't take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings, PPOHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.adam import GradientParts
from headrace.stages.trainer.fast.ppo import ManualPPOUpdate
from headrace.stages.trainer.on_policy.rollout import Minibatch, PackedColumns
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOUpdate

NUMBERS, BRANCHES, BOTH = ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(1, (4,))
CASES = {
    "numbers": (NUMBERS, "tanh", 64, 3, 70, False, False),
    "numbers, one body, per dimension": (NUMBERS, "swish", 48, 1, 7, True, True),
    "branches": (BRANCHES, "relu", 16, 17, 13, False, False),
    "branches, one body, per dimension": (BRANCHES, "swish", 80, 5, 33, True, True),
    "both": (BOTH, "tanh", 32, 2, 1, False, True),
    "both, one body": (BOTH, "relu", 112, 4, 40, True, False),
}
"""Actions, activation, units, inputs, rows, whether bodies are shared, whether ratios are per dimension."""
pytestmark = pytest.mark.skipif(compiled.kernels is None, reason="the package was built without a C compiler")
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def minibatch_of(actions, inputs, rows, columns, random) -> Minibatch:
    names = "vectors", "continuous", "penalties", "old_log_probs", "advantages", "returns"
    widths = inputs, actions.continuous_size, actions.mask_size, columns, columns, 1
    floats = torch.from_numpy(random.standard_normal((rows, sum(widths))).astype(np.float32))
    floats[:, inputs + widths[1] : inputs + widths[1] + widths[2]].clamp_(max=0.0)  # penalties
    floats[:, -2 - 2 * columns + 1 : -1 - columns] -= 1.5
    choices = [random.integers(0, size, rows) for size in actions.discrete_branches]
    chosen = torch.from_numpy(np.stack(choices, axis=1) if choices else np.empty((rows, 0), np.int64))
    return Minibatch.of_block(PackedColumns(floats, chosen, tuple(zip(names, widths, strict=True))))


def gradients_of(case, use_kernels, spoil=None):
    """Losses, log-ratios, values in evaluation, and the gradients by name, without autograd."""
    actions, activation, units, inputs, rows, shared, per_dimension = case
    random = np.random.default_rng(3)
    spec = BehaviorSpec("Agent?team=0", (ObservationSpec("o", (inputs,)),), actions)
    design = PolicyDesign(spec, NetworkSettings(hidden_units=units, num_layers=2, activation=activation))
    network = ActorCritic(design, 1, shared, random, accelerated=use_kernels)
    network.values += torch.from_numpy(0.3 * random.standard_normal(len(network.values)).astype(np.float32))
    settings = PPOHyperparameters(ratio_per_dimension=per_dimension, batch_size=rows, buffer_size=10**6)
    update = PPOUpdate(network, spec, settings)
    columns = actions.log_prob_size if per_dimension else 1
    minibatch = minibatch_of(actions, inputs, rows, columns, random)
    if spoil is not None:
        spoil(minibatch)
    coefficients = Coefficients(1e-3, 0.01, 0.2)
    weights = update.loss_weights(coefficients)
    losses, log_ratios = ManualPPOUpdate(update, use_kernels).find_gradients(minibatch, coefficients, weights)
    with torch.no_grad():
        heads, values = network(Inputs(minibatch.inputs.vectors))
    computed = {"losses": losses, "log-ratios": log_ratios, "heads": heads, "values": values}
    return computed | {name: view.clone() for name, view in network.named_views(network.gradients).items()}


@cases
def test_losses_and_gradients_are_those_of_numpy(case):
    by_kernels, by_numpy = gradients_of(case, use_kernels=True), gradients_of(case, use_kernels=False)
    for name, wanted in by_numpy.items():
        size = max(1.0, float(wanted.abs().max()))
        assert float((by_kernels[name] - wanted).abs().max()) <= 1e-6 * size, name


@cases
@pytest.mark.parametrize("column", ["inputs", "old_log_probs", "advantages", "returns"])
def test_a_nan_in_the_minibatch_makes_a_loss_nan(case, column):
    """So the update is undone, and the message names the loss."""

    def spoil(minibatch):
        where = minibatch.inputs.vectors if column == "inputs" else getattr(minibatch, column)
        where[0, 0] = torch.nan

    for use_kernels in (True, False):
        losses = gradients_of(case, use_kernels, spoil)["losses"]
        lost = 1 if column == "returns" else 0
        assert torch.isnan(losses[lost])


def test_an_invalid_choice_is_refused():
    def spoil(minibatch):
        minibatch.block.choices[0, 0] = 3

    with pytest.raises(IndexError, match="row 0 has a choice that there is not"):
        gradients_of(CASES["branches"], True, spoil)


@pytest.mark.parametrize("size", [1.0, 1e-3, np.inf])
def test_limited_norms_are_those_of_numpy(size):
    random = np.random.default_rng(0)
    given = torch.from_numpy(random.standard_normal(301).astype(np.float32)) * size
    first = torch.zeros(301)
    first[3:150], first[200:230] = 1.0, 1.0
    results = []
    for use_kernels in (True, False):
        gradients = given.clone()
        norms = GradientParts(gradients, torch.stack([first, 1.0 - first]), use_kernels=use_kernels).clip(0.5)
        results.append(torch.cat([norms, gradients]))
    by_kernels, by_numpy = results
    assert_close(by_kernels, by_numpy, rtol=2e-6, atol=1e-6, equal_nan=True)


def test_arrays_that_do_not_belong_together_are_refused():
    built = compiled.kernels
    x, weight, bias = (
        np.zeros((2, 5, 3), np.float32),
        np.zeros((2, 3, 16), np.float32),
        np.zeros((2, 1, 16), np.float32),
    )
    y = np.zeros((2, 5, 16), np.float32)
    built.forward(x, weight, bias, y, y, 1)
    for wrong in (
        (x[:, :, :2], weight, bias, y, y, 1),
        (x, weight[:, :, :8].copy(), bias[:, :, :8].copy(), y, y, 1),
        (x, weight, bias[:1], y, y, 1),
        (x, weight, bias, y, y[:, :4], 1),
        (x.astype(np.float64), weight, bias, y, y, 1),
        (x, weight, bias, y, y, 9),
    ):
        with pytest.raises(ValueError, match="expected|x is not|unknown activation"):
            built.forward(*wrong)
    y.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match="read-only|not writable"):
        built.forward(x, weight, bias, y, y, 1)
    with pytest.raises(IndexError, match="outside of the gradients"):
        built.limit(np.zeros(9, np.float32), np.array([[0, 10, 0]]), np.zeros(1, np.float32), 1.0)
