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
from headrace.stages.environments.programs.group import ProgramGroup
from headrace.stages.environments.unity.making import UnityInstance
from headrace.stages.environments.unity.messages import UnityOutputProto
from headrace.stages.environments.unity.side_channels.standard import SideChannelBridge
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


class FakeUnity:
    """A worker that answers from a script, message by message; where it holds an exception, that is raised.

    Args:
        script: the answers to `reset` and `step`, in their order.
        at_start: what happens at `start`, None for nothing.
    """

    def __init__(self, script: Iterable[Any], at_start: Exception | None = None) -> None:
        self.orders: list[Any] = []
        """For each order, the actions of `step`, or 'reset'."""
        self.sent: list[bytes] = []
        """For each order, what left with it over the side channels."""
        self.closed = 0
        self.channels: Any = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._script = iter(script)
        self._at_start = at_start

    async def start(self) -> None:
        if self._at_start is not None:
            raise self._at_start

    async def reset(self) -> Any:
        return await self._answer("reset")

    async def step(self, actions: Any) -> Any:
        assert not self.closed, "step after close"
        return await self._answer(actions)

    async def close(self, patience_s: float | None = None) -> None:
        self.closed += 1

    async def _answer(self, order: Any) -> Any:
        self.orders.append(order)
        self.sent.append(self.channels.outgoing())
        await self.may_answer.wait()
        answer = next(self._script)
        if isinstance(answer, Exception):
            raise answer
        self.channels.incoming(answer.rl_output.side_channel)
        return answer


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
        self.group = ProgramGroup(
            self._make, len(scripts), lambda: RestartBudget(lifetime, -1, 60.0), clock=lambda: self.now_s, **group
        )

    def _make(self, index: int, parameters: Any) -> UnityInstance:
        return UnityInstance(index, lambda: self._connect(index, parameters))

    def _connect(self, index: int, parameters: Any) -> tuple[FakeUnity, SideChannelBridge]:
        unity = self._waiting[index].pop(0)
        bridge = SideChannelBridge(self._engine, parameters, index, seed=7)
        unity.channels = bridge.channels
        self.unities[index].append(unity)
        return unity, bridge

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
