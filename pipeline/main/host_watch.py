"""Listens to each host until its end or silence, and decides: another in its place, a failure, or nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.common.loop_watch import describe_holder
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control.messages import ControlMessage, HostFailed, HostFinished
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.guarded import GuardedTasks
from headrace.pipeline.main.launcher import ActorSlot, Launcher
from headrace.pipeline.main.lost_learners import LostLearners
from headrace.pipeline.main.run_part import RunPart, RunParts
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.shutdown import Shutdown
from headrace.pipeline.main.supervision import Role, Silence, Supervisor
from headrace.pipeline.reporting.timers import Timers
from headrace.pipeline.roles.stages import StageHost

log = logging.getLogger(__name__)

CAUSE_S = 5.0
"""Seconds in which the cause shows why a host has ended in order before the run did: as a rule another host's end."""


class HostWatch:
    """Listens to each host, and sees to its end.

    Args:
        tasks: in which hosts are listened to.
        running: the hosts.
        launcher: knows which of them are actors.
        supervisor: says which hosts may be started again.
        shutdown: ends the run.
        parts: see to the ends of hosts of their own.
        restart: starts an actor in the place of the dead one.
        lost_learners: starts a learner in the place of a lost one.
        on_message: called with each message of a host.
        on_end: called when a host has ended for good.
        timers: are told how long messages take.
    """

    def __init__(
        self,
        tasks: GuardedTasks,
        running: RunningHosts,
        launcher: Launcher,
        supervisor: Supervisor,
        shutdown: Shutdown,
        parts: RunParts,
        restart: Callable[[ActorSlot], Awaitable[None]],
        lost_learners: LostLearners,
        on_message: Callable[[HostHandle, ControlMessage], Awaitable[None]],
        on_end: Callable[[], None],
        timers: Timers,
    ) -> None:
        self._tasks = tasks
        self._running = running
        self._launcher = launcher
        self._supervisor = supervisor
        self._shutdown = shutdown
        self._parts = parts
        self._restart = restart
        self._lost_learners = lost_learners
        self._on_message = on_message
        self._on_end = on_end
        self._timers = timers
        self._reasons: dict[str, str] = {}
        """By name: why a host was ended that is not to blame itself."""

    async def listen(self, host: HostHandle) -> None:
        """Listen to a host until its end, and see to what its end means."""
        said_goodbye = False
        with self._tasks.failing():
            async for message in host.control.receive():
                if not self.may_replace(host):
                    host.settle()
                if isinstance(message, HostFinished | HostFailed):
                    said_goodbye = True
                    self._supervisor.ended(host.plan.name)  # its end is waited for otherwise
                # Listening goes on after a failure: this host's end has still to be seen.
                with self._tasks.failing(), self._timers.timer(type(message).__name__):
                    await self._on_message(host, message)
            status = await host.wait()
            if self._running.current(host) and await self._ended(host, status, said_goodbye):
                self._on_end()
            return
        if self._running.current(host):  # also if its replacement could not be started
            host.settle()
            self._running.mark_ended(host.plan.name)
            self._shutdown.host_ended(host.plan.name, "was not replaced", in_order=False)

    def may_replace(self, host: HostHandle) -> bool:
        """Return True if another host takes the place of this one when it dies, within the restart limits."""
        return host.plan.role == "actor" or (host.plan.role == "learner" and self._lost_learners.replaced)

    def failed(self, host: HostHandle, message: HostFailed) -> None:
        """A host says why it ends."""
        part = self._parts.of_role(host.plan.role)
        if part is not None:
            part.host_failed(message.message)
        else:
            self._shutdown.fail(message)

    def end(self, host: HostHandle, why: str) -> None:
        """End a host that is not to blame itself, so that another one may take its place."""
        self._reasons[host.plan.name] = why
        host.kill()

    async def _ended(self, host: HostHandle, status: int, said_goodbye: bool) -> bool:
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
        part = self._parts.of_role(host.plan.role)
        if part is not None:
            if await part.host_ended(host, status, how):
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


# What follows from silence: a warning with the stack, then the end of the host, or of main's stage, that is silent.


log = logging.getLogger(__name__)


class SilenceWatch:
    """Watches over the hosts and main's own stages.

    Who holds main's event loop is named elsewhere (`headrace.pipeline.common.loop_watch`), as nothing here runs then.

    Args:
        supervisor: knows who has been silent for too long.
        running: the hosts.
        tasks: the group that owns the tasks in which silent hosts are asked.
        stages: main's own stages.
        fail: ends the run.
        part_of: returns the part of the run that sees to hosts of a role; None if main does.
        may_replace: says of a host whether another one takes its place.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        running: RunningHosts,
        tasks: asyncio.TaskGroup,
        stages: StageHost,
        fail: Callable[[HostFailed], None],
        part_of: Callable[[str], RunPart | None],
        may_replace: Callable[[HostHandle], bool],
    ) -> None:
        self._supervisor = supervisor
        self._running = running
        self._tasks = tasks
        self._stages = stages
        self._fail = fail
        self._part_of = part_of
        self._may_replace = may_replace
        supervisor.started(MAIN, "main", time.monotonic())

    def started(self, host: HostHandle) -> None:
        """Watch over a host from now on."""
        role = host_role(host.plan.role)
        # What runs in main's event loop can't be ended alone when it holds that.
        limits: Role = role.limits if host.may_hang else "main"
        self._supervisor.started(host.plan.name, limits, time.monotonic(), role.patience)

    def look(self, now_s: float) -> None:
        """Look who is silent; to be called about once a second."""
        self._supervisor.alive(MAIN, now_s, self._stages.silent_s())
        for silence in self._supervisor.silent(now_s):
            host = self._running.get(silence.host)
            if host is None:
                self._judge_main(silence)
            else:
                self._tasks.create_task(self._judge(host, silence))

    async def _judge(self, host: HostHandle, silence: Silence) -> None:
        words = f"{_words(silence)}: {await host.describe()}"
        if not self._running.current(host) or self._running.has_ended(silence.host):
            return
        if not silence.ends:
            log.warning("%s", words)
            return
        if (part := self._part_of(host.plan.role)) is not None:
            part.host_failed(words)
        elif host.may_hang and self._may_replace(host):
            log.warning("%s\nKilling it.", words)
        else:
            self._fail(HostFailed(f"{words}\nIt was ended.", "", silence.host))
        host.kill()

    def _judge_main(self, silence: Silence) -> None:
        activity = self._stages.most_silent()
        words = f"{_words(silence)}: {describe_holder(None, threading.get_ident())}"
        if not silence.ends:
            log.warning("%s", words)
        elif activity is not None and activity.task is not None:
            self._fail(HostFailed(f"{words}\nIt was ended.", "", activity.stage))
            activity.task.cancel()


def _words(silence: Silence) -> str:
    return f"{silence.host} has been silent for {silence.seconds:.0f} s ({silence.key})"
