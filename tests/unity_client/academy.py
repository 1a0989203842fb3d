"""The stand-in's main loop: obey an order, run the scene until an agent has something to say, say it."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any, Protocol

from unity_client import channels as side
from unity_client.channels import Channels
from unity_client.connection import Connection
from unity_client.faults import Closed, Violation
from unity_client.misbehavior import Misbehavior
from unity_client.orders import actions_of, check_echo
from unity_client.report import Report
from unity_client.says import Act, Behavior, Say, brain_of, info_of

from headrace.stages.environments.engines.unity.messages import QUIT, RESET, UnityOutputProto


class Scene(Protocol):
    """A little world with agents."""

    behaviors: dict[str, Behavior]

    def reset(self) -> None:
        """All agents begin anew; nobody is told."""

    def act(self, behavior: str, agent: int, act: Act) -> None:
        """Tell an agent that asked for it what to do."""

    def advance(self) -> list[Say]:
        """Go on until some agent has ended or asks for a decision."""


class Academy:
    """Runs a scene at its trainer's orders."""

    def __init__(
        self,
        scene: Scene,
        connection: Connection,
        channels: Channels,
        report: Report,
        trouble: Misbehavior,
        options: argparse.Namespace,
    ) -> None:
        self._scene = scene
        self._connection = connection
        self._channels = channels
        self._report = report
        self._trouble = trouble
        self._options = options
        self._asked: dict[str, list[Say]] = {}
        self._introduced: list[str] = []
        self._returns: dict[tuple[str, int], list[float]] = defaultdict(list)

    def run(self) -> None:
        """Until the trainer ends it.

        Raises:
            Closed: in good order.
            Violation: if the trainer breaks the protocol.
        """
        self._trouble.after_greeting()
        order = self._connection.exchange()
        if order.rl_input.command != RESET:
            raise Violation("the first order has to be RESET")
        while True:
            begun = time.perf_counter()
            self._obey(order)
            self._trouble.on_first_order(self._connection)
            self._trouble.in_step(self._channels)
            says = self._scene.advance()
            self._note(says)
            output = self._message(says)
            time.sleep(max(0.0, self._options.step_ms / 1000 - (time.perf_counter() - begun)))
            order = self._trouble.send(self._connection, output)

    def _obey(self, order: Any) -> None:
        if not order.HasField("rl_input"):
            raise Violation("an order has to be an rl_input")
        self._channels.receive(order.rl_input.side_channel)
        if order.rl_input.command == QUIT:
            raise Closed("the trainer ordered to quit")
        if order.rl_input.command == RESET:
            self._report.resets += 1
            self._returns.clear()
            self._scene.reset()
            return
        for behavior, acts in actions_of(order.rl_input, self._asked, self._scene.behaviors).items():
            for say, act in zip(self._asked[behavior], acts, strict=True):
                if self._options.echo:
                    check_echo(say, act)
                self._scene.act(behavior, say.agent, act)
            self._report.agent_steps += len(acts)

    def _note(self, says: list[Say]) -> None:
        self._asked = {}
        for say in says:
            rewards = self._returns[say.behavior, say.agent]
            rewards.append(say.reward + say.group_reward)
            if say.done:
                self._finish(say, rewards)
            else:
                self._asked.setdefault(say.behavior, []).append(say)
        self._report.messages += 1
        self._report.endings_only += not self._asked

    def _finish(self, say: Say, rewards: list[float]) -> None:
        del self._returns[say.behavior, say.agent]
        episodes = self._report.episodes[say.behavior]
        episodes.append(sum(rewards))
        self._report.ends[say.behavior].append((self._report.agent_steps, time.time()))
        if self._options.stats:
            self._channels.tell_statistic("Client/Average", sum(rewards), side.AVERAGE)
            self._channels.tell_statistic("Client/MostRecent", len(episodes), side.MOST_RECENT)
            self._channels.tell_statistic("Client/Sum", 1.0, side.SUM)
            self._channels.tell_statistic("Client/Histogram", len(rewards), side.HISTOGRAM)

    def _message(self, says: list[Say]) -> Any:
        output = UnityOutputProto()
        infos = output.rl_output.agentInfos
        for name in self._introduced:
            infos[name].SetInParent()  # known behaviours are named even where there is nothing to say
        for say in says:
            behavior = self._scene.behaviors[say.behavior]
            if say.behavior not in self._introduced:
                self._introduced.append(say.behavior)
                output.rl_initialization_output.brain_parameters.append(brain_of(behavior))
            infos[say.behavior].value.append(info_of(say, behavior))
        output.rl_output.side_channel = self._channels.outgoing()
        return output
