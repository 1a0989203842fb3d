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
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from headrace.config import RunConfig
from headrace.config.errors import ConfigError
from headrace.config.listen import endpoint_of, reaches_others
from headrace.config.sections import MonitorSettings
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
from headrace.pipeline.common.output import say
from headrace.pipeline.common.process import usage_lacks
from headrace.pipeline.common.run_parts import host_role, wanted_sides
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.controls import NeedsConfirmation, NotNow, RunControls
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.api import OPEN, USUAL_PORT, StateFeed, add_health, add_runs, page_routes
from headrace.pipeline.monitor.shown_runs import LiveRun, LogTail
from headrace.pipeline.monitor.watching import ShownGame, watching
from headrace.pipeline.reporting.console import DETAIL, ProgressSnapshot, QueueProgress
from headrace.pipeline.reporting.history import History, HistoryWriter, read_events
from headrace.pipeline.reporting.time_shares import ACTORS, WAIT, Bottleneck
from headrace.pipeline.web import Api, Site, SiteOptions, carries_token, json_response, make_token, read_json
from headrace.queues.disks import in_thread
from headrace.queues.specs import behavior_name, behavior_team

log = logging.getLogger(__name__)


CONTROL_PATIENCE_S = 10.0
"""Seconds to wait for main, which a long update of an inline trainer may block."""
OFF = "controls are off: start the run with --monitor-control"


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

    def add_to(self, api: Api) -> None:
        """Add the control routes, which are below the run's path, to an API."""
        rows: list[tuple[str, Callable[[], None], str]] = [
            ("pause", self._controls.pause, "Pause the actors; the trainers still learn from steps in flight"),
            ("resume", lambda: self._controls.pause(False), "Resume the actors"),
            ("checkpoint", self._controls.checkpoint, "Save a checkpoint now"),
            ("stop", self._stop.set, "End the run with a final checkpoint, as Ctrl-C does"),
        ]
        for name, call, summary in rows:
            api.add("POST", f"/api/runs/{RUN}/{name}", partial(self._carry_out, call), summary)
        path, change = f"/api/runs/{RUN}/hyperparameters", HyperparameterChange
        api.add("POST", path, self._change, str(change.__doc__), change)

    async def _change(self, request: web.Request) -> web.Response:
        self._check_allowed()
        change = await read_json(request, HyperparameterChange)
        return await self._carry_out(lambda: self._controls.set_hyperparameter(**change.model_dump()), request)

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise web.HTTPForbidden(text=OFF)

    async def _carry_out(self, call: Callable[[], None], _: web.Request) -> web.Response:
        """Call a function in main's event loop, and answer once it has returned."""
        self._check_allowed()

        async def in_main() -> None:
            call()

        try:
            done = asyncio.run_coroutine_threadsafe(in_main(), self._loop)
            async with asyncio.timeout(CONTROL_PATIENCE_S):
                await asyncio.wrap_future(done)
            return json_response({"done": True})
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


_REFUSALS = {
    401: "The token is missing or wrong",
    403: "Controls are off, or the caller is from a different origin",
    404: "Unknown run, behaviour or hyperparameter",
    409: "Not possible now; the message says why",
    413: "The body is too large",
    422: "The body is malformed, or the value is out of bounds",
    428: "The value is far from the current one: send `confirm: true` with it",
}


STOP_S = 5.0
"""Seconds within which the server must disconnect its viewers when it stops."""


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
    history.start(time.time())
    coordinator.reporter.add_writer(HistoryWriter(history, plan.resumes))
    control = Control(coordinator.controls, stop, asyncio.get_running_loop(), settings.control)
    show: ShownGame = next(iter(wanted_sides(plan.config, "page").values()))(plan, coordinator)
    page = LivePage(LiveRun(plan.folder.run_id, plan.config, history, tail), settings, control, show)
    leagues_due_s = 0.0

    def publish(snapshot: ProgressSnapshot, ended: bool = False) -> None:
        nonlocal leagues_due_s
        state, leagues, now = state_of(plan, coordinator, snapshot), None, time.monotonic()
        if ended and state["status"] != "failed":
            state["status"] = "ended"
        if ended or now >= leagues_due_s:
            leagues, leagues_due_s = [*coordinator.starter.league_reports().values()], now + LEAGUE_EVERY_S
        page.call(page.publish, state, leagues)

    show.join(page.call)
    page.start()
    try:
        with tail.listening():
            page.announce()
            if lacking := usage_lacks():
                log.info("%s.", lacking)
            yield publish
    finally:
        publish(coordinator.reporter.snapshot(), ended=True)
        await in_thread("stop page", page.stop)


