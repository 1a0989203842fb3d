"""Hosts of one kind, from the table of kinds, as main sees them: for what each kind must do."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_host import ANSWERS, CLOSED, item_of, words_of

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.control import ControlMessage, LogLine, OpenEdge
from headrace.pipeline.hosts.protocol import Feed, HostFactory, HostHandle, HostPlan
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Message
from headrace.stages.loading import load_attribute

MAXLEN = 2
"""Bound of the queues in which items wait in line."""
PATIENCE_S = 25.0
"""For what takes a second; a slow machine is no failure."""
GONE = "gone"
QUEUES = 16
"""Of each sort that a host can have; process hosts are started with these."""


def configuration(kind: str) -> RunConfig:
    """A run of hosts of this kind; the rest of it is of no concern to hosts that do what they are told."""
    asked = {"resources": {"cpus": 0}} if HOST_KINDS[kind].on_ray else {}
    return RunConfig.from_plain(
        {
            "behaviors": {f"Ball{i}": {"trainer_type": "sac"} for i in range(QUEUES)},
            "environment": {"kind": "gymnasium", "id": "CartPole-v1", "behavior": "Ball0"},
            "pipeline": {
                "hosts": {
                    "actors": {"kind": kind, **asked},
                    "learners": {"kind": kind, **asked},
                    "replay": {"kind": "process", "replicas": QUEUES},  # as many queues has a learner
                },
                "queues": {"trajectories": {"maxlen": MAXLEN}, "slab_bytes": 2**16},
            },
        }
    )


class Peer:
    """A scripted host."""

    def __init__(self, handle: HostHandle, tasks: asyncio.TaskGroup) -> None:
        self.handle = handle
        self.heard: list[ControlMessage] = []
        """What it has sent so far, without answers to orders."""
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._news = asyncio.Event()
        self.listening = tasks.create_task(self._listen())

    def order(self, what: str, queue: str = "", value: Any = None) -> asyncio.Future[Any]:
        """Have it do something; the future answer, `GONE` if the host ends before."""
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        answer.number = number  # type: ignore[attr-defined]
        order = {"number": number, "what": what, "queue": queue, "value": value}
        self.handle.control.send(OpenEdge("order", order))
        return answer

    async def until(self, kind: type[Any], **values: Any) -> Any:
        """Wait for its first message of this kind with these values."""
        while True:
            self._news.clear()
            for message in self.heard:
                if isinstance(message, kind) and all(getattr(message, name) == values[name] for name in values):
                    return message
            assert not self.listening.done(), f"no {kind.__name__} came: {self.heard}"
            await self._news.wait()

    async def end(self) -> int:
        """Wait for its end; its exit status. Everything that it has said was heard then."""
        status = await self.handle.wait()
        await self.listening
        return status

    async def _listen(self) -> None:
        async for message in self.handle.control.receive():
            if isinstance(message, LogLine) and message.logger == ANSWERS:
                number, value = json.loads(message.text)
                if number in self._answers and not self._answers[number].done():
                    self._answers[number].set_result(value)
            else:
                self.heard.append(message)
                self._news.set()
        self._news.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(GONE)


class FarSender:
    """The producing end of a queue, in a scripted host."""

    def __init__(self, peer: Peer, name: str) -> None:
        self._peer, self.name = peer, name

    async def put(self, item: Message) -> None:
        await _done(self._peer, self._peer.order("put", self.name, words_of(item)))

    def close(self) -> None:
        self._peer.order("close", self.name)


class FarReceiver:
    """The consuming end of a queue, in a scripted host."""

    def __init__(self, peer: Peer, name: str) -> None:
        self._peer, self.name = peer, name

    async def get(self) -> Message:
        return item_of(*await _done(self._peer, self._peer.order("get", self.name)))

    def close(self) -> None:
        self._peer.order("close", self.name)

    def __aiter__(self) -> FarReceiver:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.get()
        except QueueClosed:
            raise StopAsyncIteration from None


async def _done(peer: Peer, answer: asyncio.Future[Any]) -> Any:
    try:
        value = await asyncio.shield(answer)
    except asyncio.CancelledError:
        peer.order("cancel", value=answer.number)  # type: ignore[attr-defined]
        await answer
        raise
    assert value != GONE, f"the host has ended: {peer.heard}"
    if value == CLOSED:
        raise QueueClosed(peer.handle.plan.name)
    return value


class Hosts:
    """Starts scripted hosts of one kind."""

    def __init__(self, kind: str, folder: Path, tasks: asyncio.TaskGroup) -> None:
        config = configuration(kind)
        self.factory: HostFactory = load_attribute(HOST_KINDS[kind].implementation, None, "host kind")(config, tasks)
        self.started: list[Peer] = []
        self._ends: list[Any] = []
        self._tasks = tasks
        self._plan = HostPlan("actor", "", config.to_plain(), None, str(folder), 0)

    async def start(
        self,
        name: str,
        role: str = "actor",
        feed: Feed | None = None,
        replaces: Any = None,
        host_class: str = "scripted_host:ScriptedHost",
    ) -> Peer:
        """Start one; its role says which queues it can have."""
        plan = replace(self._plan, role=role, name=name, host_class=host_class)
        peer = Peer(await self.factory.start(plan, feed, replaces), self._tasks)
        self.started.append(peer)
        return peer

    @asynccontextmanager
    async def closing(self, *ends: Any) -> AsyncIterator[None]:
        """Close ends of queues after the block."""
        self._ends += ends
        try:
            yield
        finally:
            for end in ends:
                end.close()

    async def close(self) -> None:
        """End them all."""
        for peer in self.started:
            peer.handle.kill()
        for peer in self.started:
            await peer.handle.wait()
            peer.handle.rule_out_successor()
            peer.handle.close()
        for peer in self.started:
            await peer.listening
        for end in self._ends:
            if hasattr(end, "wait_closed"):
                await end.wait_closed()
        self.factory.close()


def without_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let learners in processes find a module in place of torch: scripted hosts need none, and it takes two seconds."""
    import torch  # noqa: F401 - this process has the real one

    (folder / "modules").mkdir()
    (folder / "modules" / "torch.py").write_text("def set_num_threads(number): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder / "modules")


@asynccontextmanager
async def hosts_of(kind: str, folder: Path) -> AsyncIterator[Hosts]:
    """Hosts of a kind, which end with the block."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        hosts = Hosts(kind, folder, tasks)
        try:
            yield hosts
        finally:
            await hosts.close()
