"""A Ray cluster of several nodes on this machine, in a process of its own; a script, told what to do line by line.

`add NAME` adds a node with ten of the resource `game`, or of another one: `add NAME RESOURCE`, and with settings of Ray's
own: `add NAME RESOURCE VARIABLE=VALUE`; `kill NAME…` kills nodes, as if their machines had lost power; `end NAME…` sends
SIGTERM to all their processes, as a provider does that wants its machine back; `process NAME` asks for the id of the process that starts a node's hosts, or of another one: `process NAME KIND`; `objects`
for what lies in the object stores; `autoscale` starts Ray's autoscaler, which adds nodes with one CPU and one `game`, two at
most; `end`, or the end of its input, ends the cluster. It answers each line with one of its own. All nodes listen on 127.0.0.1 alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

TOKEN = "only-for-tests"
LOOPBACK_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""By itself Ray takes the machine's own address in the place of this one."""
AUTOSCALED = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
"""Its nodes are processes of this machine, and it looks once a second, not every five."""
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}


class TestCluster:
    """The process, as a test sees it."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        with (folder / "cluster.log").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **ENVIRONMENT, **LOOPBACK_ALONE, **AUTOSCALED},
            )
        self.address = self._answer()

    def tell(self, line: str) -> str:
        """Have it do something, and wait until that is done; its answer."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End the cluster."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> str:
        answer = self._process.stdout.readline().strip()
        assert answer.startswith("done"), "the cluster has failed; its log says why"
        return answer.removeprefix("done ")


@contextmanager
def cluster(folder: Path) -> Iterator[TestCluster]:
    """A cluster whose head has CPUs, and nothing else yet."""
    made = TestCluster(folder)
    try:
        yield made
    finally:
        made.end()


def main() -> None:
    """Be the cluster."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="headrace-cluster-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # Ray notes the address in a folder there, and does not make it
        os.mkdir(f"{folder}/ray")
        _serve(Cluster, folder)


def _serve(cluster_class: Any, folder: str) -> None:
    # Ray writes to standard output, too, which is for answers alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    common = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "temp_dir": folder}
    made = cluster_class(
        initialize_head=True,
        head_node_args={
            "num_cpus": 4,
            **common,
            "_system_config": {
                "health_check_initial_delay_ms": 0,
                "health_check_period_ms": 1000,
                "health_check_timeout_ms": 3000,  # ten seconds by itself, so a node that is stopped counts for a minute
            },
        },
    )
    nodes = {"head": made.head_node}
    answers.write(f"done {made.address}\n")
    for line in sys.stdin:
        verb, *names = line.split()
        if verb == "add":
            name, resource, setting = (*names, *("game", "")[len(names) - 1 :])[:3]
            variable, _, value = setting.partition("=")
            variables = {variable: value} if variable else None
            nodes[name] = made.add_node(num_cpus=4, resources={resource: 10}, env_vars=variables, **common)
        elif verb == "kill":
            for name in names:
                made.remove_node(nodes.pop(name), allow_graceful=False)
        elif verb == "end":
            for name in names:
                _terminate(each.process.pid for kind in nodes[name].all_processes.values() for each in kind)
        elif verb == "process":
            name, kind = (*names, "raylet")[:2]
            answers.write(f"done {nodes[name].all_processes[kind][0].process.pid}\n")
            continue
        elif verb == "autoscale":
            _autoscale(made.head_node, made.address, f"{folder}/autoscaler.json")
        elif verb == "objects":
            answers.write(f"done {_objects(made.address)}\n")
            continue
        answers.write("done\n")
    _terminate([each.process.pid for each in made.head_node.all_processes.get("monitor", [])])
    made.shutdown()


def _autoscale(head: Any, address: str, path: str) -> None:
    """Replace the head's monitor by one that starts nodes. Ray's own `AutoscalingCluster` lacks its settings' file."""
    worker = {"resources": {"CPU": 1, "game": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}
    settings = {
        "cluster_name": "tests",
        "max_workers": 2,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "head": {"resources": {"CPU": 4}, "node_config": {}, "max_workers": 0},
            "worker": worker,
        },
        "head_node_type": "head",
        "auth": {},
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 60,
        "docker": {},
        **{f"{which}_commands": [] for which in ("initialization", "setup", "head_setup", "worker_setup")},
        **{f"{which}_start_ray_commands": [] for which in ("head", "worker")},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }
    Path(path).write_text(json.dumps(settings), encoding="utf-8")
    head.kill_monitor()
    head._ray_params.autoscaling_config = path
    head.start_monitor()


def _terminate(pids: Iterable[int]) -> None:
    with_children = [
        each for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    ]
    for process in with_children:
        with suppress(psutil.NoSuchProcess):
            process.terminate()


def _objects(address: str) -> str:
    """Ray's own words on its object stores, the line that counts the objects."""
    from ray._private.internal_api import memory_summary

    summary: str = memory_summary(address, stats_only=True)
    return next(line for line in summary.splitlines() if " objects" in line)


if __name__ == "__main__":
    main()