PACE_S = 0.01
"""Minimum seconds between two times at which the server's thread wakes up."""


class PacedSelector(selectors.DefaultSelector):
    """Gathers the events of a server that has nothing left to do, and returns those of at least `PACE_S` together.

    Each time that the server's thread wakes up, a trainer or an environment in the same process loses the GIL. A flood
    of connections would wake it for each of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._woke_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector`; asyncio passes a timeout of 0 while it has something left to do."""
        events = super().select(timeout)
        if timeout is None or timeout > 0.0:
            early_s = self._woke_s + PACE_S - time.monotonic()
            if events and early_s > 0.0:
                time.sleep(early_s)
                events = super().select(0.0)
            self._woke_s = time.monotonic()
        return list(events)


class LivePage:
    """A live run's page: its feed, its token, and its server, which has a thread with an event loop.

    Args:
        run: the run.
        settings: the page's endpoint and permissions.
        control: handles control requests.
        show: the game on the page.
    """

    def __init__(self, run: LiveRun, settings: MonitorSettings, control: Control, show: ShownGame) -> None:
        self._run = run
        self._feed = StateFeed()
        self._show = show
        self._wide = reaches_others(endpoint_of(settings.listen)[0])
        self._token = make_token() if settings.control or self._wide else ""
        options = SiteOptions(settings.listen, USUAL_PORT, self._token, self._needs_token)
        self._site = Site(self._routes(settings, control), options)
        self._loop = asyncio.SelectorEventLoop(PacedSelector())
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)

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

    def announce(self) -> None:
        """Log the page's address; a token, if any, appears only in the terminal and is never logged."""
        words, details = "The live page of this run: %s", {}
        if self._token:
            with suppress(OSError):  # standard output has no reader
                say(f"[INFO] {words}" % self._site.addresses(self._token))
            words, details = f"{words} (only the terminal shows the token)", {DETAIL: True}
        log.info(words, self._site.addresses(), extra=details)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a function in the server's event loop."""

        def guarded() -> None:
            try:
                function(*arguments)
            except Exception as error:
                log.error("The page can't show the run's state (training continues): %r", error)

        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(guarded)

    def publish(self, state: dict[str, Any], leagues: list[dict[str, Any]] | None) -> None:
        """Show a state; call this in the server's event loop."""
        self._run.receive(state, leagues)
        self._feed.publish(self._run.event())

    def stop(self) -> None:
        """Send viewers the last state, and stop the server."""
        try:
            self._do(self._say_goodbye())
        except Exception as error:
            log.warning("The page's server did not shut down cleanly: %s", error or type(error).__name__)
        self._end_thread()

    async def _say_goodbye(self) -> None:
        self._feed.close()
        await self._show.close()
        await asyncio.sleep(0.1)  # time for viewers to receive the newest state
        await self._site.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STOP_S)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)

    def _routes(self, settings: MonitorSettings, control: Control) -> list[web.RouteDef]:
        def may_play(request: web.Request) -> bool:
            return settings.control and carries_token(request, self._token)

        options = {"control": settings.control, "watch": {"refused": self._show.trouble, "own": self._show.own}}
        api = Api("Headrace's live page", _REFUSALS, page_routes())
        # Before the routes with `{run}`, which would take these paths.
        api.add(
            "GET", f"/api/runs/{RUN}/stream", self._feed.stream, "States, new points of curves, new lines of the log"
        )
        api.add("GET", f"/api/runs/{RUN}/watch", watching(self._show, may_play), "WebSocket for the game")
        add_runs(api, {RUN: self._run}, options)
        add_health(api, self._run)
        control.add_to(api)
        return api.routes

    def _needs_token(self, request: web.Request) -> bool:
        return request.method == "POST" or (self._wide and request.path not in OPEN)


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


