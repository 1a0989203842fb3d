"""Ray hosts: each host runs in a Ray actor, which main starts, calls and ends."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray._private import worker
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import ActorUnavailableError, RayError

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostResources
from headrace.config.league_placement import resources_of
from headrace.paths import FOLDERS, ROOT
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import actor_learners, decides_centrally
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control import CONTROL_BOUND, LocalControl, OpenEdge
from headrace.pipeline.hosts.process_cleanup import remove_folder_at_end, watch_this_process
from headrace.pipeline.hosts.protocol import Feed, HostHandle, HostPlan
from headrace.pipeline.hosts.ray.worker import DOWN, UP, PolicyObjectStore, RaySource, RayWorker, deliver_to
from headrace.pipeline.hosts.spawn import ANSWER_S, child_environment
from headrace.pipeline.run_folder.lock import refuse_writes
from headrace.queues.agent_manager_queue import Overflow
from headrace.queues.call_queue import PullReceiver, PushSender
from headrace.queues.ends import Receiver, Sender
from headrace.startup_context import startup_context

log = logging.getLogger(__name__)


LOOPBACK = "127.0.0.1"
_LONGEST_FOLDER = 107 - 65 - 30
"""Maximum length of a temporary folder's path: a socket's path has at most 107 characters, of which Ray's names take 65
and Headrace's folder takes 30.
"""
_RESOURCES = "the resources of pipeline.hosts and of the learners' placements"
"""What the YAML requests of Ray, as messages name it."""
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
        self.is_own = config.pipeline.ray.address is None
        """True if the run starts the Ray instance, on this machine."""
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a late call must not start another Ray
        self.lost = False
        """True once the cluster's head is gone."""
        self._folder = ""
        self.was_running = ray.is_initialized()
        if self.was_running:
            self.is_own = False
        elif self.is_own:
            self._start(config)
        else:
            self._join(config)

    def _start(self, config: RunConfig) -> None:
        watch_this_process()  # Ray's processes end with main, even after `kill -9`
        temporary = tempfile.gettempdir()
        parent = temporary if len(temporary) <= _LONGEST_FOLDER else "/tmp"
        self._folder = tempfile.mkdtemp(prefix=f"headrace-ray-{os.getpid()}-", dir=parent)
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
        for name, amount in (("GPU", gpus), ("memory", memory)):
            if amount > (available := ray.cluster_resources().get(name, 0)):
                self.close()
                raise RunError(f"{_RESOURCES}: {amount:,.12g} {name} requested, but this machine has {available:,.12g}")

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

    def close(self) -> None:
        """End the run's own Ray, or leave the cluster."""
        if self.was_running or (self.lost and not self.is_own):
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
    folders = [str(folder) for folder in {config.source_folder, startup_context().folder} if folder is not None]
    paths = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or name == "headrace" or not file or name == "__main__":
            continue
        path = os.path.abspath(file)
        if os.path.basename(path) == "__init__.py":
            path = os.path.dirname(path)
        if os.path.dirname(path) in map(os.path.abspath, folders):
            paths.append(path)
    return paths


def _amounts(config: RunConfig) -> dict[str, float]:
    """Return the total resources that a run's hosts on Ray request, keyed by Ray's resource names."""
    total: Counter[str] = Counter()
    for resources in _requests(config):
        amounts = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory, **resources.custom}
        total.update({name: amount for name, amount in amounts.items() if amount})
    return dict(total)


