"""A run's monitor: connects main to the live page, whose server runs in a thread with its own event loop.

A long update in main therefore does not stop the server. An error in the server never reaches the run: it is logged,
and training continues.

The run's state for the page (`state_of`) is collected in main's event loop about once a second, as plain data for JSON.
The state includes the pipeline: hosts with their stages, and the queues between them with their fill levels.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from headrace.config import RunConfig
from headrace.config.errors import ConfigError
from headrace.config.listen import endpoint_of, reaches_others
from headrace.config.sections import MonitorSettings
from headrace.pipeline.common.daemon_threads import in_thread
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import (
    INFERENCE,
    MAIN,
    TRAINER,
    decides_centrally,
    learner_name,
    placements_after,
    route,
    shard_name,
)
from headrace.pipeline.common.output import tell_user
from headrace.pipeline.common.process import usage_lacks
from headrace.pipeline.common.run_parts import host_role, wanted_sides
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.controls import NeedsConfirmation, NotNow, RunControls
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.api import OPEN, USUAL_PORT, StateFeed, answer, health_routes, page_routes, run_routes
from headrace.pipeline.monitor.live_run import LiveRun, LogTail
from headrace.pipeline.monitor.watching import ShownGame, watching
from headrace.pipeline.reporting.console import DETAIL, ProgressSnapshot, QueueProgress
from headrace.pipeline.reporting.history import History, HistoryWriter, read_events
from headrace.pipeline.reporting.time_shares import ACTORS, WAIT, Bottleneck
from headrace.pipeline.web import Site, SiteOptions, carries_token, make_token, read_json
from headrace.queues.specs import behavior_name, behavior_team

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


ENVIRONMENT, PROCESSOR, PUBLISHER = "environment", "agent_processor", "policy_publisher"
RELAY = "requests"
"""Name of main's stage that forwards decision requests to the inference host."""

CREDITS = "credits"
"""Kind of the edges for credits. They are not queues: they lead from learners to actors and show outstanding credits.
"""
_WAITS_AT = {
    TRAINER: ("trajectories", "learn", CREDITS),
    PUBLISHER: ("updates", "policies", CREDITS),
    INFERENCE: ("requests", "asked", "answered", "answers"),
}
"""Kinds of edges on which others wait for a stage, keyed by each stage that may limit a run's speed. Actors' stages are
not listed.
"""
_NEVER_FULL = frozenset({"policies", "updates", "asked", "answers"})
"""Kinds of queues that hold at most one item: the newest, or the only one."""


class StagePlace(NamedTuple):
    """Identifies a stage by its host and name."""

    host: str
    stage: str


@dataclass(frozen=True)
class Edge:
    """A queue between two stages; if a queue connects several hosts, one host's part of that queue."""

    queue: str
    kind: str
    behavior: str
    source: StagePlace
    target: StagePlace


def host_of(handle: HostHandle, config: RunConfig) -> dict[str, Any]:
    """Describe a host for the page."""
    plan = handle.plan
    return {
        "name": plan.name,
        "role": plan.role,
        "kind": _kind(plan.role, config),
        "behavior": plan.behavior,
        "pid": getattr(handle, "pid", None),
        "stages": [*_stages(plan.role, config)],
    }


def main_host(config: RunConfig, behaviors: Iterable[str], pid: int) -> dict[str, Any]:
    """Describe the main process, which is a host too, for the page."""
    stages = [*dict.fromkeys(stage for behavior in behaviors for stage in _of_main(config, behavior))]
    relay = [RELAY] if decides_centrally(config) else []
    named = {"name": MAIN, "role": MAIN, "kind": "main", "behavior": "", "pid": pid}
    return {**named, "stages": [*stages, PUBLISHER, *relay]}


def edges(config: RunConfig, hosts: Sequence[HostHandle], queues: Iterable[QueueProgress]) -> list[dict[str, Any]]:
    """Describe the queues between hosts, from the reports on their ends."""
    ends: dict[str, dict[str, QueueProgress]] = {}
    for end in queues:
        queue, _, host = end.name.rpartition(" (")
        ends.setdefault(queue, {})[host.rstrip(")")] = end
    actors = [host.plan.name for host in hosts if host.plan.role in ("actor", "replay")]
    named = [*actors, *([INFERENCE] if decides_centrally(config) else [])]
    found = (edge for queue, at in ends.items() for edge in _wired(config, queue, [n for n in named if n in at]))
    return [_measured(edge, ends[edge.queue]) for edge in found]


