"""Runs whose hosts are actors of Ray: by the real command, with real signals, on this machine alone."""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from ray_cluster import ENVIRONMENT, cluster
from run_configs import INLINE, cartpole, sac, volley
from run_folders import streams, weights_digest
from runs import run_here

pytestmark = [
    pytest.mark.lengthy,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]

ON_RAY = {"pipeline__hosts": {"actors": {"kind": "ray"}, "learners": {"kind": "ray"}}}
LONG = {"behaviors__CartPole__max_steps": 10**7}


def pid_of(command, host):
    """The process of a host that has said where it runs; the newest of that name."""
    command.until(lambda: f"{host} runs in process" in command.output, f"the process of {host}")
    return int(re.findall(rf"{host} runs in process (\d+)", command.output)[-1])


def assert_left_nothing(command):
    command.assert_left_nothing()
    assert not list(Path("/tmp").glob(f"headrace-ray-{command.process.pid}-*"))


def test_a_run_on_ray_trains_listens_on_loopback_alone_and_leaves_nothing(start, tmp_path):
    command = start(cartpole(**ON_RAY, record__edges=["trainer"]))
    command.until_checkpoint(0)
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for pid in command.processes()
        if psutil.pid_exists(pid)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses <= {"127.0.0.1", "::1"}
    assert command.wait() == 0, command.output
    assert_left_nothing(command)
    replay = {**cartpole(**INLINE), "replay": {"streams": streams(command.run_folder)}}
    run_here(replay, tmp_path, "replay")
    assert weights_digest(tmp_path / "replay") == weights_digest(command.run_folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actors", "learners"), [("ray", "process"), ("process", "ray"), ("inline", "ray"), ("ray", "inline")]
)
def test_hosts_on_ray_work_with_hosts_of_other_kinds(start, actors, learners):
    hosts = {"actors": {"kind": actors, "replicas": 2}, "learners": {"kind": learners}}
    command = start(cartpole(pipeline__hosts=hosts, evaluation={"every": 500, "episodes": 4}))
    assert command.wait() == 0, command.output
    assert "over 4 episodes" in command.output
    assert_left_nothing(command)


@pytest.mark.slow
@pytest.mark.parametrize("plain", [volley(**ON_RAY), sac(**ON_RAY)], ids=["self-play", "sac"])
def test_self_play_and_sac_train_on_ray(start, plain):
    command = start(plain)
    assert command.wait() == 0, command.output
    assert_left_nothing(command)


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_the_run_resumes_after_ctrl_c(start):
    command = start(cartpole(**ON_RAY, **LONG))
    command.until_checkpoint(0)
    first = pid_of(command, "actor-0")
    os.kill(first, signal.SIGKILL)
    command.until(lambda: pid_of(command, "actor-0") != first, "a replacement")
    number = command.until_checkpoint(command.until_checkpoint().number + 3).number
    command.interrupt()
    assert command.wait() == 0, command.output
    assert_left_nothing(command)
    resumed = start(cartpole(**ON_RAY, **LONG), "--resume")
    assert resumed.until_checkpoint(number + 3)
    resumed.interrupt(signal.SIGTERM)
    assert resumed.wait() == 0, resumed.output
    assert_left_nothing(resumed)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["main", "learner-CartPole"])
def test_nothing_is_left_of_a_run_that_is_killed_or_fails(start, victim):
    command = start(cartpole(**ON_RAY, **LONG))
    command.until_checkpoint(0)
    os.kill(command.process.pid if victim == "main" else pid_of(command, victim), signal.SIGKILL)
    status = command.wait()
    command.until_gone()
    assert status == (-signal.SIGKILL if victim == "main" else 1), command.output
    command.until_checkpoint(0)
    assert not list(Path("/tmp").glob(f"headrace-ray-{command.process.pid}-*"))
    if victim != "main":
        assert f"the process of {victim} was killed by signal 9" in command.output
        assert "--resume" in command.output


@pytest.mark.slow
def test_a_node_is_killed_and_another_added_and_training_goes_on(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        command = start(on_cluster(nodes.address, replicas=2), environment=ENVIRONMENT)
        before = command.until_checkpoint(0)
        nodes.tell("kill first")
        nodes.tell("add second")
        command.until(lambda: command.output.count("Starting it again") >= 2, "two replacements")
        command.until_checkpoint(command.until_checkpoint(before.number).number + 3)
        command.interrupt()
        assert command.wait() == 0, command.output
        command.assert_left_nothing()


@pytest.mark.slow
def test_a_run_whose_cluster_loses_its_head_ends_with_its_checkpoint(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        command = start(on_cluster(nodes.address), environment=ENVIRONMENT)
        command.until_checkpoint(0)
        nodes.tell("kill head")
        assert command.wait() == 1, command.output
        assert "--resume" in command.output
        command.assert_left_nothing()


def on_cluster(address, replicas=1):
    actors = {"kind": "ray", "replicas": replicas, "resources": {"custom": {"game": 1}}}
    pipeline = {"hosts": {"actors": actors, "learners": {"kind": "process"}}, "ray": {"address": address}}
    return cartpole(pipeline=pipeline, **LONG)