def _requests(config: RunConfig) -> Iterator[HostResources]:
    """Yield the resources that each host on Ray requests."""
    hosts, behaviors = config.pipeline.hosts, [*config.behaviors] or [""]
    learners = actor_learners(config) or [""] * hosts.actors.replicas
    parts = (
        (hosts.actors, [resources_of(config, "actors", learner) for learner in learners]),
        (hosts.evaluation, [hosts.evaluation.resources] * (config.evaluation is not None)),
        (hosts.replay, [hosts.replay.resources] * hosts.replay.replicas * len(behaviors)),
        (hosts.inference, [hosts.inference.resources] * decides_centrally(config)),
        (
            hosts.learners,
            [resources_of(config, "learners", behavior) for behavior in behaviors] * hosts.learners.replicas,
        ),
    )
    for settings, requests in parts:
        if settings.kind is not None and HOST_KINDS[settings.kind].on_ray:
            yield from requests


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
    main_address = canonicalize_bootstrap_address(address)  # for any address of this machine, its main address
    host, _, port = (main_address or "").rpartition(":")
    hosts = [host, LOOPBACK] if host == ray.util.get_node_ip_address() else [host]
    if main_address is None or first_to_answer([name.strip("[]") for name in hosts], int(port)) != LOOPBACK:
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

PROBE_EVERY_S = 2.0
MISSES = 3
"""Number of consecutive failed probes after which the head counts as gone."""
PATIENCE_S = 10.0
"""Seconds within which a new head must answer, and after which a warning names a host without a node."""


def first_to_answer(hosts: list[str], port: int) -> str:
    """Return the first of these hosts that answers on the port.

    Raises:
        ConnectionError: if no host answers.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        for host in hosts:
            with suppress(OSError):
                socket.create_connection((host, port), PROBE_EVERY_S).close()
                return host
        if time.monotonic() > until:
            raise ConnectionError("nothing answers at this address")
        time.sleep(PROBE_EVERY_S / 4)


async def wait_until_gone(address: str) -> None:
    """Return when the head's `host:port` no longer answers."""
    host, _, port = address.rpartition(":")
    misses = 0
    while misses < MISSES:
        await asyncio.sleep(PROBE_EVERY_S)
        try:
            async with asyncio.timeout(PROBE_EVERY_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError):
            misses += 1
        else:
            misses = 0
            writer.close()


CALLS = 10_000
"""Maximum number of concurrent calls to a host. Each item in transit and each queue with a reader takes one call."""

_HEADLESS = (
    "the head node of the Ray cluster is gone, and Ray ends everything that belongs to the cluster (see "
    "pipeline.ray.address)"
)
VERDICT_S = 60.0
"""Seconds within which a cluster notices that a node has died."""


Consumer = Callable[[str, Any], object]
"""Function that lets the reader of a host's queue switch to the actor that now runs the host with this name; the actor
is None if the host has no successor."""


def _read_by_main(receiver: PullReceiver[Any]) -> Consumer:
    return lambda name, actor: receiver.replace(name, None if actor is None else RaySource(actor))


