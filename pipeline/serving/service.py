"""The policy server's service, independent of the transport: the HTTP and gRPC servers call only this.

Each model has a batcher: one decision answers all waiting requests. The batcher never waits for a batch to fill: while
the policy decides for one batch, new requests form the next. So batches grow with the load, and a single request is
answered immediately.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from headrace.config.errors import suggest
from headrace.pipeline.serving.action_request import MOST_AGENTS, ActionRequest, ErrorKind, RequestRefused, unfit
from headrace.pipeline.serving.served_models import LoadedModel, ServedModel, keep_fresh
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError, describe_error
from headrace.stages.policy.protocol import Decision, Recall

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a batcher."""

    waiting: int = 256
    """Maximum number of waiting requests; additional requests are refused. More callers than this are rare."""
    agents: int = 4096
    """Maximum number of agents in one decision."""
    patience_s: float = 5.0
    """Seconds within which a request is answered or refused."""


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """The answer to a request for n agents."""

    actions: ActionBatch
    """Actions of the n agents, the continuous ones in the environment's units."""
    recall: Recall | None
    """New memories of the n agents; None for a model without memory."""
    loaded: LoadedModel
    """The policy that made the decision."""


@dataclass(eq=False, slots=True)
class _WaitingRequest:
    request: ActionRequest
    recall: Recall | None
    answer: asyncio.Future[ActionAnswer]


