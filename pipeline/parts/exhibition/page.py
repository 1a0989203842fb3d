"""The game on a run's page: an exhibition in a separate process, or the run's only instance if people play in it.

The page's server starts the exhibition's process, which runs only while there are viewers, from its own thread, so
neither the process nor main waits for the other. Frames are not queued: each viewer gets the newest frame when it has
read the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from headrace.config.section_checks import persons_in
from headrace.pipeline.control import (
    DirectShow,
    HostFailed,
    KeysHeld,
    LogLine,
    PictureTaken,
    ShowAnnounced,
    Stop,
)
from headrace.pipeline.hosts.process import ProcessHost, ProcessHosts
from headrace.pipeline.hosts.protocol import HostHandle, how_it_ended
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.watching import ShownGame
from headrace.queues.ends import Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import PolicyUpdate
from headrace.stages.errors import describe_error

log = logging.getLogger(__name__)

LINGER_S = 10.0
"""Seconds without a viewer after which the process ends; long enough to reload a page."""
HANG_S = 60.0
"""Seconds of silence after which the process is killed; it normally sends a message every second."""
FEED_S = 0.25
"""Seconds between checks for newer policies."""
END_S = 3.0
"""Seconds within which the process must end cleanly."""

StartProcess = Callable[[asyncio.TaskGroup], Awaitable[ProcessHost]]


# The page runs the game in its own thread, because an update may block main (docs/decisions/049).
class Exhibition(ShownGame):
    """The exhibition, as seen by the page's server. All calls come from the server's event loop.

    Args:
        start: starts the exhibition's process.
        newest: returns the newest policies, keyed by behaviour name; the policies are never modified.
        refused: reason why nothing can be shown; empty if the game can be shown.
    """

    def __init__(self, start: StartProcess, newest: Callable[[], Mapping[str, PolicyUpdate]], refused: str) -> None:
        super().__init__("refused" if refused else "off", refused)
        self._start_process = start
        self._newest = newest
        self._host: ProcessHost | None = None
        self._life: asyncio.Task[None] | None = None
        self._senders: dict[str, Sender[Any]] = {}
        self._sent: dict[str, PolicyUpdate] = {}
        self._heard = 0.0
        self._ending = False
        self._hung = ""

    def start(self) -> None:
        """Start the exhibition, or restart it after a failure; do nothing if it is running."""
        if self.closed or self.status in ("refused", "starting", "on"):
            return
        self.status, self.trouble = "starting", ""
        self._life = asyncio.get_running_loop().create_task(self._live(), name="exhibition")
        self.tell()

    async def close(self) -> None:
        """End the exhibition for good, and close the viewers' sockets; save the recording if the host responds."""
        self._ending = True
        await super().close()
        if self._life is not None:
            if self._host is not None:
                self._host.control.send(Stop())
                await asyncio.wait([self._life], timeout=END_S)
            self._life.cancel()
            with suppress(asyncio.CancelledError):
                await self._life

    def _send(self, message: DirectShow | KeysHeld) -> None:
        if self._host is not None:
            self._host.control.send(message)

    # The process's life. ---------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            failure = await self._run()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            failure = describe_error(error)
        finally:
            self._host = None
            self._senders, self._sent = {}, {}
            self.order.persons, self.order.recorded = {}, ""
        self.status, self.trouble = ("failed", failure) if failure else ("off", "")
        if failure:
            log.error("The game on the live page has failed: %s\nThe run continues.", failure)
        self.tell()
        if self.status == "off" and self.viewers:  # a viewer connected while the process was ending
            self.start()

    async def _run(self) -> str:
        """Start the process and serve it until it ends; return why it has failed, or an empty string."""
        async with asyncio.TaskGroup() as tasks:
            host = await self._start_process(tasks)
            self._host, self._heard = host, asyncio.get_running_loop().time()
            host.control.send(self.order.message())
            care = tasks.create_task(self._care(host))
            try:
                failure = await self._listen(host)
                status = await host.wait()
            finally:
                care.cancel()
                host.kill()
                host.close()
        if failure or not status or self._ending:
            return failure
        return f"its process {how_it_ended(status)}"

    async def _listen(self, host: ProcessHost) -> str:
        failure, self._hung, self._ending = "", "", False
        async for message in host.control.receive():
            self._heard = asyncio.get_running_loop().time()
            match message:
                case PictureTaken() | ShowAnnounced():
                    self._handle(message)
                case LogLine():
                    logging.getLogger(message.logger).log(message.level, "%s", message.text)
                case HostFailed():
                    failure = message.message
        return failure or self._hung

    async def _care(self, host: ProcessHost) -> None:
        """Send policies to the process, and end it when it has no viewers or hangs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FEED_S)
            now = loop.time()
            if now - self._heard > HANG_S:
                doing = await host.describe()
                self._hung = f"it has not answered for {now - self._heard:.0f} s: {doing}"
                host.kill()
                return
            if not self.viewers and now - self._alone_since > LINGER_S:
                self._ending = True
                host.control.send(Stop())
                await asyncio.sleep(END_S)
                host.kill()
                return
            await self._feed(host)

    async def _feed(self, host: ProcessHost) -> None:
        for behavior, policy in [*self._newest().items()]:
            if self._sent.get(behavior) is policy:
                continue
            if behavior not in self._senders:
                self._senders[behavior] = await host.sender(f"policies/{behavior}", newest=True)
            self._sent[behavior] = policy
            with suppress(QueueClosed):  # the process has ended
                self._senders[behavior].put_nowait(policy)


class RunGame(ShownGame):
    """The run's only instance, in which people play, as seen by the page's server.

    Args:
        send: sends a message to the game's actor, from any thread.
    """

    own = True

    def __init__(self, send: Callable[[DirectShow | KeysHeld], object]) -> None:
        super().__init__("starting")
        self._send_to_main = send
        self._call: Callable[..., None] = lambda function, *arguments: None

    def join(self, call: Callable[..., None]) -> None:
        """Store the function that schedules calls in the server's event loop."""
        self._call = call

    def start(self) -> None:
        """Do nothing: the game runs as long as the run does."""

    def tell_of(self, message: PictureTaken | ShowAnnounced | None) -> None:
        """Handle a message from the game, or None when its actor starts; called in main's thread."""
        self._call(self.receive, message)

    def receive(self, message: PictureTaken | ShowAnnounced | None) -> None:
        """Handle a message from the game, or None when its actor starts, possibly to replace a lost one."""
        if message is not None:
            self._handle(message)
            return
        self.status = "starting"
        self.tell()

    def _send(self, message: DirectShow | KeysHeld) -> None:
        self._send_to_main(message)


