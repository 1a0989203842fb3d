"""A host that does what a test orders, whatever kind of host it is; `hosts_of_a_kind.py` is the test's side.

Orders are `OpenEdge` messages named `order`, whose address is the order; each is answered by a `LogLine` of the logger
`ANSWERS` with its number and what came of it, as JSON. All other messages are as for any host.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
from typing import Any

from queue_conformance import assert_equal_batches, number_of, numbered

from headrace.pipeline.control import CreditsReturned, LogLine, OpenEdge
from headrace.pipeline.roles.runtime import Host
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Barrier, Message, TrajectoryBatch
from headrace.stages.activity import preparing

ANSWERS = "scripted host"
CLOSED = "closed"


class ScriptedHost(Host):
    """The host; it ends when it is told to, and before that only if it is told to fail."""

    def __init__(self, *all_hosts: Any) -> None:
        super().__init__(*all_hosts)
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues: dict[str, Any] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def _work(self) -> None:
        await self._end

    async def _listen(self) -> None:
        try:
            async for message in self.control.receive():
                if not isinstance(message, OpenEdge):
                    self._answer(-1, type(message).__name__)
                elif message.name == "order":
                    self._obey(**message.address)
                elif message.name.startswith("out") or (message.name == "feed" and self.plan.role == "actor"):
                    self._queues[message.name] = await self.open_sender(message)
                else:
                    self._queues[message.name] = await self.open_receiver(message)
        finally:
            for task in self._tasks.values():
                task.cancel()
            for queue in self._queues.values():  # as stages do that end
                queue.close()

    def _obey(self, number: int, what: str, queue: str = "", value: Any = None) -> None:
        if what == "close":
            self._queues[queue].close()
            self._answer(number, "done")
        elif what == "cancel":
            self._tasks[value].cancel()
        else:
            work = self._queue_work(what, self._queues[queue], value) if queue else self._misbehave(what, value)
            task = self._tasks[number] = asyncio.create_task(self._do(number, work))
            task.add_done_callback(lambda task: self._answer(number, "cancelled") if task.cancelled() else None)

    async def _do(self, number: int, work: Any) -> None:
        try:
            self._answer(number, await work)
        except QueueClosed:
            self._answer(number, CLOSED)
        except Exception as error:
            if not self._end.done():
                self._end.set_exception(error)

    async def _queue_work(self, what: str, queue: Any, value: Any) -> Any:
        if what == "put":
            await queue.put(item_of(*value))
            return "done"
        if what == "put and hang":
            queue.put_nowait(item_of(*value))
            hang_in_a_loop()
        return words_of(await queue.get())

    async def _misbehave(self, what: str, value: Any) -> Any:
        match what:
            case "pid":
                return os.getpid()
            case "start a program":
                return subprocess.Popen(["sleep", "600"], start_new_session=True).pid  # noqa: ASYNC220
            case "tell":
                self.control.send(CreditsReturned("scripted", "Ball", 0, value))
            case "log":
                logging.getLogger("mine").warning(value)
            case "end":
                self._end.set_result(None)
            case "raise":
                raise RuntimeError("the motor is on fire")
            case "raise SystemExit":
                self._end.set_exception(SystemExit(0))
            case "os._exit":
                os._exit(value)
            case "kill -9":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                hang_in_a_loop()
            case "hang while it prepares itself":
                with preparing():
                    hang_in_a_loop()
            case "prepare itself":
                with preparing():
                    pass
        return "done"

    def _answer(self, number: int, value: Any) -> None:
        self.control.send(LogLine(logging.INFO, ANSWERS, json.dumps([number, value])))


def item_of(kind: str, number: int, source: int) -> Message:
    """The item that an order or an answer means."""
    return Barrier(number, source) if kind == "barrier" else numbered(number)


def words_of(item: Message) -> tuple[str, int, int]:
    """What to write of an item into an order or an answer."""
    if isinstance(item, Barrier):
        return "barrier", item.number, item.source
    assert isinstance(item, TrajectoryBatch)
    assert_equal_batches(item, numbered(number_of(item)))
    return "batch", item.source, item.source


def hang_in_a_loop() -> None:
    """Compute for ever."""
    while True:
        pass
