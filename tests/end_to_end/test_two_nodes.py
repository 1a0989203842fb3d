"""Runs on a Ray cluster of several nodes, of which some die and others join: they learn as if nothing had been."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import yaml
from ray_cluster import ENVIRONMENT, cluster
from run_configs import cartpole, sac

EXAMPLE = Path(__file__).parents[2] / "config" / "examples" / "cartpole.yaml"
STEPS = 1_000_000
BAR = 475.0
GROWTH = 32 * 2**20
"""Bytes by which a process may grow after the replacement; what passes through it then is more than twice that."""
OBJECTS = 100
"""In the object stores of all nodes at a time; there are more updates than that several times over."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]


def test_a_run_whose_node_dies_reaches_the_bar_in_bounded_memory(start, tmp_path):
    """The trainer refuses a trajectory that comes twice: all tests ask for that check (`conftest.py`)."""
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second")
        command = start(on_two_nodes(nodes.address), environment=ENVIRONMENT)
        command.until_checkpoint(0)
        nodes.tell("kill second")
        nodes.tell("add third")
        command.until(lambda: "Restarting it" in command.output, "a replacement")
        command.until_checkpoint(command.until_checkpoint().number + 1)
        watched = {"main": command.process.pid, "learner": command.pid_of("learner-CartPole")}
        before, most, objects = private(watched), dict.fromkeys(watched, 0), 0
        while command.process.poll() is None and f"Step: {STEPS}." not in command.output:
            most = {name: max(most[name], bytes_) for name, bytes_ in private(watched).items()}
            objects = max(objects, int(re.findall(r"(\d+) objects", nodes.tell("objects"))[0]))
            time.sleep(0.5)  # between two samples
        command.wait()
        assert command.process.returncode == 0, command.output
        command.assert_left_nothing()
    score = float(re.findall(r"Evaluation: (-?[\d.]+) ± .* over 30 episodes", command.output)[-1])
    growth = {name: most[name] - before[name] for name in watched}
    print(f"score {score}, growth {growth}, at most {objects} objects")
    assert score >= BAR
    assert max(growth.values()) < GROWTH
    assert objects < OBJECTS