def windows(coordinator: Coordinator, shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """Describe the credit windows, as edges from learners to actors."""
    ledger, found = coordinator.flow.ledger, []
    actors = [host.plan.name for host in coordinator.running.hosts.values() if host.plan.role == "actor"]
    for name in coordinator.starter.behaviors:
        size, queue, trainer = ledger.size(name), f"{CREDITS}/{name}", StagePlace(learner_name(name), TRAINER)
        for actor in actors if size else ():
            edge = Edge(queue, CREDITS, name, trainer, StagePlace(actor, ENVIRONMENT))
            wait = shares.get(f"{WAIT}/policy {name}", 0.0)
            out = min(size, ledger.outstanding(name))  # a tick is never split, so there may be a few more
            end = QueueProgress(queue, out, size, size, 0.0, wait)
            found.append(_measured(edge, {"": end}))
    return found


def _held(edge: Mapping[str, Any], cause: Bottleneck | None) -> float:
    """Return the fraction of time that an edge spends waiting for the bottleneck; 0 if the edge does not lead to it."""
    if cause is None or not cause.host or cause.behavior not in ("", edge["behavior"]):
        return 0.0
    kinds = ("trajectories", "learn") if cause.host == ACTORS else _WAITS_AT.get(cause.stage, ("trajectories", CREDITS))
    return round(cause.wait, 3) if edge["kind"] in kinds else 0.0


def _measured(edge: Edge, at: dict[str, QueueProgress]) -> dict[str, Any]:
    """Merge the reports on a queue's two ends; either may be missing, and a queue inside one host has only one."""
    giver, taker = at.get(edge.source.host), at.get(edge.target.host)
    ends = [end for end in (giver, taker) if end is not None] or [*at.values()]
    return {
        "queue": edge.queue,
        "kind": edge.kind,
        "behavior": edge.behavior,
        "source": edge.source,
        "target": edge.target,
        "depth": max(end.depth for end in ends),
        "capacity": max(end.bound for end in ends),
        "high_water": max(end.high_water for end in ends),
        "put_wait": round(max(end.producers_wait for end in ends), 3),
        "get_wait": round(max(end.consumers_wait for end in ends), 3),
        "rate": round((giver or ends[0]).items_per_s, 2),
        "newest": edge.kind in _NEVER_FULL,
    }


def _wired(config: RunConfig, queue: str, actors: Sequence[str]) -> list[Edge]:
    """Return the edges for the queue with this name; empty if the queue connects no stages."""
    kind, _, what = queue.partition("/")
    publisher, trainer = StagePlace(MAIN, PUBLISHER), StagePlace(learner_name(what), TRAINER)
    match kind:
        case "trajectories":
            target, last = _entry(config, what), _stages("actor" if config.replay is None else "replay", config)[-1]
            return [Edge(queue, kind, what, StagePlace(actor, last), target) for actor in actors]
        case "learn":
            *_, source = (PUBLISHER, *_of_main(config, what))
            return [Edge(queue, kind, what, StagePlace(MAIN, source), trainer)]
        case "updates":
            return [Edge(queue, kind, what, trainer, publisher)]
        case "policies":
            name = behavior_name(what)
            takers = (StagePlace(host, INFERENCE if host == INFERENCE else ENVIRONMENT) for host in actors)
            return [Edge(queue, kind, name, publisher, taker) for taker in takers]
        case "requests" | "answers" | "asked" | "answered":
            actor, relay = StagePlace(what, ENVIRONMENT), StagePlace(MAIN, RELAY)
            decider = StagePlace(INFERENCE, INFERENCE)
            ways = {"requests": (actor, relay), "asked": (relay, decider), "answered": (decider, relay)}
            return [Edge(queue, kind, "", *ways.get(kind, (relay, actor)))]
        case "rows" | "samples":
            name, _, shard = what.rpartition("/")
            near = StagePlace(learner_name(name), TRAINER)
            far = StagePlace(shard_name(name, int(shard)), "replay_buffer")
            return [Edge(queue, kind, name, *((near, far) if kind == "rows" else (far, near)))]
    return []


def _entry(config: RunConfig, behavior: str) -> StagePlace:
    """Return the first stage that an actor's trajectories reach."""
    if stages := _of_main(config, behavior):
        return StagePlace(MAIN, stages[0])
    learns = config.behavior_settings(behavior).learns and not config.checkpoint_settings.inference
    through = route(config, behavior).through_main or not learns
    return StagePlace(MAIN, PUBLISHER) if through else StagePlace(learner_name(behavior), TRAINER)


def _of_main(config: RunConfig, behavior: str) -> tuple[str, ...]:
    """Return main's stages on the route for a behaviour's trajectories."""
    found = route(config, behavior)
    return (*found.before_ghost, *((found.shared,) if found.shared else ()), *found.after_ghost)


def _stages(role: str, config: RunConfig) -> tuple[str, ...]:
    match role:
        case "actor" | "replay":
            custom = tuple(each.name for each in placements_after(config, PROCESSOR, in_main=False))
            return (*((ENVIRONMENT, PROCESSOR) if role == "actor" else ("recording",)), *custom)
    return host_role(role).stages


def _kind(role: str, config: RunConfig) -> str:
    return str(getattr(config.pipeline.hosts, host_role(role).placed_as).kind)


Status = Literal["starting", "running", "paused", "ending", "failed", "ended"]


def state_of(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> dict[str, Any]:
    """Return a run's state.

    Args:
        plan: the run.
        coordinator: the run's coordinator in main.
        snapshot: the run's progress.
    """
    config, hosts = plan.config, [*coordinator.running.hosts.values()]
    status, message = _status(coordinator)
    found = [*edges(config, hosts, snapshot.queues), *windows(coordinator, snapshot.shares)]
    described = [main_host(config, coordinator.starter.behaviors, os.getpid())]
    for host in hosts:
        name = host.plan.name
        known = {"ended": name in coordinator.running.ended, "told": coordinator.running.usage.get(name)}
        described.append({**host_of(host, config), **known})
    return {
        "status": status,
        "message": message,
        "time": round(time.time(), 1),
        "elapsed_s": round(snapshot.elapsed, 1),
        "seconds_left": snapshot.seconds_left,
        "checkpoint": coordinator.checkpointing.newest,
        "checkpoint_under_way": coordinator.checkpointing.busy,
        "behaviors": [*_behaviors(plan, coordinator, snapshot)],
        "players": _players(coordinator),
        "hosts": described,
        "edges": [{**edge, "held": _held(edge, snapshot.bottleneck)} for edge in found],
        "bottleneck": None if snapshot.bottleneck is None else asdict(snapshot.bottleneck),
    }


def leagues_of(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Return the leagues' reports."""
    return [*coordinator.starter.league_reports().values()]


def _status(coordinator: Coordinator) -> tuple[Status, str]:
    shutdown = coordinator.shutdown
    if shutdown.failure is not None:
        return "failed", f"{shutdown.failure.stage}: {shutdown.failure.message}"
    if shutdown.begun:
        return "ending", ""
    if coordinator.controls.paused:
        return "paused", ""
    return ("running" if any(state.ready for state in coordinator.starter.behaviors.values()) else "starting"), ""


def _behaviors(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> list[dict[str, Any]]:
    found = []
    for each in snapshot.behaviors:
        state = coordinator.starter.behaviors[each.name]
        found.append(
            {
                "name": each.name,
                "trainer": None if plan.playing else state.settings.trainer_type,
                "done": state.done,
                "learner": None if state.learner is None else learner_name(each.name),
                "step": each.steps,
                "max_steps": each.max_steps,
                "steps_per_s": round(each.steps_per_s, 1),
                "reward": each.mean_reward,
                "elo": state.elo,
                "lag": each.policy_lag,
                "policy_wait": round(snapshot.shares.get(f"{WAIT}/policy {each.name}", 0.0), 3),
                "updates": each.updates,
                "seconds_left": each.seconds_left,
                "next_checkpoint": state.next_checkpoint,
                "hyperparameters": coordinator.controls.hyperparameters(each.name),
            }
        )
    return found


def _players(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Return the current matchup in self-play: the learning team, and the opponents' snapshots."""
    self_play = coordinator.starter.self_play
    if self_play is None or not self_play.controller.generation:
        return []
    controller = self_play.controller
    found = []
    for history in controller.histories.values():
        snapshots = {
            behavior_id: n
            for behavior_id, n in controller.opponents.items()
            if behavior_name(behavior_id) == history.name
        }
        found += [
            {"behavior": history.name, "id": behavior_id, "team": behavior_team(behavior_id), "snapshot": number}
            for behavior_id, number in snapshots.items()
        ]
    return [{"learning_team": controller.learning_team, "generation": controller.generation, "opponents": found}]
