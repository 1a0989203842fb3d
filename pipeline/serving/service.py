"""What the policy server does, whoever asks and however: both servers, HTTP and gRPC, call this and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from headrace.config.errors import suggest
from headrace.pipeline.serving.action_request import ActionRequest, unfit
from headrace.pipeline.serving.batcher import ActionAnswer, Batcher, BatchLimits
from headrace.pipeline.serving.metrics import Tally
from headrace.pipeline.serving.refusal import ErrorKind, RequestRefused
from headrace.pipeline.serving.served_models import ServedModel, keep_fresh
from headrace.pipeline.serving.sessions import SessionLimits, Sessions, Turn
from headrace.queues.specs import BehaviorSpec

LOOK_S = 1.0
"""Seconds between two looks for newer models."""


class _Desk:
    """A model with those who ask it."""

    def __init__(self, model: ServedModel, sessions: Sessions, batcher: Batcher) -> None:
        self.model = model
        self.sessions = sessions
        self.batcher = batcher

    @property
    def decisions(self) -> int:
        return self.batcher.decisions

    def gauges(self) -> Mapping[str, tuple[str, float]]:
        return {
            "waiting": ("Requests that wait", len(self.batcher)),
            "sessions": ("Sessions that are open", len(self.sessions)),
            "model_step": ("Steps that the model had learned from", self.model.newest.step),
            "model_version": ("1, and one more for each newer model", self.model.newest.version),
        }


class PolicyService:
    """Answers requests for the actions of models; `run` has to be running.

    Args:
        models: those that are served.
        deterministic: for requests that do not say, and models that were trained otherwise.
        seed: of all chance; None for a random one.
        clock: the time in seconds.
        batches: bounds of each model's requests.
        sessions: bounds of each model's sessions.
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
        self._desks: dict[str, _Desk] = {}
        for model, each in zip(models, seeds, strict=True):
            self._desks[model.name] = _Desk(
                model,
                Sessions(model.nothing_recalled, clock, sessions),
                Batcher(model, deterministic or model.newest.deterministic, np.random.default_rng(each), batches),
            )
        self.tally = Tally(self._desks)
        self._under_way = 0
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self._ending = False

    @property
    def ending(self) -> bool:
        """True if further requests are refused."""
        return self._ending

    async def run(self) -> None:
        """Answer requests, and look for newer models, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_fresh([desk.model for desk in self._desks.values()], LOOK_S))
            for desk in self._desks.values():
                group.create_task(desk.batcher.run())

    async def end(self) -> None:
        """Refuse further requests, and wait until those under way are answered."""
        self._ending = True
        await self._none_under_way.wait()

    def models(self) -> list[dict[str, Any]]:
        """Describe the models."""
        return [desk.model.plain() for desk in self._desks.values()]

    def model(self, name: str) -> dict[str, Any]:
        """Describe a model.

        Raises:
            RequestRefused: if there is none of this name.
        """
        return self._desk(name).model.plain()

    async def act(self, name: str, read: Callable[[BehaviorSpec], ActionRequest]) -> ActionAnswer:
        """Answer a request.

        Args:
            name: of the model.
            read: reads and checks the request.

        Raises:
            RequestRefused: if it does not fit, or can't be answered now.
        """
        desk, since = self._desk(name), self._clock()
        self._under_way += 1
        self._none_under_way.clear()
        try:
            self._check_open()
            asked = read(desk.model.newest.spec)
            with desk.sessions.turn(asked) if asked.session else nullcontext(_alone(desk.model)) as turn:
                answer = await desk.batcher.ask(asked, turn.before)
                turn.after, turn.decided = answer.recall, True
        except RequestRefused as refusal:
            self.tally.refused(name, refusal)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()
        self.tally.answered(name, asked.agents, self._clock() - since)
        return answer

    def open_session(self, name: str, agents: int) -> str:
        """Begin a session with a model.

        Raises:
            RequestRefused: if there is no such model, or no room.
        """
        desk = self._desk(name)
        self._check_open()
        return desk.sessions.open(agents)

    def close_session(self, name: str, key: str) -> None:
        """End a session.

        Raises:
            RequestRefused: if there is none.
        """
        self._desk(name).sessions.close(key)

    def _check_open(self) -> None:
        if self._ending:
            raise RequestRefused(ErrorKind.ENDING, "the server ends")

    def _desk(self, name: str) -> _Desk:
        found = self._desks.get(name)
        if found is None:
            raise RequestRefused(
                ErrorKind.UNKNOWN,
                f"there is no model {name!r}{suggest(name, self._desks)}; there are: {', '.join(self._desks)}",
            )
        return found


def _alone(model: ServedModel) -> Turn:
    """Return the turn of a request without a session."""
    if model.newest.policy.memory_size:
        raise unfit(f"session: '{model.name}' remembers what it saw; open a session for the agents first")
    return Turn(None)