def test_a_learner_whose_node_dies_continues_on_another_node(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second learner")
        command = start(learner_on_ray(nodes.address), environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        nodes.tell("kill second")
        nodes.tell("add third learner")
        command.until_checkpoint(number + 3)
        assert "learner-CartPole continues from step" in command.output
        assert "The process of actor" not in command.output
        command.interrupt()
        assert command.wait() == 0, command.output
        command.assert_left_nothing()


def test_a_run_whose_nodes_are_all_lost_waits_for_new_ones(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second learner")
        command = start(learner_on_ray(nodes.address), environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        nodes.tell("kill first second")
        command.until(lambda: command.output.count("waits for a node") == 3, "names of all hosts")
        nodes.tell("add third")
        nodes.tell("add fourth learner")
        command.until_checkpoint(number + 3)
        assert "learner-CartPole continues from step" in command.output
        command.interrupt()
        assert command.wait() == 0, command.output
        assert "Traceback" not in command.output
        command.assert_left_nothing()


def test_no_limit_of_silence_applies_to_hosts_that_no_node_has_room_for(start, tmp_path):
    limits = {"warn_s": 1, "end_s": 2}  # five times that for what has only been started
    with cluster(tmp_path) as nodes:
        plain = learner_on_ray(nodes.address)
        plain["pipeline"] |= {"supervision": {"actors": limits}, "max_wall_time_s": 30}
        command = start(plain, environment=ENVIRONMENT)
        command.wait()
        for number in range(2):
            waits = f"actor-{number} waits for a node with room for it (it requests 1 CPUs, 1 game)"
            assert waits in command.output
        assert "silent" not in command.output
        assert "The run has reached its time limit of 30 s" in command.output
        assert "Traceback" not in command.output
        command.assert_left_nothing()


def test_ray_s_autoscaler_adds_the_nodes_that_actors_wait_for(start, tmp_path):
    with cluster(tmp_path) as nodes:
        command = start(learner_on_ray(nodes.address, learner={"cpus": 1}), environment=ENVIRONMENT)
        command.until(lambda: "actor-1 waits for a node" in command.output, "an actor that waits")
        nodes.tell("autoscale")
        command.until(lambda: "actor-1 runs in process" in command.output, "a node for it")
        command.until_checkpoint(1)
        command.interrupt()
        assert command.wait() == 0, command.output
        command.assert_left_nothing()


REPLACED = {
    "learner-CartPole": "learner-CartPole continues from step",
    "actor-0": "The process of actor-0 was killed by signal 9. Restarting it",
}


@pytest.mark.parametrize(
    ("host", "alone"),
    [("learner-CartPole", False), ("actor-0", True)],
    ids=lambda value: {True: "its daemon", False: "its daemon and its host"}.get(value, value),
)
def test_a_host_on_a_lost_node_ends_itself_and_is_replaced(start, tmp_path, host, alone):
    role = host.partition("-")[0]
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell(f"add second {role}")
        plain = learner_on_ray(nodes.address)
        plain["pipeline"]["hosts"]["actors"]["replicas"] = 1
        section = f"{role}s"
        for name, settings in plain["pipeline"]["hosts"].items():
            settings["resources"] = {"custom": {role if name == section else "game": 1}}
        command = start(plain, environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        command.until(lambda: f"{host} runs in process" in command.output, f"the process of {host}")
        process = int(re.findall(rf"{host} runs in process (\d+)", command.output)[0])
        stopped = [int(nodes.tell("process second")), *([] if alone else [process])]
        send(stopped, signal.SIGSTOP)
        time.sleep(2)  # as long as a node is slow that goes on
        send(stopped, signal.SIGCONT)
        number = command.until_checkpoint(number + 3).number
        assert "Restarting it" not in command.output
        nodes.tell(f"add third {role}")
        send(stopped, signal.SIGSTOP)
        command.until(lambda: REPLACED[host] in command.output, "a replacement")
        number = command.until_checkpoint(command.until_checkpoint().number + 3).number
        if not alone:
            assert psutil.pid_exists(process)
            send(stopped, signal.SIGCONT)
        command.until(lambda: not psutil.pid_exists(process), f"end of the {host} that was lost")
        command.until(
            lambda: f"{host} in process {process} ends itself: Ray counts it as dead" in command.output, "why"
        )
        send(stopped, signal.SIGCONT)
        command.until_checkpoint(command.until_checkpoint(number).number + 3)
        assert command.output.count("Restarting it") == 1
        assert len((command.run_folder / ".lock.lost").read_text().split()) == 1
        command.interrupt()
        assert command.wait() == 0, command.output
        assert "Traceback" not in command.output
    command.assert_left_nothing()


def test_a_run_whose_shard_is_on_a_lost_node_names_the_shard_and_can_be_resumed(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second shard")
        hosts = {"actors": "game", "learners": "game", "replay": "shard"}
        plain = sac(
            behaviors__Pendulum__max_steps=10**7,
            pipeline={"hosts": on_ray(hosts), "ray": {"address": nodes.address}},
        )
        plain["pipeline"]["hosts"]["replay"]["replicas"] = 2
        command = start(plain, environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        nodes.tell("kill second")
        assert command.wait() == 1, command.output
        assert re.search(r"the run has failed: .*replay-Pendulum-\d", command.output)
        assert "--resume" in command.output
        assert "Traceback" not in command.output
        command.assert_left_nothing()
        nodes.tell("add third shard")
        resumed = start(plain, "--resume", environment=ENVIRONMENT)
        resumed.until_checkpoint(number + 3)
        resumed.interrupt()
        assert resumed.wait() == 0, resumed.output


def test_an_evaluation_whose_node_dies_is_started_again_and_training_continues(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second evaluation")
        plain = learner_on_ray(nodes.address)
        plain["pipeline"]["hosts"] = on_ray({"actors": "game", "learners": "game", "evaluation": "evaluation"})
        plain["evaluation"] = {"every": 1000, "episodes": 2}
        command = start(plain, environment=ENVIRONMENT)
        command.until(lambda: "over 2 episodes" in command.output, "an evaluation")
        nodes.tell("kill second")
        command.until(lambda: "Evaluation has failed" in command.output, "the loss")
        nodes.tell("add third evaluation")
        evaluated = command.output.count("over 2 episodes")
        command.until(lambda: command.output.count("over 2 episodes") > evaluated, "an evaluation on another node")
        assert "The process of" not in command.output
        command.interrupt()
        assert command.wait() == 0, command.output
        assert "Traceback" not in command.output
        command.assert_left_nothing()


def test_a_run_whose_cluster_loses_its_head_ends_with_a_checkpoint_of_learners_elsewhere(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        plain = learner_on_ray(nodes.address)
        plain["pipeline"]["hosts"]["learners"] = {"kind": "process"}
        command = start(plain, environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        send([int(nodes.tell("process head gcs_server"))], signal.SIGKILL)
        assert command.wait() == 1, command.output
        assert "the head node of the Ray cluster is gone" in command.output
        assert "Traceback" not in command.output
        assert command.until_checkpoint(number)
        command.assert_left_nothing()


def test_hosts_that_ray_kills_for_want_of_memory_are_replaced_and_named(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second actor RAY_memory_usage_threshold=0.001")
        plain = learner_on_ray(nodes.address)
        plain["pipeline"]["hosts"] = on_ray({"actors": "actor", "learners": "game"})
        plain["env_settings"].update(max_lifetime_restarts=-1, restarts_rate_limit_n=-1)
        command = start(plain, environment=ENVIRONMENT)
        command.until(lambda: "Restarting it" in command.output, "a replacement")
        assert "memory" in command.output, command.output
        nodes.tell("add third actor")
        nodes.tell("kill second")
        command.until_checkpoint(2)
        command.interrupt()
        assert command.wait() == 0, command.output
        assert "Traceback" not in command.output
        command.assert_left_nothing()


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_hosts_of_a_node_that_is_taken_away_with_sigterm_are_replaced(start, tmp_path, role):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell(f"add second {role}")
        plain = learner_on_ray(nodes.address)
        plain["pipeline"]["hosts"] = on_ray({"actors": "game", "learners": "game", f"{role}s": role})
        command = start(plain, environment=ENVIRONMENT)
        number = command.until_checkpoint(1).number
        nodes.tell("end second")
        nodes.tell(f"add third {role}")
        command.until(lambda: "Restarting it" in command.output, "a replacement")
        command.until_checkpoint(command.until_checkpoint(number).number + 3)
        command.interrupt()
        assert command.wait() == 0, command.output
        assert "Traceback" not in command.output
        command.assert_left_nothing()


def test_a_relative_results_folder_is_the_one_where_the_run_was_started(start, tmp_path):
    with cluster(tmp_path) as nodes:
        nodes.tell("add first")
        nodes.tell("add second learner")
        command = start(learner_on_ray(nodes.address), "--results-dir", "results", environment=ENVIRONMENT)
        checkpoint = command.until_checkpoint(1)
        checkpoint.check()
        command.interrupt()
        assert command.wait() == 0, command.output
        assert (command.run_folder / "CartPole.onnx").is_file()
        command.assert_left_nothing()


def on_ray(resources):
    """Hosts on Ray, by the resource that each kind requests."""
    return {which: {"kind": "ray", "resources": {"custom": {resource: 1}}} for which, resource in resources.items()}


def send(pids, number):
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, number)


def learner_on_ray(address, learner=None):
    hosts = {
        "actors": {"kind": "ray", "replicas": 2, "resources": {"custom": {"game": 1}}},
        "learners": {"kind": "ray", "resources": learner or {"custom": {"learner": 1}}},
    }
    plain = cartpole(behaviors__CartPole__max_steps=10**7, behaviors__CartPole__checkpoint_interval=1000)
    return {**plain, "pipeline": {"hosts": hosts, "ray": {"address": address}}}


def on_two_nodes(address):
    plain = yaml.safe_load(EXAMPLE.read_text())
    behavior = plain["behaviors"]["CartPole"]
    behavior |= {"max_steps": STEPS, "checkpoint_interval": 50_000, "summary_freq": 50_000}
    resources = {"custom": {"game": 6}, "placement": "spread"}  # a node has ten: one actor on each
    plain["pipeline"] = {
        "hosts": {
            "actors": {"kind": "ray", "replicas": 2, "resources": resources},
            "learners": {"kind": "process"},
            "evaluation": {"kind": "process"},
        },
        "ray": {"address": address},
    }
    plain["evaluation"] = {"every": 10**9, "episodes": 30}  # the last policy alone
    return plain


def private(pids):
    """Bytes of each process that it shares with nobody; none of one that has ended."""
    found = {}
    for name, pid in pids.items():
        try:
            memory = psutil.Process(pid).memory_info()
            found[name] = memory.rss - memory.shared
        except psutil.NoSuchProcess:
            found[name] = 0
    return found
