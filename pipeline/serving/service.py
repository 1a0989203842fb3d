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
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from headrace.config.errors import suggest
from headrace.pipeline.serving.action_request import (
    MOST_AGENTS,
    MOST_ID,
    ActionRequest,
    ErrorKind,
    RequestRefused,
    unfit,
)
from headrace.pipeline.serving.served_models import LoadedModel, ServedModel, keep_fresh
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError, describe_error
from headrace.stages.policy.protocol import Decision, Recall

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServingLimits:
    """Limits of a policy server."""

    requests: int = 128
    """Maximum number of requests for actions in progress. More would only wait longer."""
    refused_s: float = 0.5
    """Seconds before an excess request is refused. Callers retry immediately, and refusing them immediately would take
    time from answering other requests."""
    patience_s: float = 5.0
    """Seconds within which a request is answered or refused."""
    decided_agents: int = 4096
    """Maximum number of agents in one decision."""
    sessions: int = 10_000
    """Maximum number of each model's sessions."""
    session_agents: int = 100_000
    """Maximum number of agents, summed over a model's sessions."""
    idle_s: float = 600.0
    """Seconds without use after which a session ends."""
    refresh_s: float = 1.0
    """Seconds between checks for newer models."""


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
        limits: the server's limits.

    Attributes:
        decisions: number of calls to the policy so far.
    """

    def __init__(
        self,
        model: ServedModel,
        deterministic: bool,
        random: np.random.Generator,
        limits: ServingLimits,
    ) -> None:
        self._model = model
        self._deterministic = deterministic
        self._random = random
        self._limits = limits
        self._waiting: deque[_WaitingRequest] = deque()
        self._news = asyncio.Event()
        self._thread: ThreadPoolExecutor | None = None
        self.decisions = 0

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    async def ask(self, request: ActionRequest, recall: Recall | None) -> ActionAnswer:
        """Answer a request; the request is dropped if its caller is cancelled.

        Args:
            request: the request.
            recall: the agents' memories; None for a model without memory.

        Raises:
            RequestRefused: if the decision takes too long, or the policy fails.
        """
        loop, patience_s = asyncio.get_running_loop(), self._limits.patience_s
        waiting = _WaitingRequest(request, recall, loop.create_future())
        late = RequestRefused(ErrorKind.LATE, f"no decision was made within {patience_s:g} s")
        timer = loop.call_later(patience_s, _finish, waiting, late)
        self._waiting.append(waiting)
        self._news.set()
        try:
            return await waiting.answer
        except BaseException:
            if waiting in self._waiting:  # the request was cancelled
                self._waiting.remove(waiting)
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
        while self._waiting and (not agents or agents + self._waiting[0].request.agents <= self._limits.decided_agents):
            waiting = self._waiting.popleft()
            agents += waiting.request.agents
            wish = waiting.request.deterministic
            groups.setdefault(self._deterministic if wish is None else wish, []).append(waiting)
        for deterministic, group in groups.items():
            await self._decide(loaded, group, deterministic)

    async def _decide(self, loaded: LoadedModel, group: list[_WaitingRequest], deterministic: bool) -> None:
        """Answer a group. If that fails, answer each request separately, so only the requests at fault are refused."""
        try:
            decision = await self._act(loaded, group, deterministic)
        except Exception as error:
            if len(group) > 1:
                for waiting in group:
                    await self._decide(loaded, [waiting], deterministic)
            else:
                _finish(group[0], _refusal(loaded, error))
            return
        at = 0
        for waiting in group:
            rows = slice(at, at + waiting.request.agents)
            at = rows.stop
            recall = decision.recall
            if recall is not None:
                recall = Recall(recall.memories[rows], recall.previous_actions[rows])
            actions = ActionBatch(decision.actions.continuous[rows], decision.actions.discrete[rows])
            _finish(waiting, ActionAnswer(actions, recall, loaded))

    async def _act(self, loaded: LoadedModel, group: list[_WaitingRequest], deterministic: bool) -> Decision:
        self.decisions += 1
        call = partial(
            loaded.act,
            tuple(_joined(arrays) for arrays in zip(*(waiting.request.observations for waiting in group), strict=True)),
            _masks(group),
            self._random,
            deterministic,
            _recall(group),
        )
        if loaded.is_quick(sum(waiting.request.agents for waiting in group)):
            return call()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "decisions")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _masks(group: list[_WaitingRequest]) -> Array | None:
    masks = [waiting.request.masks for waiting in group]
    width = next((array.shape[1] for array in masks if array is not None), None)
    if width is None:
        return None
    return _joined(
        [
            np.ones((waiting.request.agents, width), np.bool_) if array is None else array  # all choices are allowed
            for waiting, array in zip(group, masks, strict=True)
        ]
    )


def _recall(group: list[_WaitingRequest]) -> Recall | None:
    recalls = [waiting.recall for waiting in group if waiting.recall is not None]
    if not recalls:
        return None
    return Recall(_joined([r.memories for r in recalls]), _joined([r.previous_actions for r in recalls]))


def _finish(waiting: _WaitingRequest, result: ActionAnswer | RequestRefused) -> None:
    if waiting.answer.done():  # the caller has disconnected or was refused
        return
    if isinstance(result, ActionAnswer):
        waiting.answer.set_result(result)
    else:
        waiting.answer.set_exception(result)


def _refusal(loaded: LoadedModel, error: Exception) -> RequestRefused:
    if isinstance(error, NotFiniteError):  # the model works on zeros, so these observations are at fault
        return RequestRefused(ErrorKind.UNFIT, f"the model returns non-finite values for these observations: {error}")
    reason = describe_error(error)
    log.error("%s could not choose actions: %s", loaded.path, reason)
    log.debug("where it was raised:", exc_info=error)
    return RequestRefused(ErrorKind.FAULT, f"this is an error in the model or the server: {reason}")


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
        limits: the server's limits.
    """

    def __init__(
        self, nothing: Callable[[int], Recall | None], clock: Callable[[], float], limits: ServingLimits
    ) -> None:
        self._nothing = nothing
        self._clock = clock
        self._limits = limits
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
        if len(key) > MOST_ID:
            raise unfit(f"sequence_id: has {len(key)} characters; expected at most {MOST_ID}")
        self.expire()
        limits = self._limits
        if len(self._sessions) >= limits.sessions or self._agents + agents > limits.session_agents:
            raise RequestRefused(
                ErrorKind.FULL,
                f"there are {len(self._sessions)} sessions with {self._agents} agents in all (at most "
                f"{limits.sessions} and {limits.session_agents}); end the sessions that are no longer needed",
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
        idle = takewhile(lambda entry: now - entry[1].used >= self._limits.idle_s, self._sessions.items())
        for key in [key for key, session in idle if not session.busy]:
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
                f"this model has no session {key!r}: the session was ended, or was idle for {self._limits.idle_s:g} s",
            )
        return session

    def _remove(self, key: str) -> None:
        self._agents -= self._sessions.pop(key).agents


