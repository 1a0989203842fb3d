"""What follows from silence: a warning with the stack, then the end of the host, or of main's stage, that is silent."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.common.loop_watch import describe_holder
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control.messages import HostFailed
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.run_part import RunPart
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.supervision import Role, Silence, Supervisor
from headrace.pipeline.roles.stages import StageHost

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
        if host.may_hang and self._may_replace(host):
            log.warning("%s\nKilling it.", words)
        elif (part := self._part_of(host.plan.role)) is not None:
            part.host_failed(words)
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
