"""Followers: replicas of a learner's trainer, which receive the same items and learn with it.

A follower sends no reports, policies or checkpoints; the learner does. Main ends and replaces a learner that has lost a
follower (`FollowersPart`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.graph import TRAINER, shard_names
from headrace.pipeline.control import FollowerLost, FollowerReady, HostFailed, HostFinished, LogLine, OpenEdge
from headrace.pipeline.hosts.protocol import HostFactory, HostHandle, HostPlan, how_it_ended, root_cause
from headrace.pipeline.main.run_part import RunPart
from headrace.pipeline.roles.device import device_of
from headrace.pipeline.roles.learner import TrainerHost
from headrace.queues.disks import in_thread
from headrace.queues.ends import ItemSink, ItemSource, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.links import pieces
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.loop import NoSender, StageFailure, StageRunner
from headrace.stages.stage import NoStatistics
from headrace.stages.trainer.protocol import ReplicaLostError, Replicas, Trainer
from headrace.stages.trainer.stage import TrainerStage

log = logging.getLogger(__name__)


class FollowersPart(RunPart):
    """Ends learners that have lost a follower, so that they are replaced."""

    receives = (FollowerLost,)

    def receive(self, host: HostHandle, message: FollowerLost) -> None:
        """End a learner that has lost a follower, so that a new learner can replace it."""
        self.run.running.end(host, f"was ended, because {message.how}")


CAUSE_S = 5.0
"""Seconds to wait for the cause of a failure: the learner's own error, or a follower's end."""
END_S = 10.0
"""Seconds within which a follower must end after its learner has ended; after that, the follower is killed."""
_PATIENCE = 0.9
"""Fraction of the silence limit after which a follower counts as lost, before main can blame the learner."""


@dataclass(frozen=True)
class _End:
    """How a follower ended."""

    how: str
    """The follower's name, and a description of how it ended."""
    failed: bool = False
    """True if the follower ended with an exception, which a replacement would raise too."""
    in_order: bool = False
    """True if the follower ended because it had nothing left to do, or because the learner or another follower was
    gone.
    """


