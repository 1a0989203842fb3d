"""A model's batcher: one decision answers all waiting requests.

The batcher never waits for a batch to fill: while the policy decides for one batch, new requests form the next. So
batches grow with the load, and a single request is answered immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.pipeline.serving.action_request import ActionRequest, ErrorKind, RequestRefused
from headrace.pipeline.serving.served_models import LoadedModel, ServedModel
from headrace.queues.messages import ActionBatch, Array
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
