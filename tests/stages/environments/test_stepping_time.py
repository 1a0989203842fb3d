"""The time of an environment's steps is measured for each number of instances, as actors make them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.config import RunConfig
from headrace.stages.environments import stepping_time
from headrace.stages.environments.stepping_time import measure_stepping

ENVIRONMENTS = [
    {"kind": "gymnasium", "id": "CartPole-v1"},
    {"kind": "gymnasium", "id": "Pendulum-v1"},
    {"kind": "pettingzoo", "id": "pettingzoo.classic.connect_four_v3"},
    {"kind": "builtin", "id": "Volley"},
]


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    monkeypatch.setattr(stepping_time, "_COUNT_S", 0.0)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: each["id"])
def test_each_number_is_measured(environment):
    config = RunConfig.from_plain({"behaviors": {"Volley": {}}, "environment": environment})
    found = asyncio.run(measure_stepping(config, [1, 4], 0.0, 60.0))
    assert [count for count, _ in found] == [1, 4]
    assert all(seconds > 0 for _, seconds in found)


def test_it_ends_where_more_instances_do_not_pay_or_time_is_over():
    config = RunConfig.from_plain({"behaviors": {"B": {}}, "environment": ENVIRONMENTS[0]})
    assert len(asyncio.run(measure_stepping(config, [1, 2, 4], 1e9, 60.0))) == 2
    assert len(asyncio.run(measure_stepping(config, [1, 2, 4], 0.0, 0.0))) == 1