class Followers:
    """One learner's followers.

    Args:
        plan: the learner's plan.
        config: the run's configuration.
        device: the torch device for the trainers.
    """

    def __init__(self, plan: HostPlan, config: RunConfig, device: str) -> None:
        self._plan = plan
        self._config = config
        self._device = device
        learners = config.pipeline.hosts.learners
        self._size = learners.replicas
        self._in_main = HOST_KINDS[learners.kind].in_main
        self._kind = "process" if self._in_main else learners.kind
        limits = config.pipeline.supervision
        limit = limits.main.end_s if self._in_main else limits.learners.end_s
        self._patience_s = None if limit is None else _PATIENCE * limit
        self._hosts: list[HostHandle] = []
        self._watches: list[asyncio.Task[_End]] = []
        behavior = plan.behavior
        shards = range(len(shard_names(config, behavior)))
        self._senders: dict[str, list[Sender[Any]]] = {f"learn/{behavior}": []}
        self._senders |= {f"samples/{behavior}/{shard}": [] for shard in shards}
        self._stage: TrainerStage | None = None
        self._receiver: ItemSource[Any] | None = None

    async def beside(self, train: Callable[[Replicas, str, Followers], Awaitable[None]]) -> str:
        """Train as the first replica, and end together with the followers.

        Returns:
            A string that names the lost follower and says how it was lost; empty if there was nothing left to do. After
            a loss, the learner's queues stay open for its replacement, as if the learner had been killed.

        Raises:
            StageError: if a follower fails, or is lost while the learner is in main; the message names the follower.
        """
        async with asyncio.TaskGroup() as tasks:
            patience_s, lost = 0.0, ""
            try:
                lost = await self._beside(train, tasks)
                patience_s = 0.0 if lost else END_S
            finally:
                await self._end(patience_s)
                if self._receiver is not None and not lost:
                    self._receiver.close()
        return lost

    async def _beside(
        self, train: Callable[[Replicas, str, Followers], Awaitable[None]], tasks: asyncio.TaskGroup
    ) -> str:
        from headrace.stages.trainer.joined_replicas import JoinedReplicas, listen

        address = self._address()
        store = listen(self._size, address)
        all_ready = await self._start((address, store.port), tasks)

        async def work() -> None:
            device, exchange_device = device_of_replica(self._device, 0, self._size)
            for ready in all_ready:  # wait here and not in a thread, because a follower may die while it starts
                await ready.wait()
            joined = await in_thread(
                "joining", JoinedReplicas, 0, self._size, store, exchange_device, address, self._patience_s
            )
            await train(joined, device, self)

        working = asyncio.create_task(work())
        try:
            await asyncio.wait([working, *self._watches], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                # The same cause may end the learner too, and the learner's error says more. A learner that has
                # reached `max_steps` no longer needs followers.
                await asyncio.wait([working], timeout=CAUSE_S if self._learns() else None)
            if working.done() and not is_loss(working.exception()):
                await working
                return ""
            lost = await self._name_lost(working.exception() if working.done() else None)
            if self._in_main:
                raise StageError(
                    f"{lost}. {self._plan.name} can't learn without it, and can't be restarted in the main process."
                )
            return lost
        finally:
            working.cancel()
            await asyncio.wait([working])

    async def _start(self, rendezvous: tuple[str, int], tasks: asyncio.TaskGroup) -> list[asyncio.Event]:
        """Start the followers; return an event for each, set when that follower is about to join."""
        name = HOST_KINDS[self._kind].implementation
        factory: HostFactory = load_attribute(name, None, "host kind")(self._config, tasks)
        all_ready: list[asyncio.Event] = []
        for rank in range(1, self._size):
            plan = replace(
                self._plan,
                role="follower",
                name=f"{self._plan.name}-replica-{rank}",
                replica=rank,
                rendezvous=rendezvous,
            )
            host = await factory.start(plan)
            self._hosts.append(host)
            ready = asyncio.Event()
            all_ready.append(ready)
            self._watches.append(asyncio.create_task(_watch(host, ready)))
            for queue, senders in self._senders.items():
                senders.append(await host.sender(queue))
        return all_ready

    async def _name_lost(self, loss: BaseException | None) -> str:
        """Return which follower is lost, and how.

        Raises:
            StageError: if a follower failed with an exception.
        """
        ends: list[_End] = []
        waiting = set(self._watches)
        with suppress(TimeoutError):
            async with asyncio.timeout(CAUSE_S):
                while waiting and all(end.in_order for end in ends):
                    ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    ends += [watch.result() for watch in ended]
        if ends:
            cause = min(ends, key=lambda end: (not end.failed, end.in_order))
            if cause.failed:
                raise StageError(cause.how) from loss
            return cause.how
        for host in self._hosts:
            log.warning("%s does not respond to its learner: %s", host.plan.name, await host.describe())
        return f"{_cause(loss)} ({', '.join(host.plan.name for host in self._hosts)})"

    def join(
        self, stage: TrainerStage, receiver: ItemSource[Any], sender: ItemSink[Any]
    ) -> tuple[ItemSource[Any], ItemSink[Any]]:
        """Wrap the learner's queues: each input item goes to the followers first, and the stage can't close the queues.

        However the stage ends, both queues stay open; `beside` and the host close them if no follower is lost.
        """
        self._stage, self._receiver = stage, receiver
        return self._share(f"learn/{self._plan.behavior}", receiver), _LeftOpen(sender)

    def share_samples(self, shard: int, receiver: ItemSource[Any]) -> ItemSource[Any]:
        """Wrap the learner's input queue from a replay shard, so that the followers learn from the same batches."""
        return self._share(f"samples/{self._plan.behavior}/{shard}", receiver)

    @staticmethod
    def check_agreement(replicas: Replicas, trainer: Trainer) -> None:
        """Check that all replicas start with the same state.

        Raises:
            StageError: if the replicas' states differ.
        """
        import torch

        policy = trainer.policy()
        state = [[zlib.crc32(policy.weights.tobytes()), trainer.step, trainer.version]]
        own_state = torch.tensor(state, dtype=torch.int64, device=trainer.context.device)
        all_states = replicas.gathered(own_state, replicas.part(replicas.size), replicas.size)
        if bool((all_states != all_states[0]).any()):
            raise StageError(
                f"{trainer.context.behavior}: the learner's replicas would start with different weights or steps; make "
                "sure that all of them see the same run folder and the same files that the YAML names"
            )

    def _share(self, queue: str, receiver: ItemSource[Any]) -> ItemSource[Any]:
        from headrace.pipeline.hosts.links import default_slab_bytes

        slab_bytes = self._config.pipeline.queues.slab_bytes or default_slab_bytes()
        return _SharedReceiver(receiver, self._senders[queue], slab_bytes, self._patience_s, self._learns)

    def _learns(self) -> bool:
        """Return True until the trainer is done."""
        return self._stage is None or not self._stage.done

    def _address(self) -> str:
        """Return the address at which followers reach the learner."""
        if HOST_KINDS[self._kind].on_ray:
            import ray

            if self._config.pipeline.ray.address is not None or len(ray.nodes()) > 1:
                return str(ray.util.get_node_ip_address())
        return "127.0.0.1"

    async def _end(self, patience_s: float) -> None:
        """Wait for the followers to end, and kill those that take too long."""
        for sender in itertools.chain(*self._senders.values()):
            sender.close()
        if self._watches:
            ended, _ = await asyncio.wait(self._watches, timeout=patience_s)
            for end in (watch.result() for watch in ended if patience_s):
                if not end.in_order:
                    log.warning("%s while its learner was ending.", end.how)
        for host in self._hosts:
            host.kill()
        if self._watches:
            await asyncio.wait(self._watches)
        for host in self._hosts:
            host.close()


@dataclass(frozen=True)
class _SharedReceiver:
    """An input queue whose items go to the followers before the learner takes them.

    A batch too large for the queue to the followers is split for the learner too, so that the learner and the followers
    make the same updates.
    """

    receiver: ItemSource[Any]
    followers: list[Sender[Any]]
    slab_bytes: int
    patience_s: float | None
    learns: Callable[[], bool]

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self.receiver:
            if isinstance(item, Barrier):  # only the learner saves checkpoints
                yield item
                continue
            new = isinstance(item, TrajectoryBatch)  # a trainer that is done does not learn from new batches
            for piece in pieces(item, self.slab_bytes) if new else (item,):
                if self.learns() or not new:
                    await self._put(piece)
                yield piece
            del item, piece

    def close(self) -> None:
        """Do nothing, so that the queue stays open."""

    async def _put(self, piece: Any) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                for follower in self.followers:
                    await follower.put(piece)
                await asyncio.sleep(0)  # send pending items now, because learning blocks the event loop
        except (TimeoutError, QueueClosed) as error:
            raise ReplicaLostError("a replica of the learner no longer accepts messages") from error


class _LeftOpen:
    """An output queue that the stage can't close."""

    def __init__(self, sender: ItemSink[Any]) -> None:
        self.put = sender.put

    def close(self) -> None:
        """Do nothing, so that the queue stays open."""


def device_of_replica(device: str, rank: int, size: int) -> tuple[str, str]:
    """Return a replica's torch device, and the device for exchanging data with replicas: its own GPU, or the CPU."""
    import torch

    if device == "cuda" and torch.cuda.device_count() >= size:
        return f"cuda:{rank}", f"cuda:{rank}"
    return device, "cpu"


async def _watch(host: HostHandle, ready: asyncio.Event) -> _End:
    """Forward a follower's messages until the follower ends; return how it ended."""
    name, failure, finished = host.plan.name, None, False
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
        return _End(f"{name} failed: {failure.message}", failed=True)
    if finished:
        return _End(f"{name} has ended", in_order=True)
    return _End(f"{name} {how_it_ended(status)}")


def is_loss(error: BaseException | None) -> bool:
    """Return True if an error reports only that a replica is lost."""
    return isinstance(_cause(error), ReplicaLostError)


def _cause(error: BaseException | None) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        error = root_cause(error)
    return error.cause if isinstance(error, StageFailure) else error


class FollowerHost(TrainerHost):
    """Runs one replica of a trainer."""

    async def _work(self) -> None:
        try:
            await self._follow()
        except Exception as error:
            if not is_loss(error):  # the learner determines which replica is lost
                raise

    async def _follow(self) -> None:
        from headrace.stages.trainer.joined_replicas import JoinedReplicas, connect

        (address, port), rank = self.plan.rendezvous, self.plan.replica
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((address, port))  # sends nothing
            here = str(sock.getsockname()[0])  # this machine's address in the network that the learner's belongs to
        size = self.config.pipeline.hosts.learners.replicas
        device, exchange_device = device_of_replica(device_of(self.config, self.plan.behavior)[0], rank, size)
        self.control.send(FollowerReady())
        # No time limit is needed, because a follower ends with its learner.
        replicas = await in_thread(
            "joining", lambda: JoinedReplicas(rank, size, connect(address, port, size), exchange_device, here)
        )
        nowhere: Any = NoSender()
        if self._shards is not None:
            for _ in range(self._shards.count):  # only the learner sends rows to shards and requests batches
                self._shards.senders.put_nowait(nowhere)
        async with self._make_stage(replicas, device, NoStatistics()) as stage:
            Followers.check_agreement(replicas, stage.trainer)
            stage.policy()
            await StageRunner(stage, await self._receiver, nowhere, self.stages.context(TRAINER)).run()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            if isinstance(message, OpenEdge) and message.name.startswith("samples/"):
                self._shards.receivers.put_nowait(await self.open_receiver(message))
            elif isinstance(message, OpenEdge):
                self._receiver.set_result(await self.open_receiver(message))
