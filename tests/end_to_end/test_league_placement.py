"""Leagues whose learners run in different places: on nodes of a Ray cluster that offer different resources."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import psutil
import pytest
from ray_cluster import ENVIRONMENT, cluster
from runs import MORE_PATIENCE_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]
LEARNERS = ("exploiter", "main")
"""In the order of the file, which is sorted."""


def league(address, **exploiter):
    """A long run: main on nodes that offer `fast`, its exploiter on those that offer `slow`."""
    fast, slow = ({"custom": {name: 1}} for name in ("fast", "slow"))
    learners = {
        "main": {"matches": [{"match": "self"}], "placement": {"learners": fast, "actors": fast, "device": "cpu"}},
        "exploiter": {"matches": [{"match": "newest"}], "placement": {"learners": slow, "actors": slow, **exploiter}},
    }
    hosts = {"actors": {"kind": "ray"}, "learners": {"kind": "ray"}}
    settings = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 32, "buffer_size": 128},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 10**8,
        "checkpoint_interval": 1000,
        "league": {"learners": learners},
    }
    return {
        "environment": {"kind": "builtin", "id": "RockPaperScissors", "num_envs": 8},
        "behaviors": {"RPS": settings},
        "pipeline": {"hosts": hosts, "ray": {} if address is None else {"address": address}},
    }


@pytest.fixture
def patience_s():
    return MORE_PATIENCE_S


def node_of(command, host):
    """The process of the node on which a host runs, the newest of that name."""
    command.until(lambda: f"{host} runs in process" in command.output, f"the process of {host}")
    return psutil.Process(int(re.findall(rf"{host} runs in process (\d+)", command.output)[-1])).ppid()


def test_learners_of_a_league_run_on_their_configured_nodes(start, tmp_path):
    hosts = {name: (f"learner-RPS.{name}", f"actor-{index}") for index, name in enumerate(LEARNERS)}
    with cluster(tmp_path) as nodes:
        nodes.tell("add first fast")
        nodes.tell("add second slow")
        first, second = (int(nodes.tell(f"process {name}")) for name in ("first", "second"))
        command = start(league(nodes.address), environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        assert [node_of(command, host) for name in LEARNERS for host in hosts[name]] == [second] * 2 + [first] * 2
        why = "set by behaviors.RPS.league.learners.main.placement.device"
        assert f"RPS.main learns on cpu ({why})" in command.output
        nodes.tell("kill second")
        nodes.tell("add third slow")
        third = int(nodes.tell("process third"))
        command.until_checkpoint(number + 3)
        assert [node_of(command, host) for host in hosts["exploiter"]] == [third] * 2
        assert [node_of(command, host) for host in hosts["main"]] == [first] * 2
        command.interrupt()
        assert command.wait() == 0, command.output
        moved = league(nodes.address)
        placement = moved["behaviors"]["RPS"]["league"]["learners"]["main"]["placement"]
        placement["learners"] = placement["actors"] = {"custom": {"slow": 1}}
        resumed = start(moved, "--resume", environment=ENVIRONMENT)
        resumed.until_checkpoint(number + 5)
        assert {node_of(resumed, host) for name in LEARNERS for host in hosts[name]} == {third}
        resumed.interrupt()
        assert resumed.wait() == 0, resumed.output
        resumed.assert_left_nothing()


def test_a_learner_that_requests_too_many_gpus_is_refused(start):
    command = start(league(None, learners={"gpus": 1000}))
    assert command.wait() == 1, command.output
    assert "behaviors.RPS.league.learners.exploiter.placement: resources request 1,000 of GPU" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