@dataclass(frozen=True)
class ModelHandler:
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
        limits: the server's limits; None for the defaults.

    Attributes:
        models: the models by name, each with its batcher and sessions.
        ending: True once the server shuts down and refuses new requests.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        deterministic: bool,
        seed: int | None,
        clock: Callable[[], float],
        limits: ServingLimits | None = None,
    ) -> None:
        seeds = np.random.SeedSequence(seed).spawn(len(models))
        self._clock = clock
        self._limits = limits = limits or ServingLimits()
        self.models: dict[str, ModelHandler] = {}
        for model, model_seed in zip(models, seeds, strict=True):
            self.models[model.name] = ModelHandler(
                model,
                Sessions(model.nothing_recalled, clock, limits),
                Batcher(model, deterministic or model.newest.deterministic, np.random.default_rng(model_seed), limits),
            )
        self.metrics = ServingMetrics(self.models)
        self._in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.ending = False

    async def run(self) -> None:
        """Answer requests and look for newer models until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_fresh([handler.model for handler in self.models.values()], self._limits.refresh_s))
            for handler in self.models.values():
                group.create_task(handler.batcher.run())

    async def end(self) -> None:
        """Refuse new requests, and wait until pending requests are answered."""
        self.ending = True
        log.info("Stopping: answering the requests in progress.")
        await self._idle.wait()

    def find(self, name: str) -> ModelHandler:
        """Return a model with its batcher and sessions.

        Raises:
            RequestRefused: if no model has this name.
        """
        if name not in self.models:
            raise RequestRefused(
                ErrorKind.UNKNOWN,
                f"unknown model {name!r}{suggest(name, self.models)}; available: {', '.join(self.models)}",
            )
        return self.models[name]

    async def act(self, name: str, read: Callable[[BehaviorSpec], ActionRequest]) -> ActionAnswer:
        """Answer a request for actions.

        Args:
            name: the model's name.
            read: function that reads and checks the request, given the model's spec.

        Raises:
            RequestRefused: if the request does not fit, or can't be answered now.
        """
        handler = self.find(name)
        if self._in_progress >= self._limits.requests and not self.ending:
            self.metrics.turned_away.inc()
            await asyncio.sleep(self._limits.refused_s)
            raise RequestRefused(ErrorKind.OVERLOADED, "too many requests are in progress; try again later")
        since = self._clock()
        self._in_progress += 1
        self._idle.clear()
        try:
            self.check_open()
            request = read(handler.model.newest.spec)
            with handler.sessions.turn(request) if request.session else nullcontext(_alone(handler.model)) as turn:
                answer = await handler.batcher.ask(request, turn.before)
                turn.after, turn.decided = answer.recall, True
        except RequestRefused as refusal:
            self.metrics.requests.labels(name, refusal.why.name.lower()).inc()
            raise
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()
        self.metrics.answered(name, request.agents, self._clock() - since)
        return answer

    def check_open(self) -> None:
        """Refuse a request if the server is shutting down."""
        if self.ending:
            raise RequestRefused(ErrorKind.ENDING, "the server is shutting down")


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
_GAUGES: dict[str, tuple[str, Callable[[ModelHandler], float]]] = {
    "waiting": ("Waiting requests", lambda handler: len(handler.batcher)),
    "sessions": ("Open sessions", lambda handler: len(handler.sessions)),
    "model_step": ("Steps that the model was trained for", lambda handler: handler.model.newest.step),
    "model_version": ("Version: 1, plus one for each newer model", lambda handler: handler.model.newest.version),
}


class ServingMetrics:
    """Counts requests and provides the counts to Prometheus.

    Args:
        models: the models by name.

    Attributes:
        requests: number of requests for existing models, by model and outcome.
        turned_away: number of requests that were refused because too many were in progress.
    """

    def __init__(self, models: Mapping[str, ModelHandler]) -> None:
        self._models = models
        self._registry = CollectorRegistry()
        make, histogram = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        self.requests = make("headrace_serving_requests", "Requests for actions", ["model", "outcome"])
        self.turned_away = make("headrace_serving_turned_away", "Requests refused because too many were in progress")
        self._agents = make("headrace_serving_agents", "Agents in answered requests", ["model"])
        self._seconds = histogram(
            "headrace_serving_seconds",
            "Seconds from reading a request to sending its response",
            ["model"],
            buckets=_BUCKETS,
        )
        self._of: dict[str, tuple[Counter, Counter, Histogram]] = {}
        """Each model's counters, cached because looking up a counter by its labels takes as long as a decision."""
        self._registry.register(self)
        for key, (text, read) in _GAUGES.items():
            gauge = Gauge(f"headrace_serving_{key}", text, ["model"], registry=self._registry)
            for name, handler in models.items():
                gauge.labels(name).set_function(partial(read, handler))

    def answered(self, model: str, agents: int, seconds: float) -> None:
        """Count an answered request."""
        if model not in self._of:
            labelled = self.requests.labels(model, "answered"), self._agents.labels(model), self._seconds.labels(model)
            self._of[model] = labelled
        requests, answered, duration = self._of[model]
        requests.inc()
        answered.inc(agents)
        duration.observe(seconds)

    def text(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Return the models' numbers of decisions. Called by Prometheus' client."""
        decisions = CounterMetricFamily("headrace_serving_decisions", "Calls to the policy", labels=["model"])
        for name, handler in self._models.items():
            decisions.add_metric([name], handler.batcher.decisions)
        yield decisions
