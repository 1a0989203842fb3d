"""Sessions store agents' memories between requests to a model. The policy itself is stateless."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.serving.action_request import MOST_AGENTS, ActionRequest, ErrorKind, RequestRefused, unfit
from headrace.stages.policy.protocol import Recall


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
