"""A Ray cluster of several nodes on this machine, in a process of its own; a script, told what to do line by line.

`add NAME` adds a node with ten of the resource `game`, `kill NAME` kills it, as if its machine had lost power; `end`, or
the end of its input, ends the cluster. It answers each line with one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "only-for-tests"
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
                env={**os.environ, **ENVIRONMENT},
            )
        self.address = self._answer()

    def tell(self, line: str) -> None:
        """Have it do something, and wait until that is done."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._answer()

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
            "_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000},
        },
    )
    nodes = {"head": made.head_node}
    answers.write(f"done {made.address}\n")
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        if verb == "add":
            nodes[name] = made.add_node(num_cpus=4, resources={"game": 10}, **common)
        elif verb == "kill":
            made.remove_node(nodes.pop(name), allow_graceful=False)
        answers.write("done\n")
    made.shutdown()


if __name__ == "__main__":
    main()