class RayHost:
    """A running host on Ray, as seen by main.

    Args:
        plan: the host's plan.
        actor: handle of the host's `RayWorker`.
        session: the Ray instance in which the host runs.
        stored: the items in the object store that several hosts share.
        maxlen: maximum length of the FIFO queues.
        resources: description of the resources that the host requests.
    """

    may_hang = True
    unplaced = False

    def __init__(
        self,
        plan: HostPlan,
        actor: Any,
        session: RaySession,
        stored: PolicyObjectStore,
        maxlen: int,
        resources: str,
    ) -> None:
        self.plan = plan
        self.actor = actor
        self.source = RaySource(actor)
        self.consumers: dict[str, Consumer] = {}
        """Readers of this host's outgoing queues, keyed by queue name."""
        self.feeders: list[RayHost] = []
        """Hosts that put items directly into this host's `feed_name` queue."""
        self.feed_name = ""
        self.served: dict[str, dict[str, Any]] = {}
        """Arguments of `serve` for this host's outgoing queues, keyed by queue name."""
        self.senders: dict[str, PushSender[Any]] = {}
        """Main's ends of the queues to this host that a successor may take over, keyed by queue name."""
        self._session = session
        self._deliver = partial(deliver_to, actor, stored)
        self._maxlen = maxlen
        self._resources = resources
        self._irreplaceable = self._closed = False
        self._up: PullReceiver[Any] = PullReceiver(UP, CONTROL_BOUND, {plan.name: self.source})
        self._up.replace(plan.name, None)
        self.control = LocalControl(PushSender(DOWN, CONTROL_BOUND, self._deliver), self._up)
        self._end = asyncio.ensure_future(self._run())

    async def receiver(self, name: str, newest: bool = True) -> Receiver[Any]:
        """Open main's end of a queue from this host."""
        maxlen, overflow = (1, "replace_oldest") if newest else (self._maxlen, "wait")
        self.serve(name, maxlen, overflow)  # type: ignore[arg-type]
        receiver: PullReceiver[Any] = PullReceiver(name, maxlen, {self.plan.name: self.source}, overflow)  # type: ignore[arg-type]
        self.add_consumer(name, _read_by_main(receiver))
        return receiver

    async def sender(self, name: str, newest: bool = False) -> Sender[Any]:
        """Open main's end of a queue to this host."""
        maxlen, overflow = (1, "replace_oldest") if newest else (self._maxlen, "wait")
        self.control.send(OpenEdge(name, {"maxlen": maxlen, "overflow": overflow, "sources": {}}))
        if self.plan.role != "learner":
            return PushSender(name, maxlen, self._deliver, overflow)  # type: ignore[arg-type]
        sender: PushSender[Any] = PushSender(name, maxlen, self._deliver, replaceable=not self._irreplaceable)
        self.senders[name] = sender
        return sender

    def serve(self, name: str, maxlen: int, overflow: Overflow) -> None:
        """Let the host open its end of an outgoing queue."""
        self.served[name] = {"maxlen": maxlen, "overflow": overflow}
        self.control.send(OpenEdge(name, self.served[name]))

    def add_consumer(self, name: str, consumer: Consumer) -> None:
        """Register the reader of one of this host's outgoing queues."""
        self.consumers[name] = consumer
        if self._irreplaceable:
            consumer(self.plan.name, None)

    def succeed(self, dead: RayHost) -> None:
        """Take over a dead host's outgoing queues and, for a learner, its incoming queues too."""
        self.consumers, dead.consumers = dead.consumers, {}
        for name, consumer in self.consumers.items():
            self.serve(name, **dead.served[name])
            consumer(self.plan.name, self.actor)
        self.senders, dead.senders = dead.senders, {}
        for name, sender in self.senders.items():
            self.control.send(OpenEdge(name, {"maxlen": self._maxlen, "overflow": "wait", "sources": {}}))
            sender.reconnect(self._deliver)

    def admit(self, plan: HostPlan) -> None:
        """Make this host refuse all older incarnations of a host that is about to start."""
        if not self._closed:
            self.actor.admit.remote(plan.name, plan.incarnation)

    def rule_out_successor(self) -> None:
        """Let readers notice when this host ends, because no replacement will come."""
        if not self._irreplaceable:
            self._irreplaceable = True
            for consumer in self.consumers.values():
                consumer(self.plan.name, None)
            for sender in self.senders.values():
                sender.rule_out_successor()

    async def wait(self) -> int:
        """Wait for the host to end; return its exit status, or -9 if it was lost."""
        await asyncio.wait([self._end])
        return -9 if self._end.cancelled() else self._end.result()

    @property
    def began(self) -> bool:
        """True if the host has sent any message."""
        received = self._up.statistics()
        return received.items_out > 0 or received.size > 0

    def lose(self) -> None:
        """Treat the host as ended, because the Ray head node is lost."""
        self.control.close()
        self._up.close()
        self._end.cancel()

    async def describe(self) -> str:
        """Describe what the host is doing, with its stack."""
        with suppress(TimeoutError, RayError):
            async with asyncio.timeout(ANSWER_S):
                return str(await self.actor.describe.remote())
        return "it does not respond: its node is gone or stopped"

    def kill(self) -> None:
        """End the host's process immediately."""
        if self._session.lost:
            self.lose()
        elif ray.is_initialized():
            with suppress(RayError):
                ray.kill(self.actor)

    def close(self) -> None:
        """Close the control channel, end the process and release everything that main holds for the host."""
        if self._closed:
            return
        self._closed = True
        self.control.close()
        self.rule_out_successor()
        for host in self.feeders:
            if not host._closed:
                host.source.finish(self.feed_name)
        self.kill()

    async def _run(self) -> int:
        placing = asyncio.create_task(self._watch_placement(), name=f"placing {self.plan.name}")
        try:
            return int(await self.actor.run.remote())
        except RayError as error:
            if not self._closed:
                refuse_writes(self.plan.folder, self.plan.incarnation)
                log.warning("%s: %s", self.plan.name, " ".join(str(await self._verdict(error)).split()))
            self.kill()  # the node may only be unreachable, and no host may run twice
            return -9
        finally:
            placing.cancel()

    async def _watch_placement(self) -> None:
        """Wait until Ray has placed the host on a node, for as long as that takes, for example until one joins."""
        gcs, key, begun_s, named = worker.global_worker.gcs_client, self.actor._actor_id, time.monotonic(), False
        with suppress(RayError):
            while not (info := await gcs.async_get_all_actor_info(key)) or not info[key].address.ip_address:
                self.unplaced = True
                if not named and time.monotonic() - begun_s > PATIENCE_S:
                    named = True
                    text = "%s waits for a node with room for it (it requests %s), or Ray is still preparing its node."
                    log.warning(text, self.plan.name, self._resources)
                await asyncio.sleep(PROBE_EVERY_S / 2)
        self.unplaced = False

    async def _verdict(self, error: RayError) -> RayError:
        """Wait until Ray knows why a host is unreachable. Before that, Ray might start a replacement on a dead node."""
        with suppress(TimeoutError):
            async with asyncio.timeout(VERDICT_S):
                while isinstance(error, ActorUnavailableError):
                    try:
                        await self.actor.describe.remote()
                    except RayError as later:
                        error = later
                        await asyncio.sleep(VERDICT_S / 100)
                    else:
                        break  # the actor is alive, but the call that ran the host is lost
        return error


