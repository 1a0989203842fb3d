"""The actors of a run: started one after the other, and again in the place of dead ones."""

from __future__ import annotations

from headrace.pipeline.control.messages import Stop
from headrace.pipeline.flow.control import FlowControl
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.controls import RunControls
from headrace.pipeline.main.guarded import GuardedTasks
from headrace.pipeline.main.launcher import ActorSlot, Launcher
from headrace.pipeline.main.run_part import RunParts
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.shutdown import Shutdown


class Actors:
    """Starts actors, and tells each what the others were told before it was there.

    Args:
        launcher: starts hosts.
        running: the hosts.
        parts: what else a run has, which may have hosts that come first.
        flow: gives actors credits.
        checkpointing: the run's checkpoints.
        controls: what users have done to it.
        shutdown: its end.
        tasks: what is raised in them ends the run.
    """

    def __init__(
        self,
        launcher: Launcher,
        running: RunningHosts,
        parts: RunParts,
        flow: FlowControl,
        checkpointing: Checkpointing,
        controls: RunControls,
        shutdown: Shutdown,
        tasks: GuardedTasks,
    ) -> None:
        self._launcher = launcher
        self._running = running
        self._parts = parts
        self._flow = flow
        self._checkpointing = checkpointing
        self._controls = controls
        self._shutdown = shutdown
        self._tasks = tasks

    async def start(self, names: list[str]) -> bool:
        """Start the parts' own hosts and all actors; return False if one could not be started, which ends the run."""
        for part in self._parts:
            with self._tasks.failing():
                await part.start()
                continue
            self._running.mark_ended(part.host_name)
            return False
        for replica, name in enumerate(names):
            with self._tasks.failing():
                await self._start(replica, name)
                continue
            self._running.mark_ended(name)  # nobody else will, and if it was the first, no other host's end will come
            return False
        return True

    async def restart(self, slot: ActorSlot) -> None:
        """Start an actor in the place of a dead one."""
        name = slot.handle.plan.name
        self._flow.sources_removed((*slot.former, slot.source))
        self._parts.tell(lambda part: part.actor_replaced(name))
        self._shutdown.source_replaced(name)
        await self._start(slot.replica, name, slot)

    async def _start(self, replica: int, name: str, old: ActorSlot | None = None) -> None:
        slot = await self._launcher.start_actor(replica, name, old)
        self._flow.ledger.add_source(slot.source)
        for part in self._parts:
            await part.actor_started(slot)
        if old is not None:
            self._checkpointing.repeat_announcement(slot.handle)
        self._controls.source_started(slot.handle)
        if self._shutdown.begun:  # all others were sent it before this one was there
            slot.handle.control.send(Stop())
