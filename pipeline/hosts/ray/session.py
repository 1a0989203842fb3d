"""The Ray instance for a run's hosts: the run's own, which ends with the run, or a cluster that the run joins."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address

from headrace.config import RunConfig
from headrace.config.errors import dotted
from headrace.config.host_kinds import HOST_KINDS, HostResources
from headrace.config.league_placement import placement_key, placement_of, resources_of
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import decides_centrally, league_seats
from headrace.pipeline.hosts.birth import child_environment
from headrace.pipeline.hosts.process_cleanup import remove_folder_at_end, watch_this_process
from headrace.place import FOLDERS, ROOT
from headrace.surroundings import surroundings

LOOPBACK = "127.0.0.1"
_LONGEST_FOLDER = 107 - 65 - 30
"""Maximum length of a temporary folder's path: a socket's path has at most 107 characters, of which Ray's names take 65
and Headrace's folder takes 30.
"""
_OWN_RAY = {
    "prestart_worker_first_driver": False,  # only hosts run there
    "worker_niceness": 0,  # hosts do the run's main work, but Ray would give them low priority
    "task_events_report_interval_ms": 0,  # its lists of calls,
    "enable_metrics_collection": False,  # its metrics
    "event_stats": False,  # and its event-loop times are unused, and make each call slower
    "kill_child_processes_on_worker_exit": False,  # sweepers end leftover processes, and give them time to end cleanly
}


# `ray stop` would end all the user's Ray instances; the sweeper ends only this run's processes (docs/decisions/015).
class RaySession:
    """A Ray instance, started or joined in main's thread, because Ray ends with the thread that started it."""

    def __init__(self, config: RunConfig) -> None:
        self.own = config.pipeline.ray.address is None
        """True if the run starts the Ray instance, on this machine."""
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a late call must not start another Ray
        self.lost = False
        self._folder = ""
        self.found = ray.is_initialized()
        if self.found:
            self.own = False
        elif self.own:
            self._start(config)
        else:
            self._join(config)

    def _start(self, config: RunConfig) -> None:
        watch_this_process()  # Ray's processes end with main, even after `kill -9`
        temporary = tempfile.gettempdir()
        place = temporary if len(temporary) <= _LONGEST_FOLDER else "/tmp"
        self._folder = tempfile.mkdtemp(prefix=f"headrace-ray-{os.getpid()}-", dir=place)
        remove_folder_at_end(self._folder)
        amounts = _amounts(config)
        gpus, memory = amounts.pop("GPU", 0.0), amounts.pop("memory", 0.0)
        try:
            with _environment(child_environment() | _token()), _loopback_allowed(), _signals_kept():
                ray.init(
                    address="local",
                    num_cpus=max(1, os.cpu_count() or 1, math.ceil(amounts.pop("CPU", 0.0))),
                    resources=amounts,
                    include_dashboard=False,
                    logging_level=logging.ERROR,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=self._folder,
                    _system_config=_OWN_RAY,
                )
        except Exception as error:
            self.close()
            raise RunError(f"Ray can't be started: {error}") from error
        if (address := ray.util.get_node_ip_address()) != LOOPBACK:
            self.close()
            raise RunError(
                f"Ray {ray.__version__} listens on {address} although it was started for {LOOPBACK}; use a different "
                "version of Ray"
            )
        for name, amount, key in (("GPU", gpus, "gpus"), ("memory", memory, "memory")):
            if amount > (there := ray.cluster_resources().get(name, 0)):
                self.close()
                raise RunError(
                    f"{_askers(config, key)}: {amount:,.12g} {name} requested, but this machine has {there:,.12g}"
                )

    def _join(self, config: RunConfig) -> None:
        address, shipped = config.pipeline.ray.address, runtime_environment(config)
        try:
            with _signals_kept(), _as_it_listens(address):
                ray.init(address=address, logging_level=logging.ERROR, runtime_env=shipped)
        except Exception as error:
            ray.shutdown()
            raise RunError(
                f"pipeline.ray.address: can't join a Ray cluster at {address!r}: {error}. This machine must be a node "
                "of the cluster (`ray start --address=…`)"
            ) from error
        if (gpus := _amounts(config).get("GPU", 0.0)) and not ray.cluster_resources().get("GPU"):
            self.close()
            raise RunError(
                f"{_askers(config, 'gpus')}: {gpus:g} GPU requested, but no node of the cluster at {address!r} has one"
            )

    async def wait_until_lost(self) -> None:
        """Return when the cluster's head is gone; don't call Ray after that, because calls may never return."""
        await wait_until_gone(ray.get_runtime_context().gcs_address)
        self.lost = True

    def close(self) -> None:
        """End the run's own Ray, or leave the cluster."""
        if self.found or (self.lost and not self.own):
            return
        if self.lost:
            _end_processes()
        else:
            with _signals_kept():
                ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _end_processes() -> None:
    """End this run's remaining Ray processes; unlike an orderly shutdown, don't wait for the head node."""
    from ray._private import worker

    if worker._global_node is not None:
        worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def runtime_environment(config: RunConfig) -> dict[str, Any]:
    """Return what hosts on other machines need: Headrace's packages, and the user's modules that main has imported.

    Raises:
        RunError: if Headrace's packages are not all in one folder.
    """
    environment = dict(config.pipeline.ray.runtime_env)
    if len(FOLDERS) > 1:
        raise RunError(
            f"pipeline.ray.address: {ROOT} is a source checkout whose packages are in several folders, so Headrace "
            "can't send them to other machines: install Headrace from the checkout (`pip install .`), and run the "
            "installed command"
        )
    modules = [*environment.get("py_modules", ()), *FOLDERS, *_modules_in(config)]
    environment["py_modules"] = list(dict.fromkeys(modules))
    return environment


