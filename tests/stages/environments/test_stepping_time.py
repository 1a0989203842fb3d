"""The time of an environment's steps is measured for each number of instances, as actors make them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.config import RunConfig
from headrace.stages.environments.stepping_time import measure_stepping

ENVIRONMENTS = [
    {"kind": "gymnasium", "id": "CartPole-v1"},
    {"kind": "pettingzoo", "id": "pettingzoo.classic.connect_four_v3"},
    {"kind": "builtin", "id": "Volley"},
]


@pytest.mark.lengthy
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: each["id"])
def test_each_number_is_measured(environment):
    config = RunConfig.from_plain({"behaviors": {"Volley": {}}, "environment": environment})
    found = asyncio.run(measure_stepping(config, [1, 4], 0.0, 60.0))
    assert [costs.instances for costs in found] == [1, 4]
    assert all(costs.tick_s > 0 for costs in found)
    assert all(costs.start_s > 0 for costs in found)
    assert all(1e7 < costs.memory < 1e11 for costs in found)


@pytest.mark.parametrize(("units", "epochs", "microseconds"), [(64, 4, 4.2), (64, 8, 8.4), (256, 4, 63.9)])
def test_learning_takes_longer_with_more_weights_and_epochs(units, epochs, microseconds):
    """Two layers of 64 units on CartPole's 4 values: 64 × 68 weights, 12 operations with each in each of 4 epochs."""
    behavior = {"trainer_type": "ppo", "hyperparameters": {"num_epoch": epochs}}
    behavior["network_settings"] = {"hidden_units": units, "num_layers": 2}
    config = RunConfig.from_plain({"behaviors": {"B": behavior}, "environment": ENVIRONMENTS[0]})
    (costs,) = asyncio.run(measure_stepping(config, [2], 0.0, 60.0))
    assert costs.learning_s / 2 == pytest.approx(1e-6 * microseconds, rel=0.01)


def test_the_measurement_ends_without_a_gain_or_at_its_time_limit():
    config = RunConfig.from_plain({"behaviors": {"B": {}}, "environment": ENVIRONMENTS[0]})
    assert len(asyncio.run(measure_stepping(config, [1, 2, 4], 1e9, 60.0))) == 2
    assert len(asyncio.run(measure_stepping(config, [1, 2, 4], 0.0, 0.0))) == 1