def _hosts(config: RunConfig, coordinator: Coordinator) -> list[dict[str, Any]]:
    """Describe the hosts for the page, beginning with the main process, which is a host too."""
    stages = dict.fromkeys(stage for behavior in coordinator.starter.behaviors for stage in _of_main(config, behavior))
    relay = [RELAY] if decides_centrally(config) else []
    main = {"name": MAIN, "role": MAIN, "kind": "main", "behavior": "", "pid": os.getpid()}
    described: list[dict[str, Any]] = [{**main, "stages": [*stages, PUBLISHER, *relay]}]
    for host in coordinator.running.hosts.values():
        name, role = host.plan.name, host.plan.role
        described.append(
            {
                "name": name,
                "role": role,
                "kind": str(getattr(config.pipeline.hosts, host_role(role).placed_as).kind),
                "behavior": host.plan.behavior,
                "pid": getattr(host, "pid", None),
                "stages": [*_stages(role, config)],
                "ended": name in coordinator.running.ended,
                "reported": coordinator.running.usage.get(name),
            }
        )
    return described


def edges(config: RunConfig, hosts: Sequence[HostHandle], queues: Iterable[QueueProgress]) -> list[dict[str, Any]]:
    """Describe the queues between hosts, from the reports on their ends."""
    ends: dict[str, dict[str, QueueProgress]] = {}
    for end in queues:
        queue, _, host = end.name.rpartition(" (")
        ends.setdefault(queue, {})[host.rstrip(")")] = end
    actors = [host.plan.name for host in hosts if host.plan.role in ("actor", "replay")]
    named = [*actors, *([INFERENCE] if decides_centrally(config) else [])]
    return [
        _edge_state(edge, at)
        for queue, at in ends.items()
        for edge in _edges_of(config, queue, [name for name in named if name in at])
    ]


