"""A run's monitor: connects main to the live page, whose server runs in a thread with its own event loop.

A long update in main therefore does not stop the server. An error in the server never reaches the run: it is logged,
and training continues.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from headrace.config.errors import ConfigError
from headrace.config.listen import endpoint_of, reaches_others
from headrace.config.sections import MonitorSettings
from headrace.pipeline.common.daemon_threads import in_thread
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.output import tell_user
from headrace.pipeline.common.process import usage_lacks
from headrace.pipeline.common.run_parts import wanted_sides
from headrace.pipeline.main.controls import NeedsConfirmation, NotNow, RunControls
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.api import OPEN, USUAL_PORT, StateFeed, answer, health_routes, page_routes, run_routes
from headrace.pipeline.monitor.live_run import LiveRun, LogTail
from headrace.pipeline.monitor.shown_game import ShownGame
from headrace.pipeline.monitor.state import leagues_of, state_of
from headrace.pipeline.monitor.watching import watching
from headrace.pipeline.reporting.console import DETAIL
from headrace.pipeline.reporting.history import History, HistoryWriter, read_events
from headrace.pipeline.reporting.progress import ProgressSnapshot
from headrace.pipeline.web import Site, SiteOptions, carries_token, make_token, read_json

log = logging.getLogger(__name__)


CONTROL_PATIENCE_S = 10.0
"""Seconds to wait for main, which a long update of an inline trainer may block."""
OFF = "controls are off: start the run with --monitor-control"

Action = Callable[[web.Request], Awaitable[Callable[[], None]]]


class HyperparameterChange(BaseModel):
    """A new value of a scheduled hyperparameter, effective at the next update and saved in checkpoints."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    behavior: str = Field(description="The behaviour's name.")
    name: str = Field(
        description="A hyperparameter, such as learning_rate: a key of `hyperparameters` in the behaviour's state."
    )
    value: float = Field(
        description="The value at the start of the schedule, within the bounds that the YAML key allows."
    )
    confirm: bool = Field(
        False, description="True to confirm a value that differs from the current one by more than a factor of 10."
    )


class Control:
    """Carries control requests to main.

    Args:
        controls: main's controls for users.
        stop: event that ends the run cleanly when set.
        loop: main's event loop.
        allowed: False to refuse all requests.
    """

    def __init__(
        self, controls: RunControls, stop: asyncio.Event, loop: asyncio.AbstractEventLoop, allowed: bool
    ) -> None:
        self._controls = controls
        self._stop = stop
        self._loop = loop
        self._allowed = allowed

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return the control routes, which are below the run's path."""
        plain = {
            "pause": self._controls.pause,
            "resume": lambda: self._controls.pause(False),
            "checkpoint": self._controls.checkpoint,
            "stop": self._stop.set,
        }
        return [
            *(web.post(f"{prefix}/{name}", self._handler(_always(call))) for name, call in plain.items()),
            web.post(f"{prefix}/hyperparameters", self._handler(self._change)),
            web.get("/api/openapi.json", _describe),
        ]

    async def _change(self, request: web.Request) -> Callable[[], None]:
        change = await read_json(request, HyperparameterChange)
        return lambda: self._controls.set_hyperparameter(**change.model_dump())

    def _handler(self, action: Action) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def respond(request: web.Request) -> web.Response:
            if not self._allowed:
                raise web.HTTPForbidden(text=OFF)
            await self._in_main(await action(request))
            return answer({"done": True})

        return respond

    async def _in_main(self, call: Callable[[], None]) -> None:
        async def carry_out() -> None:
            call()

        try:
            done = asyncio.run_coroutine_threadsafe(carry_out(), self._loop)
            async with asyncio.timeout(CONTROL_PATIENCE_S):
                await asyncio.wrap_future(done)
        except NotNow as error:
            raise web.HTTPConflict(text=str(error)) from None
        except NeedsConfirmation as error:
            raise web.HTTPPreconditionRequired(text=f"{error}; to set it anyway, also send 'confirm: true'") from None
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error.args[0])) from None
        except ConfigError as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from None
        except TimeoutError:
            raise web.HTTPServiceUnavailable(
                text=f"the main process did not respond within {CONTROL_PATIENCE_S:.0f} s"
            ) from None