def _modules_in(config: RunConfig) -> list[str]:
    """Return the paths of imported modules and packages next to the YAML and in the working directory."""
    folders = [str(folder) for folder in {config.source_folder, surroundings().folder} if folder is not None]
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or name == "headrace" or not file or name == "__main__":
            continue
        path = os.path.abspath(file)
        if os.path.basename(path) == "__init__.py":
            path = os.path.dirname(path)
        if os.path.dirname(path) in map(os.path.abspath, folders):
            found.append(path)
    return found


def _amounts(config: RunConfig) -> dict[str, float]:
    """Return the total resources that a run's hosts on Ray request, keyed by Ray's resource names."""
    total: Counter[str] = Counter()
    for resources in _requests(config):
        each = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory, **resources.custom}
        total.update({name: amount for name, amount in each.items() if amount})
    return dict(total)


def _requests(config: RunConfig) -> Iterator[HostResources]:
    """Yield the resources that each host on Ray requests."""
    hosts, behaviors = config.pipeline.hosts, [*config.behaviors] or [""]
    seats = league_seats(config) or [""] * hosts.actors.replicas
    parts = (
        (hosts.actors, [resources_of(config, "actors", seat) for seat in seats]),
        (hosts.evaluation, [hosts.evaluation.resources] * (config.evaluation is not None)),
        (hosts.replay, [hosts.replay.resources] * hosts.replay.replicas * len(behaviors)),
        (hosts.inference, [hosts.inference.resources] * decides_centrally(config)),
        (hosts.learners, [resources_of(config, "learners", each) for each in behaviors] * hosts.learners.replicas),
    )
    for settings, requests in parts:
        if settings.kind is not None and HOST_KINDS[settings.kind].on_ray:
            yield from requests


def _askers(config: RunConfig, what: str) -> str:
    """Return the YAML keys that request `gpus` or `memory` for hosts, as text."""
    placed = {name: placement_of(config, name) for name in config.behaviors}
    asking = [
        name for name, each in placed.items() if any(getattr(part, what, None) for part in (each.actors, each.learners))
    ]
    shared = [getattr(config.pipeline.hosts, part).resources for part in type(config.pipeline.hosts).model_fields]
    found = ["pipeline.hosts"] if any(getattr(each, what) for each in shared) else []
    return " and ".join([*found, *(dotted(placement_key(config, name)) for name in asking)])


@functools.cache
def _token() -> dict[str, str]:
    """Return environment variables for the run's own Ray; one is a secret that Ray would otherwise store in a file."""
    return {
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # see _loopback_allowed
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a learner that requests no GPU sees all of them, as in a process
    }


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for programs started in this context."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _loopback_allowed() -> Iterator[None]:
    """Let a Ray instance started in this context keep the loopback address instead of the machine's address.

    By default, Ray keeps it only on systems where it can't form clusters. Ray reads the environment variable for this
    when it is imported, which may already have happened, so this context sets Ray's constant instead.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _as_it_listens(address: str | None) -> Iterator[None]:
    """Let this context join a cluster at the address where the cluster answers, which may be only the loopback address.

    Raises:
        ConnectionError: if nothing answers at the address; Ray itself would retry for many minutes.
    """
    found = canonicalize_bootstrap_address(address)  # for any address of this machine, its main address
    host, _, port = (found or "").rpartition(":")
    hosts = [host, LOOPBACK] if host == ray.util.get_node_ip_address() else [host]
    if found is None or first_to_answer([each.strip("[]") for each in hosts], int(port)) != LOOPBACK:
        yield
        return
    with _loopback_allowed():
        yield


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore, at the end of this context, the signal handlers that Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The head of a Ray cluster: its address, and a watch over it. A minute after the head is gone, Ray ends every process
# that uses the cluster, including main.

LOOK_EVERY_S = 2.0
MISSES = 3
"""Number of consecutive failed probes after which the head counts as gone."""
PATIENCE_S = 10.0
"""Seconds within which a new head must begin to answer; Ray itself would wait for minutes."""


def first_to_answer(hosts: list[str], port: int) -> str:
    """Return the first of these hosts that answers on the port.

    Raises:
        ConnectionError: if no host answers.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        for host in hosts:
            with suppress(OSError):
                socket.create_connection((host, port), LOOK_EVERY_S).close()
                return host
        if time.monotonic() > until:
            raise ConnectionError("nothing answers at this address")
        time.sleep(LOOK_EVERY_S / 4)


async def wait_until_gone(address: str) -> None:
    """Return when the head's `host:port` no longer answers."""
    host, _, port = address.rpartition(":")
    misses = 0
    while misses < MISSES:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError):
            misses += 1
        else:
            misses = 0
            writer.close()
