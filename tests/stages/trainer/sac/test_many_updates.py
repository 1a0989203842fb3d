"""Many gradient steps in a row, beside SAC made of torch's modules and optimizers, in float64.

The order is the pipeline's: all gradients are taken before any weight changes.
"""

from copy import deepcopy
from math import log

import numpy as np
import pytest
import torch
from tensors import TorchAdam, assert_close
from torch import nn
from torch.nn.functional import mse_loss, softplus

from headrace.config import NetworkSettings, SACHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.protocol import new_random
from headrace.stages.trainer.replay.replay_memory import ReplayMinibatch
from headrace.stages.trainer.sac import SACNetworks, SACUpdate

SEEN, ACTIONS, HIDDEN, ROWS, UPDATES = 5, 3, 16, 32, 100
GAMMA, TAU, RATE = 0.99, 0.005, 1e-3
HYPERPARAMETERS = SACHyperparameters.model_validate({"init_entcoef": 1.0, "tau": TAU, "learning_rate": RATE})


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def perceptron(inputs, outputs, weights, body, heads):
    """Two layers of ReLU and heads [out, in] end to end, with the weights of these names."""
    layers = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, outputs)
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    names = [f"{body}.layers.0", f"{body}.layers.2", heads]
    for layer, name in zip(layers, names, strict=True):
        layer.load_state_dict({key: torch.as_tensor(weights[f"{name}.{key}"]).double() for key in ("weight", "bias")})
    return network


class Plain:
    """SAC (Haarnoja et al., 2018) with two Qs, their targets, and a learned coefficient."""

    def __init__(self, weights):
        self.actor = perceptron(SEEN, 2 * ACTIONS, weights["actor"], "body", "action")
        self.qs = [perceptron(SEEN + ACTIONS, 1, weights["critics"], f"{q}.body", f"{q}.head") for q in ("q1", "q2")]
        self.targets = deepcopy(self.qs)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.of_qs = [parameter for q in self.qs for parameter in q.parameters()]
        self.groups = [*self.actor.parameters()], self.of_qs, [self.log_alpha]
        self.optimizers = [TorchAdam(group, RATE) for group in self.groups]

    def draw(self, seen, noise):
        mean, log_std = self.actor(seen).split(ACTIONS, dim=1)
        log_std = log_std.clamp(-20, 2)
        u = mean + log_std.exp() * noise
        slopes = 2 * (log(2) - u.abs() - softplus(-2 * u.abs()))
        log_probs = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - slopes
        return torch.tanh(u), log_probs.sum(dim=1, keepdim=True)

    def smaller(self, qs, seen, actions):
        return torch.min(*(q(torch.cat((seen, actions), dim=1)) for q in qs))

    def step(self, seen, following, taken, rewards, going_on, noise):
        alpha = self.log_alpha.detach().exp()
        drawn, log_probs = self.draw(seen, noise[:ROWS])
        with torch.no_grad():
            then, then_log_probs = self.draw(following, noise[ROWS:])
            values = self.smaller(self.targets, following, then) - alpha * then_log_probs
            wanted = rewards + GAMMA * going_on * values
        here = torch.cat((seen, taken), dim=1)
        losses = {
            "actor": (alpha * log_probs - self.smaller(self.qs, seen, drawn)).mean(),
            "critics": sum(mse_loss(q(here), wanted) for q in self.qs) / 2,
            "coefficients": -(self.log_alpha * (log_probs.detach() - ACTIONS)).mean(),
        }
        for loss, parameters in zip(losses.values(), self.groups, strict=True):
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            targets = [parameter for target in self.targets for parameter in target.parameters()]
            for target, followed in zip(targets, self.of_qs, strict=True):
                target.lerp_(followed, TAU)


@pytest.mark.lengthy
def test_many_updates_end_in_the_weights_of_a_plain_implementation():
    spec = BehaviorSpec("Test", (ObservationSpec("seen", (SEEN,)),), ActionSpec(ACTIONS))
    settings = NetworkSettings(hidden_units=HIDDEN, num_layers=2, activation="relu")
    design = PolicyDesign(spec, settings, squashed=True)
    update = SACUpdate(SACNetworks.drawn(design, HYPERPARAMETERS, 1, new_random(4), "cpu"), design, HYPERPARAMETERS)
    plain = Plain(update.weights())
    random = np.random.default_rng(0)

    def normal(rows, columns):
        return torch.from_numpy(random.normal(size=(rows, columns)))

    for _ in range(UPDATES):
        seen, following, taken = normal(ROWS, SEEN), normal(ROWS, SEEN), torch.tanh(normal(ROWS, ACTIONS))
        rewards, noise = normal(ROWS, 1), normal(2 * ROWS, ACTIONS)
        going_on = torch.from_numpy((random.random((ROWS, 1)) < 0.9).astype(np.float64))
        batch = ReplayMinibatch(Inputs(seen), Inputs(seen), Inputs(following), taken, (), None, None, None)
        update.step(batch, rewards, GAMMA * going_on, noise, RATE)
        plain.step(seen, following, taken, rewards, going_on, noise)
    found = [update.actor.values, update.critics.values, update.target.values, update.coefficients.values]
    networks = [[plain.actor], plain.qs, plain.targets]
    expected = [torch.cat([p.flatten() for n in of for p in n.parameters()]) for of in networks]
    for ours, theirs in zip(found, [*expected, plain.log_alpha.reshape(1)], strict=True):
        assert_close(ours.detach(), theirs.detach(), rtol=0, atol=1e-12)
    assert float(update.coefficients.values) < -0.05, "it has learned"