class Batcher:
    """Answers requests while `run` is running.

    Args:
        model: the policy.
        deterministic: the default for requests that do not set it.
        random: generator for sampled actions.
        limits: the batcher's limits; None for the defaults.

    Attributes:
        decisions: number of calls to the policy so far.
        decision_s: duration of a call in seconds, averaged over recent calls.
    """

    def __init__(
        self,
        model: ServedModel,
        deterministic: bool,
        random: np.random.Generator,
        limits: BatchLimits | None = None,
    ) -> None:
        self._model = model
        self._deterministic = deterministic
        self._random = random
        self._limits = limits or BatchLimits()
        self._waiting: deque[_WaitingRequest] = deque()
        self._news = asyncio.Event()
        self._thread: ThreadPoolExecutor | None = None
        self.decisions = 0
        self.decision_s = 0.0

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    async def ask(self, request: ActionRequest, recall: Recall | None) -> ActionAnswer:
        """Answer a request; the request is dropped if its caller is cancelled.

        Args:
            request: the request.
            recall: the agents' memories; None for a model without memory.

        Raises:
            RequestRefused: if too many requests are waiting, the decision takes too long, or the policy fails.
        """
        if len(self._waiting) >= self._limits.waiting:
            raise RequestRefused(
                ErrorKind.OVERLOADED, f"{self._limits.waiting} requests are already waiting; try again later"
            )
        loop, patience_s = asyncio.get_running_loop(), self._limits.patience_s
        each = _WaitingRequest(request, recall, loop.create_future())
        late = RequestRefused(ErrorKind.LATE, f"no decision was made within {patience_s:g} s")
        timer = loop.call_later(patience_s, _settle, each, late)
        self._waiting.append(each)
        self._news.set()
        try:
            return await each.answer
        except BaseException:
            if each in self._waiting:  # the request was cancelled
                self._waiting.remove(each)
            raise
        finally:
            timer.cancel()

    async def run(self) -> None:
        """Answer waiting requests until cancelled."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    await self._round()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False, cancel_futures=True)

    async def _round(self) -> None:
        """Answer the waiting requests, with one policy call for sampled actions and one for the most likely actions."""
        loaded, agents = self._model.newest, 0
        groups: dict[bool, list[_WaitingRequest]] = {}
        while self._waiting and (not agents or agents + self._waiting[0].request.agents <= self._limits.agents):
            each = self._waiting.popleft()
            agents += each.request.agents
            wanted = each.request.deterministic
            groups.setdefault(self._deterministic if wanted is None else wanted, []).append(each)
        for deterministic, group in groups.items():
            await self._decide(loaded, group, deterministic)

    async def _decide(self, loaded: LoadedModel, group: list[_WaitingRequest], deterministic: bool) -> None:
        """Answer a group. If that fails, answer each request separately, so only the requests at fault are refused."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            decision = await self._act(loaded, group, deterministic)
        except Exception as error:
            if len(group) > 1:
                for each in group:
                    await self._decide(loaded, [each], deterministic)
            else:
                _settle(group[0], _refusal(loaded, error))
            return
        self.decision_s += 0.1 * (loop.time() - begun - self.decision_s)
        at = 0
        for each in group:
            rows = slice(at, at + each.request.agents)
            at = rows.stop
            recall = decision.recall
            if recall is not None:
                recall = Recall(recall.memories[rows], recall.previous_actions[rows])
            actions = ActionBatch(decision.actions.continuous[rows], decision.actions.discrete[rows])
            _settle(each, ActionAnswer(actions, recall, loaded))

    async def _act(self, loaded: LoadedModel, group: list[_WaitingRequest], deterministic: bool) -> Decision:
        self.decisions += 1
        call = partial(
            loaded.act,
            tuple(_joined(arrays) for arrays in zip(*(each.request.observations for each in group), strict=True)),
            _masks(group),
            self._random,
            deterministic,
            _recall(group),
        )
        if loaded.is_quick(sum(each.request.agents for each in group)):
            return call()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "decisions")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _joined(arrays: tuple[Array, ...]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _masks(group: list[_WaitingRequest]) -> Array | None:
    found = [each.request.masks for each in group]
    first = next((masks for masks in found if masks is not None), None)
    if first is None:
        return None
    width = first.shape[1]
    return _joined(
        tuple(
            np.ones((each.request.agents, width), np.bool_) if masks is None else masks
            for each, masks in zip(group, found, strict=True)
        )
    )


def _recall(group: list[_WaitingRequest]) -> Recall | None:
    found = [each.recall for each in group if each.recall is not None]
    if not found:
        return None
    return Recall(
        _joined(tuple(each.memories for each in found)), _joined(tuple(each.previous_actions for each in found))
    )


def _settle(each: _WaitingRequest, result: ActionAnswer | RequestRefused) -> None:
    if each.answer.done():  # the caller has disconnected or was refused
        return
    if isinstance(result, ActionAnswer):
        each.answer.set_result(result)
    else:
        each.answer.set_exception(result)


def _refusal(loaded: LoadedModel, error: Exception) -> RequestRefused:
    if isinstance(error, NotFiniteError):  # the model works on zeros, so these observations are at fault
        return RequestRefused(ErrorKind.UNFIT, f"the model returns non-finite values for these observations: {error}")
    reason = describe_error(error)
    log.error("%s could not choose actions: %s", loaded.path, reason)
    log.debug("where it was raised:", exc_info=error)
    return RequestRefused(ErrorKind.FAULT, f"this is an error in the model or the server: {reason}")


AIM_S = 0.025
"""Time in seconds within which nine of ten admitted requests should be answered. A client's p99 is about twice that,
because a request also waits in the socket before it is admitted."""
LEAST = 16
_RISE, _FALL = 0.05, 0.5
"""Increase of the limit for each timely answer, and decrease for each late one.

The two cancel out if one answer in eleven is late.
"""


class Admission:
    """Limits the number of requests in progress.

    How many requests a machine answers in time depends on its speed and on the model, so the limit follows the answers:
    additive increase, and a decrease ten times as large (like TCP's congestion window; Netflix's concurrency-limits
    does the same for servers).

    Args:
        most: the highest value of the limit.
        clock: returns the time in seconds.
        aim_s: returns the time in seconds within which nine of ten requests should be answered.

    Attributes:
        under_way: number of requests that have been admitted but not yet answered.
    """

    def __init__(self, most: int, clock: Callable[[], float], aim_s: Callable[[], float] = lambda: AIM_S) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self._clock = clock
        self._bound: float = most
        self._aim_s = aim_s
        self.under_way = 0

    @property
    def bound(self) -> int:
        """The current limit on the number of requests in progress."""
        return int(self._bound)

    @property
    def full(self) -> bool:
        """True while no more requests are admitted."""
        return self.under_way >= self.bound

    def begin(self) -> float:
        """Count a request as admitted; return the value to pass to `end`."""
        self.under_way += 1
        return self._clock()

    def end(self, begun: float) -> None:
        """Count an admitted request as finished, whether it was answered or abandoned."""
        busy = self.under_way >= self._least  # with fewer requests, the response time says nothing about the limit
        self.under_way -= 1
        if busy:
            change = -_FALL if self._clock() - begun > self._aim_s() else _RISE
            self._bound = min(self._most, max(self._least, self._bound + change))


@dataclass(frozen=True)
class SessionLimits:
    """Limits of a model's sessions."""

    sessions: int = 10_000
    agents: int = 100_000
    """Maximum number of agents, summed over all sessions."""
    idle_s: float = 600.0
    """Seconds without use after which a session ends."""


@dataclass(eq=False, slots=True)
class _Session:
    agents: int
    recall: Recall | None
    used: float
    busy: bool = False


@dataclass(eq=False, slots=True)
class Turn:
    """One request's use of a session: the memories before the request and, if a decision was made, those after it."""

    before: Recall | None
    after: Recall | None = None
    decided: bool = False


class Sessions:
    """All sessions of one model.

    Args:
        nothing: function that returns the memories of n agents before their first decision; None if the model has no
            memory.
        clock: returns the current time in seconds.
        limits: the limits; None for the defaults.
    """

    def __init__(
        self,
        nothing: Callable[[int], Recall | None],
        clock: Callable[[], float],
        limits: SessionLimits | None = None,
    ) -> None:
        self._nothing = nothing
        self._clock = clock
        self.limits = limits or SessionLimits()
        self._sessions: dict[str, _Session] = {}  # the least recently used first
        self._agents = 0

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def open(self, agents: int, key: str = "") -> str:
        """Begin a session for a number of agents and return its id: `key`, or an unguessable id if `key` is empty.

        Raises:
            RequestRefused: if too many sessions or agents exist.
        """
        if not 1 <= agents <= MOST_AGENTS:
            raise unfit(f"agents: got {agents}; expected 1 to {MOST_AGENTS} per session")
        self.expire()
        limits = self.limits
        if len(self._sessions) >= limits.sessions or self._agents + agents > limits.agents:
            raise RequestRefused(
                ErrorKind.FULL,
                f"there are {len(self._sessions)} sessions with {self._agents} agents in all (at most "
                f"{limits.sessions} and {limits.agents}); end the sessions that are no longer needed",
            )
        key = key or secrets.token_urlsafe(18)
        self._sessions[key] = _Session(agents, self._nothing(agents), self._clock())
        self._agents += agents
        return key

    def close(self, key: str) -> None:
        """End a session.

        Raises:
            RequestRefused: if no session has this id.
        """
        self._get(key)
        self._remove(key)

    def expire(self) -> None:
        """End the sessions that have been idle for too long."""
        now = self._clock()
        for key, session in [*self._sessions.items()]:
            if now - session.used < self.limits.idle_s:
                return
            if not session.busy:
                self._remove(key)

    @contextmanager
    def turn(self, request: ActionRequest) -> Iterator[Turn]:
        """Let a request use its session; the session's memories change only if a decision is made.

        Raises:
            RequestRefused: if the session does not exist, a different request is using it, or the numbers of agents
                differ.
        """
        key = request.session
        fresh = request.begins and key not in self._sessions
        if fresh:
            self.open(request.agents, key)
        session = self._get(key)
        if session.busy:
            raise RequestRefused(
                ErrorKind.BUSY, f"session {key}: another request of this session has not been answered yet"
            )
        if request.agents != session.agents:
            raise unfit(f"session {key} has {session.agents} agents, but the observations are for {request.agents}")
        starts = np.ones(request.agents, np.bool_) if request.begins else request.episode_start
        turn = Turn(self._begun(session, starts))
        session.busy = True
        try:
            yield turn
        finally:
            session.busy = False
            if turn.decided:
                session.recall = turn.after
            session.used = self._clock()
            if key in self._sessions:  # move the session to the end of the order
                self._sessions[key] = self._sessions.pop(key)
                if request.ends if turn.decided else fresh:
                    self._remove(key)

    def _begun(self, session: _Session, episode_start: NDArray[np.bool_] | None) -> Recall | None:
        """Return a session's memories, reset for agents whose episodes begin."""
        recall = session.recall
        nothing = None if episode_start is None else self._nothing(session.agents)
        if recall is None or nothing is None or episode_start is None:
            return recall
        begins = episode_start[:, None]
        return Recall(
            np.where(begins, nothing.memories, recall.memories),
            np.where(begins, nothing.previous_actions, recall.previous_actions),
        )

    def _get(self, key: str) -> _Session:
        self.expire()
        session = self._sessions.get(key)
        if session is None:
            raise RequestRefused(
                ErrorKind.UNKNOWN,
                f"this model has no session {key!r}: the session was ended, or was idle for {self.limits.idle_s:g} s",
            )
        return session

    def _remove(self, key: str) -> None:
        self._agents -= self._sessions.pop(key).agents


LOOK_S = 1.0
"""Seconds between checks for newer models."""
MOST_REQUESTS = 128
"""Maximum number of requests for actions in progress, lower while answers are slow (`Admission`)."""
REFUSED_S = 0.5
"""Seconds before an excess request is refused. Callers retry immediately, and refusing them immediately would take time
from answering other requests."""


@dataclass(frozen=True)
class _ModelHandler:
    """A model with its batcher and sessions."""

    model: ServedModel
    sessions: Sessions
    batcher: Batcher


class PolicyService:
    """Answers requests for models' actions while `run` is running.

    Args:
        models: the served models.
        deterministic: True to answer with the most likely actions by default, for every model.
        seed: seed of all randomness; None for a random seed.
        clock: returns the current time in seconds.
        batches: limits of each model's batcher; None for the defaults.
        sessions: limits of each model's sessions; None for the defaults.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        deterministic: bool,
        seed: int | None,
        clock: Callable[[], float],
        batches: BatchLimits | None = None,
        sessions: SessionLimits | None = None,
    ) -> None:
        seeds = np.random.SeedSequence(seed).spawn(len(models))
        self._clock = clock
        self._desks: dict[str, _ModelHandler] = {}
        for model, each in zip(models, seeds, strict=True):
            self._desks[model.name] = _ModelHandler(
                model,
                Sessions(model.nothing_recalled, clock, sessions),
                Batcher(model, deterministic or model.newest.deterministic, np.random.default_rng(each), batches),
            )
        self.tally = ServingMetrics(self._desks)
        self._admission = Admission(MOST_REQUESTS, clock, self.aim_s)
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self.ending = False
        """True once the server shuts down and refuses new requests."""

    async def run(self) -> None:
        """Answer requests and look for newer models until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_fresh([desk.model for desk in self._desks.values()], LOOK_S))
            for desk in self._desks.values():
                group.create_task(desk.batcher.run())

    async def end(self) -> None:
        """Refuse new requests, and wait until pending requests are answered."""
        self.ending = True
        await self._none_under_way.wait()

    @property
    def names(self) -> list[str]:
        """The models' names."""
        return [*self._desks]

    def loaded(self, name: str) -> LoadedModel:
        """Return a model's loaded policy.

        Raises:
            RequestRefused: if no model has this name.
        """
        return self._desk(name).model.newest

    def models(self) -> list[dict[str, Any]]:
        """Return a description of each model."""
        return [desk.model.plain() for desk in self._desks.values()]

    def model(self, name: str) -> dict[str, Any]:
        """Return a model's description.

        Raises:
            RequestRefused: if no model has this name.
        """
        return self._desk(name).model.plain()

    async def act(self, name: str, read: Callable[[BehaviorSpec], ActionRequest]) -> ActionAnswer:
        """Answer a request for actions.

        Args:
            name: the model's name.
            read: function that reads and checks the request, given the model's spec.

        Raises:
            RequestRefused: if the request does not fit, or can't be answered now.
        """
        desk = self._desk(name)
        await self._refuse_excess()
        since = self._admission.begin()
        self._none_under_way.clear()
        try:
            self._check_open()
            request = read(desk.model.newest.spec)
            with desk.sessions.turn(request) if request.session else nullcontext(_alone(desk.model)) as turn:
                answer = await desk.batcher.ask(request, turn.before)
                turn.after, turn.decided = answer.recall, True
        except RequestRefused as refusal:
            self.tally.refused(name, refusal)
            raise
        finally:
            self._admission.end(since)
            if not self._admission.under_way:
                self._none_under_way.set()
        self.tally.answered(name, request.agents, self._clock() - since)
        return answer

    async def _refuse_excess(self) -> None:
        if self._admission.full and not self.ending:
            self.tally.turned_away()
            await asyncio.sleep(REFUSED_S)
            raise RequestRefused(ErrorKind.OVERLOADED, "too many requests are in progress; try again later")

    def open_session(self, name: str, agents: int) -> str:
        """Begin a session with a model.

        Raises:
            RequestRefused: if no model has this name, or too many sessions are open.
        """
        desk = self._desk(name)
        self._check_open()
        return desk.sessions.open(agents)

    def close_session(self, name: str, key: str) -> None:
        """End a session.

        Raises:
            RequestRefused: if the model or the session does not exist.
        """
        self._desk(name).sessions.close(key)

    def _check_open(self) -> None:
        if self.ending:
            raise RequestRefused(ErrorKind.ENDING, "the server is shutting down")

    def aim_s(self) -> float:
        """Return the target response time in seconds: at least three decisions of the slowest model."""
        return max(AIM_S, 3 * max(desk.batcher.decision_s for desk in self._desks.values()))

    def _desk(self, name: str) -> _ModelHandler:
        found = self._desks.get(name)
        if found is None:
            raise RequestRefused(
                ErrorKind.UNKNOWN,
                f"unknown model {name!r}{suggest(name, self._desks)}; available: {', '.join(self._desks)}",
            )
        return found