def windows(coordinator: Coordinator, shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """Describe the credit windows, as edges from learners to actors."""
    ledger, states = coordinator.flow.ledger, []
    actors = [host.plan.name for host in coordinator.running.hosts.values() if host.plan.role == "actor"]
    for name in coordinator.starter.behaviors:
        size, queue, trainer = ledger.size(name), f"{CREDITS}/{name}", StagePlace(learner_name(name), TRAINER)
        for actor in actors if size else ():
            edge = Edge(queue, CREDITS, name, trainer, StagePlace(actor, ENVIRONMENT))
            wait = shares.get(f"{WAIT}/policy {name}", 0.0)
            out = min(size, ledger.outstanding(name))  # a tick is never split, so there may be a few more
            end = QueueProgress(queue, out, size, size, 0.0, wait)
            states.append(_edge_state(edge, {"": end}))
    return states


def _wait_for_bottleneck(edge: Mapping[str, Any], cause: Bottleneck | None) -> float:
    """Return the fraction of time that an edge spends waiting for the bottleneck; 0 if the edge does not lead to it."""
    if cause is None or not cause.host or cause.behavior not in ("", edge["behavior"]):
        return 0.0
    kinds = ("trajectories", "learn") if cause.host == ACTORS else _WAITS_AT.get(cause.stage, ("trajectories", CREDITS))
    return round(cause.wait, 3) if edge["kind"] in kinds else 0.0


def _edge_state(edge: Edge, at: dict[str, QueueProgress]) -> dict[str, Any]:
    """Merge the reports on a queue's two ends; either may be missing, and a queue inside one host has only one."""
    giver, taker = at.get(edge.source.host), at.get(edge.target.host)
    ends = [end for end in (giver, taker) if end is not None] or [*at.values()]
    return {
        **vars(edge),
        "depth": max(end.depth for end in ends),
        "capacity": max(end.bound for end in ends),
        "high_water": max(end.high_water for end in ends),
        "put_wait": round(max(end.producers_wait for end in ends), 3),
        "get_wait": round(max(end.consumers_wait for end in ends), 3),
        "rate": round((giver or ends[0]).items_per_s, 2),
        "newest": edge.kind in _NEVER_FULL,
    }


def _edges_of(config: RunConfig, queue: str, actors: Sequence[str]) -> list[Edge]:
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
    way = route(config, behavior)
    return (*way.before_ghost, *((way.shared,) if way.shared else ()), *way.after_ghost)


def _stages(role: str, config: RunConfig) -> tuple[str, ...]:
    match role:
        case "actor" | "replay":
            custom = tuple(placement.name for placement in placements_after(config, PROCESSOR, in_main=False))
            return (*((ENVIRONMENT, PROCESSOR) if role == "actor" else ("recording",)), *custom)
    return host_role(role).stages


Status = Literal["starting", "running", "paused", "ending", "failed", "ended"]


def state_of(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> dict[str, Any]:
    """Return a run's state.

    Args:
        plan: the run.
        coordinator: the run's coordinator in main.
        snapshot: the run's progress.
    """
    status, message = _status(coordinator)
    hosts = [*coordinator.running.hosts.values()]
    queues = [*edges(plan.config, hosts, snapshot.queues), *windows(coordinator, snapshot.shares)]
    return {
        "status": status,
        "message": message,
        "time": round(time.time(), 1),
        "elapsed_s": round(snapshot.elapsed, 1),
        "seconds_left": snapshot.seconds_left,
        "checkpoint": None if plan.playing else coordinator.checkpointing.newest,
        "checkpoint_under_way": coordinator.checkpointing.busy,
        "behaviors": [*_behaviors(plan, coordinator, snapshot)],
        "players": _players(coordinator),
        "hosts": _hosts(plan.config, coordinator),
        "edges": [{**edge, "held": _wait_for_bottleneck(edge, snapshot.bottleneck)} for edge in queues],
        "bottleneck": None if snapshot.bottleneck is None else asdict(snapshot.bottleneck),
    }


def _status(coordinator: Coordinator) -> tuple[Status, str]:
    shutdown = coordinator.shutdown
    if shutdown.failure is not None:
        return "failed", f"{shutdown.failure.stage}: {shutdown.failure.message}"
    if shutdown.begun:
        return "ending", ""
    if coordinator.controls.paused:
        return "paused", ""
    return ("running" if shutdown.would_save else "starting"), ""


def _behaviors(plan: RunPlan, coordinator: Coordinator, snapshot: ProgressSnapshot) -> list[dict[str, Any]]:
    described = []
    for progress in snapshot.behaviors:
        state = coordinator.starter.behaviors[progress.name]
        described.append(
            {
                "name": progress.name,
                "trainer": None if plan.playing else state.settings.trainer_type,
                "done": state.done,
                "learner": None if state.learner is None else learner_name(progress.name),
                "step": progress.steps,
                "max_steps": progress.max_steps,
                "steps_per_s": round(progress.steps_per_s, 1),
                "reward": progress.mean_reward,
                "elo": state.elo,
                "lag": progress.policy_lag,
                "policy_wait": round(snapshot.shares.get(f"{WAIT}/policy {progress.name}", 0.0), 3),
                "updates": progress.updates,
                "seconds_left": progress.seconds_left,
                "next_checkpoint": state.next_checkpoint,
                "hyperparameters": coordinator.controls.hyperparameters(progress.name),
            }
        )
    return described


def _players(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Return the current matchup in self-play: the learning team, and the opponents' snapshots."""
    self_play = coordinator.starter.self_play
    if self_play is None or not self_play.controller.generation:
        return []
    controller = self_play.controller
    opponents = []
    for history in controller.histories.values():
        snapshots = {
            behavior_id: n
            for behavior_id, n in controller.opponents.items()
            if behavior_name(behavior_id) == history.name
        }
        opponents += [
            {"behavior": history.name, "id": behavior_id, "team": behavior_team(behavior_id), "snapshot": number}
            for behavior_id, number in snapshots.items()
        ]
    return [{"learning_team": controller.learning_team, "generation": controller.generation, "opponents": opponents}]
