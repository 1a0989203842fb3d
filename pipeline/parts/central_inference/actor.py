"""The actor's side of central inference: sends requests for decisions and waits for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.pipeline.policies.inference import acting_design, make_inference_policy
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.queues.ends import Inlet, ItemSource, Outlet
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import DecisionAnswer, DecisionRequest, PolicyAnswer, PolicyQuestion
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.remote_policy import NoDecisionError, RemotePolicies
from headrace.stages.policy.design import policy_layout
from headrace.stages.policy.state_noise import noise_size

_NUMBERS_OF_ONE = 2**40
"""Number of request numbers reserved for each incarnation, so that an answer to a dead incarnation matches no later
request.
"""


class CentralActor(ActorPart):
    """Lets the inference host decide for this actor."""

    outlets, inlets = ("requests",), ("answers",)

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self.oracle = self._decisions = CentralDecisions(host.plan.source)
        self.make_policy = _remote_policies(host.config, host.plan.folder)

    def open_outlet(self, outlet: Outlet[Any]) -> None:
        """Send requests through this queue."""
        self._decisions.open(outlet)

    def follow(self, inlet: Inlet[Any]) -> Coroutine[Any, Any, None]:
        """Receive answers from this queue."""
        return self._decisions.follow(inlet)


class CentralDecisions:
    """Sends one request at a time; see `headrace.stages.environments.remote_policy.DecisionClient`.

    Args:
        source: the actor's source id, which is different for each incarnation.
    """

    def __init__(self, source: int) -> None:
        self._number = source * _NUMBERS_OF_ONE
        self._outlet: Outlet[DecisionRequest] | None = None
        self._waiting: asyncio.Future[tuple[PolicyAnswer, ...]] | None = None
        self._lost = False

    def open(self, outlet: Outlet[Any]) -> None:
        """Send requests through this queue, which main opens before the first policy arrives."""
        self._outlet = outlet

    async def follow(self, inlet: ItemSource[DecisionAnswer]) -> None:
        """Receive answers until their queue ends; no more answers come after that."""
        async for answer in inlet:
            if answer.number == self._number and self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(answer.answers)
            del answer
        self._lost = True
        self.give_up()

    async def ask(self, questions: tuple[PolicyQuestion, ...]) -> tuple[PolicyAnswer, ...]:
        """Request decisions; see `DecisionClient`."""
        if self._lost or self._outlet is None:
            raise NoDecisionError
        self._number += 1
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._outlet.put(DecisionRequest(self._number, questions))
            return await self._waiting
        except QueueClosed:
            self._lost = True
            raise NoDecisionError from None
        finally:
            self._waiting = None

    def give_up(self) -> None:
        """Abandon the pending request; see `DecisionClient`."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoDecisionError())


def _remote_policies(config: RunConfig, run_folder: Path) -> RemotePolicies:
    """Return the factory for an actor's policies, whose decisions the inference host makes."""

    def sizes(spec: BehaviorSpec) -> tuple[int, int]:
        if config.checkpoint_settings.inference:  # an exported model may have other sizes
            model = make_inference_policy(config, run_folder, spec)
            return model.memory_size, model.previous_action_size
        design = acting_design(config, spec)
        kept = 0 if design.gsde is None else noise_size(design, policy_layout(design))
        return design.memory_size + kept, design.previous_action_size

    return RemotePolicies(sizes)
