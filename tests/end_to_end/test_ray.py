"""Runs whose hosts are actors of Ray: by the real command, with real signals, on this machine alone."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from ray_cluster import ENVIRONMENT, cluster
from run_configs import INLINE, cartpole, sac, volley
from run_folders import streams, weights_digest
from runs import MORE_PATIENCE_S, run_here

pytestmark = [
    pytest.mark.lengthy,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]

ON_RAY = {"pipeline__hosts": {"actors": {"kind": "ray"}, "learners": {"kind": "ray"}}}
LONG = {"behaviors__CartPole__max_steps": 10**7}


@pytest.fixture
def patience_s():
    return MORE_PATIENCE_S


def pid_of(command, host):
    """The process of a host that has said where it runs; the newest of that name."""
    command.until(lambda: f"{host} runs in process" in command.output, f"the process of {host}")
    return int(re.findall(rf"{host} runs in process (\d+)", command.output)[-1])


def assert_left_nothing(command):
    command.assert_left_nothing()
    assert not list(Path("/tmp").glob(f"headrace-ray-{command.process.pid}-*"))


def test_a_run_on_ray_trains_listens_only_on_loopback_and_leaves_nothing(start, tmp_path):
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
@pytest.mark.parametrize(("actors", "learners"), [("ray", "process"), ("inline", "ray")])
def test_hosts_on_ray_work_with_hosts_of_other_kinds(start, actors, learners):
    hosts = {"actors": {"kind": actors, "replicas": 2}, "learners": {"kind": learners}}
    command = start(cartpole(pipeline__hosts=hosts, evaluation={"every": 500, "episodes": 4}))
    assert command.wait() == 0, command.output
    assert "over 4 episodes" in command.output
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
def test_a_killed_learner_resumes_from_the_last_checkpoint_and_its_actors_stay(start):
    command = start(volley(**ON_RAY, behaviors__Volley__max_steps=10**7))
    number = command.until_checkpoint(1).number
    first = pid_of(command, "learner-Volley")
    os.kill(first, signal.SIGKILL)
    command.until(lambda: pid_of(command, "learner-Volley") != first, "a replacement")
    command.until_checkpoint(number + 3)
    assert "learner-Volley continues from step" in command.output
    assert "The process of actor-0" not in command.output
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    assert_left_nothing(command)


@pytest.mark.slow
def test_a_run_on_ray_works_with_a_long_temporary_folder(start):
    """Below it the paths of Ray's sockets would be longer than a socket's path may be."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="of-a-user-who-has-long-ones-") as folder:
        command = start(cartpole(**ON_RAY), environment={"TMPDIR": folder})
        assert command.wait() == 0, command.output
        assert_left_nothing(command)
        assert not os.listdir(folder)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["main", "learner-CartPole"])
def test_nothing_is_left_of_a_run_that_is_killed_or_fails(start, victim):
    command = start(cartpole(**ON_RAY, **LONG, env_settings__restarts_rate_limit_n=0))
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


def replay_on_ray(actors, learners, **changes):
    hosts = {"actors": {"kind": actors}, "learners": {"kind": learners}, "replay": {"kind": "ray", "replicas": 2}}
    return sac(pipeline__hosts=hosts, behaviors__Pendulum__hyperparameters__steps_per_update=1, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(("actors", "learners"), [("ray", "ray"), ("process", "process")])
def test_sac_trains_with_its_replay_buffer_on_ray(start, actors, learners):
    command = start(replay_on_ray(actors, learners))
    assert command.wait() == 0, command.output
    assert "replay-Pendulum-1 runs in process" in command.output
    assert_left_nothing(command)


@pytest.mark.slow
def test_resources_beyond_the_machine_are_refused(start):
    hosts = {"actors": {"kind": "ray", "resources": {"memory": 2**48}}, "learners": {"kind": "ray"}}
    command = start(cartpole(pipeline__hosts=hosts))
    assert command.wait() == 1, command.output
    assert " requested, but this machine has " in command.output
    assert "Traceback" not in command.output
    assert_left_nothing(command)


STAGE = """
from headrace.stages import Stage
import helpers_of_the_stage

class Same(Stage):
    def process(self, batch):
        yield helpers_of_the_stage.same(batch)
"""


@pytest.mark.slow
def test_a_users_own_modules_reach_a_node_that_lacks_them(start, tmp_path):
    (tmp_path / "stage_of_the_user.py").write_text(STAGE)
    (tmp_path / "helpers_of_the_stage.py").write_text("def same(batch):\n    return batch\n")
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        plain = on_cluster(nodes.address)
        plain["behaviors"]["CartPole"]["max_steps"] = 2000
        plain["pipeline"]["stages"] = [{"use": "stage_of_the_user:Same", "after": "agent_processor"}]
        command = start(plain, environment=ENVIRONMENT)
        assert command.wait() == 0, command.output
        command.assert_left_nothing()


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named(start):
    plain = on_cluster("127.0.0.1:1")
    command = start(plain)
    assert command.wait() == 1, command.output
    assert "can't join a Ray cluster at '127.0.0.1:1': nothing answers at this address" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_gpus_of_a_cluster_that_has_none_yet_are_waited_for(start, tmp_path):
    with cluster(tmp_path) as nodes:
        plain = on_cluster(nodes.address)
        plain["pipeline"]["hosts"]["actors"]["resources"] = {"gpus": 1}
        command = start(plain, environment=ENVIRONMENT)
        command.until(lambda: "(it requests 1 CPUs, 1 GPUs)" in command.output, "what the actor waits for")
        command.interrupt()
        command.wait()
        command.assert_left_nothing()


@pytest.mark.slow
def test_training_continues_when_a_node_is_killed_and_another_is_added(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        command = start(on_cluster(nodes.address, replicas=2), environment=ENVIRONMENT)
        before = command.until_checkpoint(0)
        nodes.tell("kill first")
        nodes.tell("add second")
        command.until(lambda: command.output.count("Restarting it") >= 2, "two replacements")
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
