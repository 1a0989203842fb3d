"""What follows from a host's end: a new one in the place of the dead one, a failure of the run, or nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from headrace.pipeline.control.messages import FollowerLost, HostFailed
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.evaluation import Evaluation
from headrace.pipeline.main.launcher import ActorSlot, Launcher
from headrace.pipeline.main.lost_learners import LostLearners
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.shutdown import Shutdown
from headrace.pipeline.main.supervision import Supervisor

log = logging.getLogger(__name__)

CAUSE_S = 5.0
"""Seconds in which the cause shows why a host has ended in order before the run did: as a rule another host's end."""


class HostEnds:
    """Sees to the end of each host.

    Args:
        running: the hosts.
        launcher: knows which of them are actors.
        supervisor: says which hosts may be started again.
        shutdown: ends the run.
        evaluation: plays beside training, and sees to its own end.
        restart: starts an actor in the place of the dead one.
        lost_learners: starts a learner in the place of a lost one.
    """

    def __init__(
        self,
        running: RunningHosts,
        launcher: Launcher,
        supervisor: Supervisor,
        shutdown: Shutdown,
        evaluation: Evaluation,
        restart: Callable[[ActorSlot], Awaitable[None]],
        lost_learners: LostLearners,
    ) -> None:
        self._running = running
        self._launcher = launcher
        self._supervisor = supervisor
        self._shutdown = shutdown
        self._evaluation = evaluation
        self._restart = restart
        self._lost_learners = lost_learners
        self._reasons: dict[str, str] = {}
        """By name: why a host was ended that is not to blame itself."""

    def may_replace(self, host: HostHandle) -> bool:
        """Return True if another host takes the place of this one when it dies, within the restart limits."""
        return host.plan.role == "actor" or (host.plan.role == "learner" and self._lost_learners.replaced)

    def told(self, host: HostHandle, message: HostFailed | FollowerLost) -> None:
        """A host says why it ends, or why it is to be ended."""
        if isinstance(message, FollowerLost):
            self._reasons[host.plan.name] = f"was ended, because {message.how}"
            host.kill()  # without having said that it has failed, so another one may take its place
        elif host.plan.role == "evaluation":
            self._evaluation.fail(message.message)
        else:
            self._shutdown.fail(message)

    async def see(self, host: HostHandle, status: int, said_goodbye: bool) -> bool:
        """See to the end of a host; True if there is none in its place.

        Args:
            host: the host.
            status: its exit status, negative for a signal.
            said_goodbye: whether its last message told of its end.
        """
        self._supervisor.ended(host.plan.name)
        name = host.plan.name
        how = self._reasons.pop(name, "") or _how_it_ended(status)
        if not said_goodbye and (sharers := self._running.sharers(host)):
            how += f", and with it {', '.join(sharers)}"
        if host.plan.role == "evaluation":
            if await self._evaluation.ended(host, status, how, training=not self._shutdown.begun):
                return False
        elif not self._shutdown.begun:
            if said_goodbye:
                if self._running.unended == {name}:
                    self._blame(name)
                else:
                    asyncio.get_running_loop().call_later(CAUSE_S, self._blame, name)
            elif await self._replace(host, how):
                return False
        host.settle()  # an actor's ends were kept for a replacement: who takes from it would wait for ever
        self._running.mark_ended(name)
        if self._shutdown.begun:
            in_order = said_goodbye or (status == 0 and self._running.was_dismissed(name))
            self._shutdown.host_ended(name, how, in_order)
        return True

    async def _replace(self, host: HostHandle, how: str) -> bool:
        """A host has died. Start an actor or a learner again, if it may be; any other host's death ends the run."""
        name = host.plan.name
        slot = self._launcher.slot_of(host)
        if not self.may_replace(host):  # also a replay: a recording begun anew would be learned from twice
            self._shutdown.fail(HostFailed(f"the process of {name} {how}.", "", name))
            return False
        refusal = self._supervisor.refusal(name, time.monotonic())
        if refusal is not None:
            text = f"the process of {name} {how}. It is not restarted again: {refusal}."
            self._shutdown.fail(HostFailed(text, "", name))
            return False
        lost = "its half-made trajectories are lost" if slot is not None else "the actors wait for it"
        log.warning("The process of %s %s. Starting it again; %s.", name, how, lost)
        if slot is not None:
            await self._restart(slot)
        else:
            await self._lost_learners.replace(host)
            if self._shutdown.begun:  # all others were told before this one was there
                self._shutdown.learner_started()
        return True

    def _blame(self, name: str) -> None:
        """Fail the run for a host that has ended in order, unless the cause has shown by now."""
        if not self._shutdown.begun:
            text = f"{name} ended in the middle of the run: nobody took any more what it produced."
            self._shutdown.fail(HostFailed(text, "", name))


def _how_it_ended(status: int) -> str:
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return how if status else f"{how} without having been told to"