@dataclass(frozen=True)
class RayFeed:
    """A queue that several hosts on Ray fill."""

    name: str
    maxlen: int
    hosts: Sequence[RayHost]

    async def open(self) -> Receiver[Any]:
        """Open the queue's consuming end in main."""
        sources = {host.plan.name: host.source for host in self.hosts}
        receiver: PullReceiver[Any] = PullReceiver(self.name, self.maxlen, sources)
        for host in self.hosts:
            host.add_consumer(self.name, _read_by_main(receiver))
        return receiver

    def hand_to(self, host: RayHost) -> None:
        """Let another host on Ray open the queue's consuming end."""
        actors = {producer.plan.name: producer.actor for producer in self.hosts}
        host.control.send(OpenEdge(self.name, {"maxlen": self.maxlen, "overflow": "wait", "sources": actors}))
        host.feeders, host.feed_name = list(self.hosts), self.name
        for producer in self.hosts:
            producer.add_consumer(self.name, partial(host.actor.replace.remote, self.name))


class RayHosts:
    """Starts hosts in Ray actors."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None:
        self._config = config
        self._maxlen = config.pipeline.queues.trajectories.maxlen
        self._session: RaySession | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hosts: dict[str, RayHost] = {}
        self._stored = PolicyObjectStore()
        self._actor_learners = actor_learners(config)

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> RayHost:
        """Start a host. If no node has enough free resources, wait for one.

        Raises:
            RunError: if Ray can't be started or joined.
        """
        assert feed is None or isinstance(feed, RayFeed), "what comes from another kind of host passes through main"
        assert replaces is None or isinstance(replaces, RayHost), "a replacement is of the same kind"
        if self._session is None:
            await asyncio.sleep(0)  # starting blocks this thread for seconds: let pending tasks run first
            self._session = RaySession(self._config)
            refuse_writes(plan.folder)
            if not self._session.was_running:
                self._watch = asyncio.create_task(self._watch_head(self._session), name="watching Ray's head")
        session = self._session
        if session.lost:
            raise RunError(_HEADLESS)
        # If a follower's learner is in another kind of host, Ray may not be running yet.
        own_cluster = session.is_own or (plan.role == "follower" and self._config.pipeline.ray.address is None)
        options = _options(self._resources_of(plan), own_cluster)
        # The clock makes the number unique among the runs that resume in one folder.
        old = self._hosts.get(plan.name)
        plan = replace(plan, incarnation=max(time.time_ns(), old.plan.incarnation + 1 if old is not None else 0))
        if old is not None:
            for other in self._hosts.values():
                other.admit(plan)
        worker_class = ray.remote(concurrency_groups={"watch": 1})(RayWorker).options(**options, max_concurrency=CALLS)
        actor = worker_class.remote(plan.to_plain(), sys.path if own_cluster else [])
        host = RayHost(plan, actor, session, self._stored, self._maxlen, _in_words(options))
        self._hosts[plan.name] = host
        if feed is not None:
            feed.hand_to(host)
        if replaces is not None:
            host.succeed(replaces)
            feeders, replaces.feeders = replaces.feeders, []
            if feeders:
                present = [self._hosts[feeder.plan.name] for feeder in feeders]
                RayFeed(replaces.feed_name, self._maxlen, present).hand_to(host)
        return host

    def gather(self, name: str, hosts: Sequence[RayHost]) -> RayFeed:
        """Let each host open its end of a queue; return the queue's consuming end."""
        for host in hosts:
            host.serve(name, self._maxlen, "wait")
        return RayFeed(name, self._maxlen, hosts)

    def close(self) -> None:
        """End Ray, or leave the cluster."""
        if self._watch is not None:
            self._watch.cancel()
        if self._session is not None:
            self._session.close()

    def _resources_of(self, plan: HostPlan) -> HostResources:
        placed_as = host_role(plan.role).placed_as
        if plan.role == "actor" and self._actor_learners:
            return resources_of(self._config, "actors", self._actor_learners[plan.replica])
        if placed_as == "learners":
            return resources_of(self._config, "learners", plan.behavior)
        resources: HostResources = getattr(self._config.pipeline.hosts, placed_as).resources
        return resources

    async def _watch_head(self, session: RaySession) -> None:
        """Watch the head node; when it is lost, treat the actors as ended. Main can't replace them, so the run ends.

        Learners may still save their state, except those that have not begun to run; these are treated as ended too.
        """
        await wait_until_gone(ray.get_runtime_context().gcs_address)
        session.lost = True  # from now on, calls may never return
        log.warning(_HEADLESS)
        for host in self._hosts.values():
            if host.plan.role == "actor" or not host.began:
                host.lose()


def _options(resources: HostResources, own_cluster: bool) -> dict[str, Any]:
    """Return the Ray options for an actor that requests these resources."""
    options: dict[str, Any] = {
        "num_cpus": resources.cpus if resources.cpus is not None else float(not own_cluster),
        "num_gpus": resources.gpus,
        "resources": dict(resources.custom),
        "scheduling_strategy": "SPREAD" if resources.placement == "spread" else "DEFAULT",
    }
    if resources.memory is not None:
        options["memory"] = resources.memory
    return options


def _in_words(options: dict[str, Any]) -> str:
    amounts = {"CPUs": options["num_cpus"], "GPUs": options["num_gpus"], **options["resources"]}
    if "memory" in options:
        amounts["bytes of memory"] = options["memory"]
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount) or "nothing"
