"""A learner's followers: hosts with the other replicas of its trainer, which it starts, feeds and watches over.

A trainer depends on the order of its inlet alone. So what the learner takes in goes to all followers first, in the same
order, and they do what it does without being told; only sums over rows are exchanged (`stages.trainer.replicas`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from config import RunConfig
from config.host_kinds import HOST_KINDS
from pipeline.control.messages import FollowerReady, HostFailed, HostFinished, LogLine
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostFactory, HostHandle
from queues.ends import ItemSource, Outlet
from queues.messages import TrajectoryBatch
from queues.slabs import pieces
from stages.errors import StageError
from stages.loading import load_attribute
from stages.loop import StageFailure
from stages.trainer.protocol import Trainer
from stages.trainer.replicas import ReplicaLostError, Replicas

CAUSE_S = 5.0
"""Seconds in which the cause of a failure shows: the learner's own, or the end of a follower."""
END_S = 10.0
"""Seconds in which a follower ends after its learner; then it is killed."""
_PATIENCE = 0.9
"""Share of the limit of silence after which a follower is lost: main would end the learner, and blame it, after all."""

T = TypeVar("T")


class Followers:
    """The followers of one learner.

    Args:
        plan: the learner's.
        config: the run's.
        device: the torch device of trainers.
    """

    def __init__(self, plan: HostPlan, config: RunConfig, device: str) -> None:
        self._plan = plan
        self._config = config
        self._device = device
        learners = config.pipeline.hosts.learners
        self._size = learners.replicas
        self._kind = "process" if HOST_KINDS[learners.kind].in_main else learners.kind
        limits = config.pipeline.supervision
        limit = limits.main.end_s if HOST_KINDS[learners.kind].in_main else limits.learners.end_s
        self._patience_s = None if limit is None else _PATIENCE * limit
        self._hosts: list[HostHandle] = []
        self._outlets: list[Outlet[Any]] = []

    async def beside(self, train: Callable[[Replicas, str, Followers], Awaitable[None]]) -> None:
        """Train as the first replica, and end with the followers.

        Raises:
            StageError: if a follower is lost; the message names it.
        """
        async with asyncio.TaskGroup() as tasks:
            watches: list[asyncio.Task[str]] = []
            patience_s = 0.0
            try:
                await self._beside(train, tasks, watches)
                patience_s = END_S
            finally:
                await self._end(watches, patience_s)

    async def _beside(
        self,
        train: Callable[[Replicas, str, Followers], Awaitable[None]],
        tasks: asyncio.TaskGroup,
        watches: list[asyncio.Task[str]],
    ) -> None:
        from stages.trainer.joined_replicas import JoinedReplicas, listen

        address = self._address()
        store = listen(self._size, address)
        name = HOST_KINDS[self._kind].implementation
        factory: HostFactory = load_attribute(name, None, "host kind")(self._config, tasks)
        all_ready: list[asyncio.Event] = []
        for rank in range(1, self._size):
            plan = replace(
                self._plan,
                role="follower",
                name=f"{self._plan.name}-replica-{rank}",
                replica=rank,
                rendezvous=(address, store.port),
            )
            host = await factory.start(plan)
            self._hosts.append(host)
            ready = asyncio.Event()
            all_ready.append(ready)
            watches.append(asyncio.create_task(_watch(host, ready)))
            self._outlets.append(await host.outlet(f"learn/{plan.behavior}"))

        async def work() -> None:
            device, own = device_of_replica(self._device, 0, self._size)
            for ready in all_ready:  # a follower that dies while it is born is nobody to wait for in a thread
                await ready.wait()
            joined = await in_thread(lambda: JoinedReplicas(0, self._size, store, own, address, self._patience_s))
            await train(joined, device, self)

        working = asyncio.create_task(work())
        try:
            await asyncio.wait([working, *watches], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():  # what ended a follower may end the learner, too, and is better told by that
                await asyncio.wait([working], timeout=CAUSE_S)
            if working.done() and not _is_loss(working.exception()):
                await working
                return
            raise StageError(await self._name_lost(watches)) from (working.exception() if working.done() else None)
        finally:
            working.cancel()
            await asyncio.wait([working])

    async def _name_lost(self, watches: list[asyncio.Task[str]]) -> str:
        """Say which follower is lost, and how."""
        ended, _ = await asyncio.wait(watches, timeout=CAUSE_S, return_when=asyncio.FIRST_COMPLETED)
        if ended:
            followers = zip(self._hosts, watches, strict=True)
            found = [f"{host.plan.name} {watch.result()}" for host, watch in followers if watch in ended]
        else:
            found = [f"{host.plan.name}: {await host.describe()}" for host in self._hosts]
            waited = f"{self._patience_s:.0f} s" if self._patience_s is not None else "a while"
            found.insert(0, f"{self._plan.name} has waited for its replicas for {waited} in vain.")
        return "\n".join([*found, f"{self._plan.name} can't learn without it: all replicas make each update together."])

    def fed_from(self, inlet: ItemSource[Any]) -> ItemSource[Any]:
        """The learner's inlet: what is taken from it has been put to all followers."""
        return _SharedInlet(inlet, self._outlets, self._slab_bytes(), self._patience_s)

    def _address(self) -> str:
        """The address under which the followers reach the learner."""
        if HOST_KINDS[self._kind].on_ray:
            import ray

            if self._config.pipeline.ray.address is not None or len(ray.nodes()) > 1:
                return str(ray.util.get_node_ip_address())
        return "127.0.0.1"

    def _slab_bytes(self) -> int:
        from pipeline.hosts.links import default_slab_bytes

        return self._config.pipeline.queues.slab_bytes or default_slab_bytes()

    async def _end(self, watches: list[asyncio.Task[str]], patience_s: float) -> None:
        """Let the followers end, and kill those that take longer."""
        for outlet in self._outlets:
            outlet.close()
        if watches:
            await asyncio.wait(watches, timeout=patience_s)
        for host in self._hosts:
            host.kill()
        if watches:
            await asyncio.wait(watches)
        for host in self._hosts:
            host.close()


class _SharedInlet:
    """An inlet whose trajectories go to followers, too, before they are learned from.

    A batch that is too large for the way there is taken in pieces, by the learner as well: all learn in the same steps.
    """

    def __init__(
        self, inlet: ItemSource[Any], followers: list[Outlet[Any]], slab_bytes: int, patience_s: float | None
    ) -> None:
        self._inlet = inlet
        self._followers = followers
        self._slab_bytes = slab_bytes
        self._patience_s = patience_s

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._inlet:
            if not isinstance(item, TrajectoryBatch):  # checkpoints are the learner's
                yield item
                continue
            for piece in pieces(item, self._slab_bytes):
                await self._put(piece)
                yield piece
            del item, piece

    def close(self) -> None:
        """Close the inlet: the consumer is gone."""
        self._inlet.close()

    async def _put(self, piece: Any) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                for follower in self._followers:
                    await follower.put(piece)
                await asyncio.sleep(0)  # what is on its way sets out now: learning holds the event loop
        except TimeoutError as error:
            raise ReplicaLostError("a replica of the learner takes in nothing any more") from error


def device_of_replica(device: str, rank: int, size: int) -> tuple[str, str]:
    """The torch device of a replica, and the one by which replicas are joined: a GPU of its own, or the CPU."""
    import torch

    if device == "cuda" and torch.cuda.device_count() >= size:
        return f"cuda:{rank}", f"cuda:{rank}"
    return device, "cpu"


def own_address(address: str, port: int) -> str:
    """This machine's address in the network in which another one has `address`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((address, port))  # sends nothing
        return str(sock.getsockname()[0])


def check_agreement(replicas: Replicas, trainer: Trainer, device: str) -> None:
    """Make sure that all replicas begin with the same state.

    Raises:
        StageError: if this one does not.
    """
    import torch

    policy = trainer.policy()
    state = [[zlib.crc32(policy.weights.tobytes()), trainer.step, trainer.version]]
    own = torch.tensor(state, dtype=torch.int64, device=device)
    everywhere = replicas.gathered(own, replicas.part(replicas.size), replicas.size)
    if bool((everywhere != everywhere[0]).any()):
        raise StageError(
            f"{trainer.context.behavior}: the learner's replicas would begin with different weights or steps; do all "
            "of them see the same run folder, and the same files that the YAML names?"
        )


async def in_thread(call: Callable[[], T]) -> T:
    """Make a call that blocks, in a thread that nobody waits for if it is not awaited any more."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = call(), None
        except Exception as error:
            outcome = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="joining", daemon=True).start()
    return await done


async def _watch(host: HostHandle, ready: asyncio.Event) -> str:
    """Pass on what a follower says until it ends; returns how it has ended."""
    failure: HostFailed | None = None
    finished = False
    async for message in host.control.receive():
        match message:
            case FollowerReady():
                ready.set()
            case LogLine():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case HostFailed():
                failure = message
            case HostFinished():
                finished = True
    status = await host.wait()
    if failure is not None:
        return f"failed: {failure.message}"
    if status < 0:
        return f"was killed by signal {-status}."
    return "ended in the middle of the run." if finished else f"ended with status {status}."


def _is_loss(error: BaseException | None) -> bool:
    """Return True if an error says no more than that some replica is lost."""
    return isinstance(error.cause if isinstance(error, StageFailure) else error, ReplicaLostError)