class RunGameMessages(RunPart):
    """Carries messages between the page and the run's only instance, in main's event loop.

    Attributes:
        game: the game for the page.
    """

    receives = (ShowAnnounced, PictureTaken)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        main = asyncio.get_running_loop()
        self.game = RunGame(lambda message: main.call_soon_threadsafe(self.send, message))
        self._order: DirectShow | None = None

    def send(self, message: DirectShow | KeysHeld) -> None:
        """Forward a message from the page to the game's actor."""
        if isinstance(message, DirectShow):
            self._order = message
        self.run.broadcaster.send_to_sources(message)

    def receive(self, host: HostHandle, message: ShowAnnounced | PictureTaken) -> None:
        """Forward a message from the game to the page."""
        self.game.tell_of(message)

    async def actor_started(self, slot: ActorSlot) -> None:
        """Handle an actor's start; the actor may replace one in which a person was playing."""
        self.game.tell_of(None)
        if self._order is not None:
            slot.handle.control.send(self._order)


def game_of(plan: RunPlan, coordinator: Coordinator) -> ShownGame:
    """Return the game on a run's page.

    It is the run's only instance if people play in it, otherwise an exhibition, which refuses to start if the
    environments can't be shown.
    """
    from headrace.stages.environments.given import why_not_elsewhere

    config = plan.config
    if persons_in(config):
        messages: RunGameMessages = coordinator.parts.get("exhibition")
        return messages.game
    refused = config.environment_kind.not_shown
    if config.replay is not None and config.environment is None:
        refused = "the run learns from recordings, so there is no game to watch"
    if not refused and config.environment is not None and (why := why_not_elsewhere(config.environment.factory)):
        refused = (
            f"only the main process can step the environment passed to run() ({why}); pass a function that makes the "
            "environment"
        )
    return Exhibition(
        lambda tasks: ProcessHosts(config, tasks).start(plan.host_plan("exhibition", "exhibition")),
        lambda: coordinator.starter.newest,
        refused,
    )
