"""What queues cost: `python benchmarks/transport.py`.

Prints a put and get within one event loop beside `asyncio.Queue`'s, and a 1 MB trajectory batch from another
process, copied out of shared memory as a trainer does, beside the same batch through `multiprocessing.Queue`.
The two of a pair are measured in turns within one run, so the ratios mean more than the figures.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import msgpack
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.links import LinkEnd, child_options_of, make_link
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.shared_receiver import SharedReceiver
from headrace.queues.shared_sender import SharedSender
from headrace.queues.slabs import LinkSpec

ROUNDS = 7
LOCAL_ITEMS = 50_000
BATCHES = 200
MAXLEN = 4
"""Items on their way, for both kinds of queue: enough that neither side waits for the other's wake-up."""


class AnyQueue(Protocol):
    """What is common to the two queues within a loop."""

    async def put(self, item: int) -> None:
        """Put an item."""
        ...

    async def get(self) -> int:
        """Take an item."""
        ...


def batch_of_one_megabyte() -> TrajectoryBatch:
    """64 trajectories of 32 steps with 124 numbers each."""
    n, k = 64 * 32, 64
    return TrajectoryBatch(
        "Ball",
        0,
        rows={
            "obs_0": np.zeros((n, 118), np.float32),
            "continuous_actions": np.zeros((n, 4), np.float32),
            "log_probs": np.zeros((n, 4), np.float32),
            "rewards": np.zeros(n, np.float32),
        },
        trajectories={
            "lengths": np.full(k, 32, np.int32),
            "terminated": np.zeros(k, np.bool_),
            "truncated": np.zeros(k, np.bool_),
            "next_obs_0": np.zeros((k, 118), np.float32),
            "credits": np.full(k, 32, np.int32),
        },
    )


async def local_us(queue: AnyQueue) -> float:
    began = time.perf_counter()
    for item in range(LOCAL_ITEMS):
        await queue.put(item)
        await queue.get()
    return (time.perf_counter() - began) / LOCAL_ITEMS * 1e6


def shared_ms() -> float:
    theirs, ours = make_link(LinkSpec(MAXLEN, 2 << 20))
    command = [sys.executable, str(Path(__file__)), "--put"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, **child_options_of([theirs])) as child:
        assert child.stdin is not None
        child.stdin.write(msgpack.packb(theirs.ticket(child.pid)))
        child.stdin.close()
        theirs.close()
        return asyncio.run(get_shared(ours))


async def get_shared(end: LinkEnd) -> float:
    receiver: SharedReceiver[TrajectoryBatch] = await SharedReceiver.open("Ball", [end])
    async with receiver:
        for _ in range(MAXLEN):
            await receiver.get()  # the child is up, its memory touched
        began = time.perf_counter()
        async for batch in receiver:
            batch.copy()
            del batch
        return (time.perf_counter() - began) / BATCHES * 1e3


async def put_shared(end: LinkEnd) -> None:
    sender: SharedSender[TrajectoryBatch] = await SharedSender.open("Ball", end)
    batch = batch_of_one_megabyte()
    async with sender:
        for _ in range(MAXLEN + BATCHES):
            await sender.put(batch)


def multiprocessing_ms() -> float:
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue(MAXLEN)
    child = context.Process(target=put_multiprocessing, args=(queue,))
    child.start()
    for _ in range(MAXLEN):
        queue.get()
    began = time.perf_counter()
    for _ in range(BATCHES):
        queue.get()
    took = time.perf_counter() - began
    child.join()
    return took / BATCHES * 1e3


def put_multiprocessing(queue: Any) -> None:
    batch = batch_of_one_megabyte()
    for _ in range(MAXLEN + BATCHES):
        queue.put(batch)


def tell(what: str, unit: str, ours: list[float], theirs: list[float], peer: str) -> None:
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(
        f"{what}: {statistics.median(ours):.3g} {unit} ({min(ours):.3g} to {max(ours):.3g}), "
        f"{peer} {statistics.median(theirs):.3g} {unit} ({min(theirs):.3g} to {max(theirs):.3g}): "
        f"{ratio:.1f} times as fast (median of {ROUNDS} pairs)"
    )


def main() -> None:
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, NumPy {np.__version__}")
    mine, peers = [], []
    for _ in range(ROUNDS):
        mine.append(asyncio.run(local_us(AgentManagerQueue("Ball", MAXLEN))))
        peers.append(asyncio.run(local_us(asyncio.Queue(MAXLEN))))
    tell("put and get in one loop", "µs", mine, peers, "asyncio.Queue")
    mine, peers = [], []
    for _ in range(ROUNDS):
        mine.append(shared_ms())
        peers.append(multiprocessing_ms())
    tell("1 MB batch between processes", "ms", mine, peers, "multiprocessing.Queue")


if __name__ == "__main__":
    if sys.argv[1:] == ["--put"]:
        asyncio.run(put_shared(LinkEnd.from_ticket(msgpack.unpackb(sys.stdin.buffer.read()))))
    else:
        main()
