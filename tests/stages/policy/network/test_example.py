"""examples/custom_network: the configuration and the network beside it."""

from pathlib import Path

import numpy as np
import torch

from headrace.config import PPOHyperparameters, load_config
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import design_of
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import Inputs

EXAMPLE = Path(__file__).parents[4] / "examples" / "custom_network"
SPEC = BehaviorSpec("CartPole", (ObservationSpec("vector", (4,)),), ActionSpec(discrete_branches=(2,)))


def test_the_configuration_is_valid_and_its_network_learns():
    settings = load_config(EXAMPLE / "config.yaml").behavior_settings("CartPole")
    design = design_of(SPEC, settings, EXAMPLE)
    assert isinstance(settings.hyperparameters, PPOHyperparameters)
    network = make_actor_critic(design, 1, settings.hyperparameters.shared_critic, np.random.default_rng(0))
    inputs = Inputs(torch.randn(32, 4))
    losses = []
    for _ in range(20):
        heads, values = network(inputs)
        loss = (heads - inputs.vectors[:, :2]).square().mean() + (values - inputs.vectors[:, 2:3]).square().mean()
        network.gradients.zero_()
        loss.backward()
        assert all(parameter.grad.any() for parameter in network.parameters.values())
        network.values.sub_(0.02 * network.gradients)
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
