"""A Unity that says what its test wrote, when its test lets it, and keeps what it was told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from unity_samples import agent, brain, numbers

from headrace.config import EngineSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.group import GameGroup
from headrace.stages.environments.engines.transport import ConnectionClosed, Transport
from headrace.stages.environments.engines.unity.game import UnityGame
from headrace.stages.environments.engines.unity.messages import OK, RESET, UnityMessageProto, UnityOutputProto
from headrace.stages.environments.engines.unity.side_channels import SideChannelBridge
from headrace.stages.restarts import RestartBudget

WALKER = "Walker?team=0"


def says(*agents: Any, behavior: str = WALKER, announce: Any = None, side_channel: bytes = b"") -> Any:
    """A message about agents of a behaviour."""
    output = UnityOutputProto()
    output.rl_output.agentInfos[behavior].value.extend(agents)
    output.rl_output.side_channel = side_channel
    if announce is not None:
        output.rl_initialization_output.brain_parameters.append(announce)
    return output


def first(*agents: Any, behavior: str = WALKER, continuous: int = 1, branches: Sequence[int] = (), **more: Any) -> Any:
    """As `says`, with the behaviour announced."""
    return says(*agents, behavior=behavior, announce=brain(behavior, continuous=continuous, branches=branches), **more)


def asks(agent_id: int, seen: float = 0.0, **more: Any) -> Any:
    """An agent that sees a number and asks for a decision."""
    return agent(agent_id, numbers([seen]), **more)


def ends(agent_id: int, seen: float = 0.0, **more: Any) -> Any:
    """An agent whose episode has ended."""
    return agent(agent_id, numbers([seen]), done=True, **more)


class FakeUnity(Transport):
    """A connection that answers from a script, message by message; where it holds an exception, that is raised.

    Args:
        script: the answers to requests, in their order.
        at_start: what happens at the start, None for nothing.
    """

    refused = ""
    unasked = False

    def __init__(self, script: Iterable[Any], at_start: Exception | None = None) -> None:
        super().__init__(0, 2**20)
        self.orders: list[Any] = []
        """For each order, the actions, or 'reset'."""
        self.sent: list[bytes] = []
        """For each order, what left with it over the side channels."""
        self.closed = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._script = iter(script)
        self._at_start = at_start
        self._gone = False

    async def start(self, name: str, cure: str) -> None:
        if self._at_start is not None:
            raise self._at_start
        self._connected.set()

    def send(self, content: bytes) -> None:
        assert not self.closed, "an order after close"
        order = UnityMessageProto.FromString(content).unity_input.rl_input
        self.orders.append("reset" if order.command == RESET else dict(order.agent_actions))
        self.sent.append(order.side_channel)

    async def receive(self) -> bytes:
        if self._gone:
            raise ConnectionClosed
        self._gone = True  # where the wait for an answer is given up, none comes any more
        await self.may_answer.wait()
        answer = next(self._script)
        if isinstance(answer, Exception):
            raise answer
        self._gone = False
        return bytes(UnityMessageProto(header={"status": OK}, unity_output=answer).SerializeToString())

    def interrupt(self, error: Exception) -> None:
        self._gone = True

    def send_farewell(self, content: bytes) -> None:
        pass

    async def close(self) -> None:
        self.closed = 1


class ScriptedGame(UnityGame):
    """A Unity whose connections are made by a function, at each start."""

    def __init__(
        self, index: int, connect: Callable[[], Any], make_channels: Callable[[], SideChannelBridge], **more: Any
    ) -> None:
        super().__init__(GameSettings(index, 0, 7, 60.0), None, 1, make_channels, **more)
        self._connect = connect

    def _make_transport(self) -> Transport:
        self._channels = self._make_channels()
        self._grpc = self._connect()
        return self._grpc

    async def _announce(self) -> None:
        pass


def walking(*agent_ids: int) -> Iterable[Any]:
    """Agents that ask for a decision at every step, for ever, and see how many steps there were."""
    yield first(*(asks(i) for i in agent_ids))
    for step in itertools.count(1):
        yield says(*(asks(i, step, reward=1.0) for i in agent_ids))


class World:
    """A group of fake Unity programs.

    Args:
        scripts: of each instance the script, or the Unity of each connection, one after the other.
        lifetime: restarts allowed in all, of each.
        group: further arguments of the group.
    """

    def __init__(self, *scripts: Any, lifetime: int = 1, engine: EngineSettings | None = None, **group: Any) -> None:
        self.unities: list[list[FakeUnity]] = [[] for _ in scripts]
        """Of each instance, its connections, the last one last."""
        self.now_s = 0.0
        self.result: Any = None
        self._engine = engine or EngineSettings()
        self._waiting = [_connections(each) for each in scripts]
        self.group = GameGroup(
            self._make, len(scripts), lambda: RestartBudget(lifetime, -1, 60.0), clock=lambda: self.now_s, **group
        )

    def _make(self, index: int, parameters: Any) -> UnityGame:
        return ScriptedGame(
            index, lambda: self._connect(index), lambda: SideChannelBridge(self._engine, parameters, index, seed=7)
        )

    def _connect(self, index: int) -> FakeUnity:
        unity = self._waiting[index].pop(0)
        self.unities[index].append(unity)
        return unity

    async def step(self, act: Callable[[Any], Any] | None = None) -> Any:
        """Step the group; each agent's action is what it sees, unless `act` says otherwise."""
        self.result = await self.group.step({i: (act or echo)(steps) for i, steps in self.result.steps.items()})
        return self.result

    async def reset(self) -> Any:
        self.result = await self.group.reset(1)
        return self.result


def _connections(given: Any) -> list[FakeUnity]:
    if isinstance(given, FakeUnity):
        return [given]
    if isinstance(given, list) and isinstance(given[0], FakeUnity):
        return [*given]
    return [FakeUnity(given)]


def echo(steps: Any) -> ActionBatch:
    """Actions that repeat what the agents see."""
    seen = steps.observations[0][steps.ended :]
    return ActionBatch(seen.astype(np.float32), np.zeros((len(seen), 0), np.int32))