def _always(call: Callable[[], None]) -> Action:
    async def action(_: web.Request) -> Callable[[], None]:
        return call

    return action


async def _describe(_: web.Request) -> web.Response:
    return answer(schema())


def schema() -> dict[str, Any]:
    """Return the API as an OpenAPI document."""
    words = {
        "pause": "Pause the actors; the trainers still learn from steps in flight",
        "resume": "Resume the actors",
        "checkpoint": "Save a checkpoint now",
        "stop": "End the run with a final checkpoint, as Ctrl-C does",
        "hyperparameters": str(HyperparameterChange.__doc__),
    }
    refusals = {
        "401": "The token is missing or wrong",
        "403": "Controls are off, or the caller is from a different origin",
        "404": "Unknown behaviour or hyperparameter",
        "409": "Not possible now; the message says why",
        "413": "The body is too large",
        "422": "The body is malformed, or the value is out of bounds",
        "428": "The value is far from the current one: send `confirm: true` with it",
    }
    responses = {status: {"description": text} for status, text in {"200": "Done", **refusals}.items()}
    posts: dict[str, Any] = {}
    for name, text in words.items():
        operation: dict[str, Any] = {"summary": text, "responses": responses, "security": [{"token": []}]}
        if name == "hyperparameters":
            content = {"application/json": {"schema": HyperparameterChange.model_json_schema()}}
            operation["requestBody"] = {"required": True, "content": content}
        posts[f"/api/runs/live/{name}"] = {"post": operation}
    reads = ("state", "curves", "leagues", "configuration", "log", "stream")
    gets = {
        f"/api/runs/live/{name}": {
            "get": {"summary": f"The run's {name}", "responses": {"200": {"description": "JSON"}}}
        }
        for name in reads
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace's live page", "version": "1"},
        "paths": {**gets, **posts},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


STOP_S = 5.0
"""Seconds within which the server must disconnect its viewers when it stops."""


class PageServer:
    """Serves a site from its own thread.

    Args:
        routes: the site's routes.
        options: the site's options.
        goodbye: awaited in the server's event loop before the loop ends.
    """

    def __init__(
        self, routes: Sequence[web.RouteDef], options: SiteOptions, goodbye: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._site = Site(routes, options)
        self._goodbye = goodbye

    def addresses(self, token: str = "") -> str:
        """Return the site's addresses as text; see `Site.addresses`."""
        return self._site.addresses(token)

    def start(self) -> None:
        """Start listening.

        Raises:
            RunError: if the server can't listen.
        """
        self._thread.start()
        try:
            self._do(self._site.start())
        except OSError as error:
            self._end_thread()
            raise RunError(
                f"monitor.listen: {error.strerror}; choose a different address with --monitor=HOST:PORT"
            ) from error

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a function in the server's event loop."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._guarded, function, *arguments)

    def stop(self) -> None:
        """Send viewers the last state, and stop the server."""
        try:
            self._do(self._say_goodbye())
        except Exception as error:
            log.warning("The page's server did not shut down cleanly: %s", error or type(error).__name__)
        self._end_thread()

    async def _say_goodbye(self) -> None:
        await self._goodbye()
        await asyncio.sleep(0.1)  # time for viewers to receive the newest state
        await self._site.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STOP_S)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            log.error("The page can't show the run's state (training continues): %r", error)


LEAGUE_EVERY_S = 5.0
"""Seconds between league reports, which are sent less often than states because they grow with the league."""
RUN = "live"
"""Id of the run in URL paths."""

OnProgress = Callable[[ProgressSnapshot], None]


@asynccontextmanager
async def monitored(
    plan: RunPlan, coordinator: Coordinator, settings: MonitorSettings, stop: asyncio.Event
) -> AsyncIterator[OnProgress]:
    """Serve a run's page in this context; call the yielded function about once a second.

    Args:
        plan: the run.
        coordinator: the run's coordinator in main.
        settings: the page's endpoint and permissions.
        stop: event that ends the run cleanly when set.

    Raises:
        RunError: if the server can't listen.
    """
    history, tail = History(), LogTail()
    if plan.resumes:
        await in_thread("read events", read_events, plan.folder.path, plan.config.behaviors, history)
    coordinator.reporter.add_writer(HistoryWriter(history, plan.resumes))
    control = Control(coordinator.controls, stop, asyncio.get_running_loop(), settings.control)
    show: ShownGame = next(iter(wanted_sides(plan.config, "page").values()))(plan, coordinator)
    page = LivePage(LiveRun(plan.folder.run_id, plan.config, history, tail), settings, control, show)
    show.join(page.server.call)
    page.server.start()
    watch = _Watch(plan, coordinator, page)
    try:
        with tail.listening():
            page.announce()
            if lacking := usage_lacks():
                log.info("%s.", lacking)
            yield watch.look
    finally:
        watch.end()
        await in_thread("stop page", page.server.stop)


class LivePage:
    """A live run's page: its feed, server and token.

    Args:
        run: the run.
        settings: the page's endpoint and permissions.
        control: handles control requests.
        show: the game on the page.
    """

    def __init__(self, run: LiveRun, settings: MonitorSettings, control: Control, show: ShownGame) -> None:
        self.run = run
        self._feed = StateFeed()
        self._show = show
        self._wide = reaches_others(endpoint_of(settings.listen)[0])
        self._token = make_token() if settings.control or self._wide else ""
        site = SiteOptions(settings.listen, USUAL_PORT, self._token, self._needs_token)
        self.server = PageServer(self._routes(settings, control), site, self._say_goodbye)

    def announce(self) -> None:
        """Log the page's address; a token, if any, appears only in the terminal and is never logged."""
        words, kept = "The live page of this run: %s", {}
        if self._token:
            tell_user(f"[INFO] {words}" % self.server.addresses(self._token))
            words, kept = f"{words} (only the terminal shows the token)", {DETAIL: True}
        log.info(words, self.server.addresses(), extra=kept)

    def publish(self, state: dict[str, Any], leagues: list[dict[str, Any]] | None) -> None:
        """Show a state; call this in the server's event loop."""
        self.run.receive(state, leagues)
        self._feed.publish(self.run.event())

    async def _say_goodbye(self) -> None:
        self._feed.close()
        await self._show.close()

    def _routes(self, settings: MonitorSettings, control: Control) -> list[web.RouteDef]:
        def may_play(request: web.Request) -> bool:
            return settings.control and carries_token(request, self._token)

        options = {"control": settings.control, "watch": {"refused": self._show.trouble, "own": self._show.own}}
        return [
            *page_routes(),
            web.get(f"/api/runs/{RUN}/stream", self._feed.stream),
            web.get(f"/api/runs/{RUN}/watch", watching(self._show, may_play)),
            *run_routes({RUN: self.run}, options),
            *health_routes(self.run),
            *control.routes(f"/api/runs/{RUN}"),
        ]

    def _needs_token(self, request: web.Request) -> bool:
        return request.method == "POST" or (self._wide and request.path not in OPEN)


class _Watch:
    """Collects the run's state in main's event loop and passes it to the page."""

    def __init__(self, plan: RunPlan, coordinator: Coordinator, page: LivePage) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._page = page
        self._leagues_due_s = 0.0

    def look(self, snapshot: ProgressSnapshot) -> None:
        """Send the current state, and league reports if due, to the page."""
        state, leagues, now = state_of(self._plan, self._coordinator, snapshot), None, time.monotonic()
        if now >= self._leagues_due_s:
            leagues, self._leagues_due_s = leagues_of(self._coordinator), now + LEAGUE_EVERY_S
        self._page.server.call(self._page.publish, state, leagues)

    def end(self) -> None:
        """Send the last state to the page."""
        state = state_of(self._plan, self._coordinator, self._coordinator.reporter.snapshot())
        if state["status"] != "failed":
            state["status"] = "ended"
        self._page.server.call(self._page.publish, state, leagues_of(self._coordinator))
