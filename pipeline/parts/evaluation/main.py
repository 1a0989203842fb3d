"""Evaluation in main: feeds each new policy to the evaluation host; training continues if the host fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headrace.pipeline.control.messages import PolicyEvaluated, Stop
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.parts.evaluation.best_scores import environment_checksum, standing_score
from headrace.pipeline.policies.export import best_policy
from headrace.queues.ends import Outlet
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import PolicyUpdate
from headrace.stages.errors import describe_error

log = logging.getLogger(__name__)

NAME = "evaluation"


# One host serves all behaviours, because environments are expensive; the run continues without it (docs/decisions/048).
class Evaluation(RunPart):
    """A run's evaluation: starts its host with the first behaviour, feeds it policies, and restarts it if it dies."""

    receives = (PolicyEvaluated,)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._environment = environment_checksum(run.plan.config)
        self._host: HostHandle | None = None
        self._outlets: dict[str, Outlet[Any]] = {}
        self._newest: dict[str, PolicyUpdate] = {}
        self._done: set[str] = set()
        """Behaviours whose trainers will send no more policies."""
        self._joining = asyncio.Lock()
        self._ended = self._at_once = False
        self._failure = ""
        self._lost = ""
        """Reason why evaluation has ended early; empty if it has not."""

    def results(self, behavior: str) -> Mapping[str, Any]:
        """Return a behaviour's best score."""
        plan, best = self.run.plan, None
        with suppress(OSError, ValueError):  # no policy was evaluated, or none could be written
            policy = best_policy(plan.folder.path, behavior)
            _, best, _ = standing_score(policy, plan.config, self._environment)
        return {"best_evaluation": best}

    async def learns(self, behavior: str, slot: ActorSlot | None) -> None:
        """Start evaluating a behaviour; do nothing if this has already started."""
        async with self._joining:
            if self._ended or self._lost or behavior in self._outlets:
                return
            try:
                if self._host is None:
                    self._host = await self._start()
                await self._open(behavior, self._host)
            except Exception as error:
                self._give_up(describe_error(error))

    def policy_came(self, behavior: str, policy: PolicyUpdate | None) -> None:
        """Send the host a trainer's new policy, which replaces one that is still waiting; None closes the queue."""
        if self._lost:
            return
        outlet = self._outlets.get(behavior)
        if policy is None:
            self._done.add(behavior)
            if outlet is not None:
                outlet.close()
            return
        kept = self._newest[behavior] = policy.copy()
        if outlet is not None:
            with suppress(QueueClosed):  # the host has ended
                outlet.put_nowait(kept)

    def receive(self, host: HostHandle, message: PolicyEvaluated) -> None:
        """Record a score from the host."""
        self.run.shutdown.moved()
        self.run.reporter.record_evaluation(message)

    def host_failed(self, why: str) -> None:
        """Store the reason why the host is about to end."""
        self._failure = why

    async def host_ended(self, host: HostHandle, status: int, how: str) -> bool:
        """Restart the host if it ended during training, within the restart limits; return True if it is restarted."""
        reason, self._failure = self._failure or f"its process {how}", ""
        if self.run.shutdown.begun:
            self._lost = self._lost or (reason if status and not self._at_once else "")
            return False
        refusal = self.run.supervisor.refusal(NAME, time.monotonic())
        if refusal is not None:
            self._give_up(f"{reason}\nIt is not restarted: {refusal}.")
            return False
        log.warning("Evaluation has failed: %s\nRestarting it; training continues.", reason)
        async with self._joining:
            try:
                self._host = await self._start(replaces=host)
                for behavior in [*self._outlets]:
                    self._outlets.pop(behavior).close()
                    await self._open(behavior, self._host)
            except Exception as error:
                self._give_up(describe_error(error))
                return False
        return True

    def fewer_hosts(self, at_once: bool) -> None:
        """End the host once no trainer is left.

        Unless `at_once` is True, the host still plays the last policies first.
        """
        if not self.run.shutdown.learners_ended:
            return
        self._ended, self._at_once = True, at_once
        if self._host is not None and (at_once or not self._outlets):
            self._host.control.send(Stop())

    def close(self) -> None:
        """Warn if any policies were not evaluated."""
        if self._lost:
            log.warning("Not all policies were evaluated: evaluation had failed (%s).", self._lost.partition("\n")[0])

    async def _start(self, replaces: HostHandle | None = None) -> HostHandle:
        return await self.run.launcher.start(NAME, NAME, replaces=replaces, environment_checksum=self._environment)

    async def _open(self, behavior: str, host: HostHandle) -> None:
        outlet = self._outlets[behavior] = await host.outlet(f"policies/{behavior}", newest=True)
        if behavior in self._newest:
            outlet.put_nowait(self._newest[behavior])
        if behavior in self._done:
            outlet.close()

    def _give_up(self, reason: str) -> None:
        self._lost = reason
        self._newest.clear()
        log.error("Evaluation has failed: %s\nTraining continues without it.", reason)
        for outlet in self._outlets.values():
            outlet.close()