def _alone(model: ServedModel) -> Turn:
    """Return the `Turn` of a request without a session; refuse the request if the model has a memory."""
    if model.newest.policy.memory_size:
        raise unfit(
            f"session: '{model.name}' has a memory; open a session for the agents first (in KServe's "
            "protocol: by sequence_id and sequence_start)"
        )
    return Turn(None)


# Request counts, for Prometheus.

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class ServingMetrics:
    """Counts requests and provides the counts to Prometheus.

    Args:
        models: the models by name.
    """

    def __init__(self, models: Mapping[str, _ModelHandler]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "headrace_serving_requests", "Requests for actions", ["model", "outcome"], registry=self._registry
        )
        self._agents = Counter(
            "headrace_serving_agents", "Agents in answered requests", ["model"], registry=self._registry
        )
        self._seconds = Histogram(
            "headrace_serving_seconds",
            "Seconds from reading a request to sending its response",
            ["model"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._turned_away = Counter(
            "headrace_serving_turned_away",
            "Requests refused because too many were in progress",
            registry=self._registry,
        )
        self._of: dict[str, tuple[Counter, Counter, Histogram]] = {}
        """Each model's counters, cached because looking up a counter by its labels takes as long as a decision."""
        self._registry.register(_Models(models))

    def answered(self, model: str, agents: int, seconds: float) -> None:
        """Count an answered request."""
        if model not in self._of:
            labelled = self._requests.labels(model, "answered"), self._agents.labels(model), self._seconds.labels(model)
            self._of[model] = labelled
        requests, answered, duration = self._of[model]
        requests.inc()
        answered.inc(agents)
        duration.observe(seconds)

    def refused(self, model: str, refusal: RequestRefused) -> None:
        """Count a refused request for an existing model."""
        self._requests.labels(model, refusal.why.name.lower()).inc()

    def turned_away(self) -> None:
        """Count a request that was refused because too many were in progress."""
        self._turned_away.inc()

    def text(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self._registry)


_GAUGES: dict[str, tuple[str, Callable[[_ModelHandler], float]]] = {
    "waiting": ("Waiting requests", lambda desk: len(desk.batcher)),
    "sessions": ("Open sessions", lambda desk: len(desk.sessions)),
    "model_step": ("Steps that the model was trained for", lambda desk: desk.model.newest.step),
    "model_version": ("Version: 1, plus one for each newer model", lambda desk: desk.model.newest.version),
}


class _Models:
    """Reads the models' current numbers when Prometheus collects them."""

    def __init__(self, desks: Mapping[str, _ModelHandler]) -> None:
        self._desks = desks

    def collect(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily("headrace_serving_decisions", "Calls to the policy", labels=["model"])
        for name, desk in self._desks.items():
            decisions.add_metric([name], desk.batcher.decisions)
        yield decisions
        for key, (text, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"headrace_serving_{key}", text, labels=["model"])
            for name, desk in self._desks.items():
                gauge.add_metric([name], read(desk))
            yield gauge
