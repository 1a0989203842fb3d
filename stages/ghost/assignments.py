"""Which policy each behaviour id plays in self-play, and what a resumed run waits for before play continues.

An assignment names a policy per behaviour id; opponents' policies are frozen until the next swap. After a resume,
self-play continues once every participant of the saved run is present again, because the learning team and the matchups
depend on all participants, but not on the order in which they arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.queues.messages import Assignment, Matchup, PolicyUpdate
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.ghost.league import Match
from headrace.stages.ghost.policy_history import NEWEST, PolicyHistory, all_teams_learn
from headrace.stages.plain_state import generator_state, policy_from_state, policy_state, restore_generator


class Assignments:
    """A run's current assignment, and the opponents chosen for the next one.

    Learners always play their newest policy. An opponent keeps its assigned policy, even after the policy's snapshot
    has left the window or the trainer has sent a newer policy.

    Attributes:
        generation: number of the current assignment; 0 before the first one.

    Args:
        histories: policy histories, keyed by behaviour name.
        random: the generator used to choose opponents.
    """

    def __init__(self, histories: Mapping[str, PolicyHistory], random: np.random.Generator) -> None:
        self.generation = 0
        self._histories = histories
        self._random = random
        self._chosen: dict[str, int] = {}
        self._frozen: dict[str, PolicyUpdate] = {}

    @property
    def opponents(self) -> dict[str, int]:
        """Number of the snapshot that each opponent plays, keyed by behaviour id; `NEWEST` for the newest policy."""
        return {behavior_id: update.snapshot for behavior_id, update in self._frozen.items()}

    def choose(self, ghosts: Iterable[str]) -> None:
        """Choose the policy that each of these opponents plays in the next assignment."""
        for behavior_id in ghosts:
            self._chosen[behavior_id] = self._histories[behavior_name(behavior_id)].choose_opponent(self._random)

    def forget(self, gone: Collection[str]) -> None:
        """Drop the choices for behaviour ids that no longer take part."""
        self._chosen = {behavior_id: number for behavior_id, number in self._chosen.items() if behavior_id not in gone}

    def begin(self, players: Iterable[str], learning_team: int, changed: Iterable[str]) -> Match:
        """Begin a new assignment.

        Args:
            players: the behaviour ids that play. Each has a policy.
            learning_team: the team that learns, unless all teams learn.
            changed: behaviour ids that switch to the policy chosen for them; other opponents keep their policies.

        Returns:
            The snapshots that play each other.
        """
        self.generation += 1
        old, fresh, players = self._frozen, set(changed), list(players)
        all_learn = all_teams_learn(self._histories)
        self._frozen = {}
        for behavior_id in players:
            if all_learn or behavior_team(behavior_id) == learning_team:
                self._chosen.pop(behavior_id, None)
            elif behavior_id in old and behavior_id not in fresh:
                self._frozen[behavior_id] = old[behavior_id]
            else:
                history = self._histories[behavior_name(behavior_id)]
                self._frozen[behavior_id] = history.policy(self._chosen.get(behavior_id, NEWEST))
        opponents = self.opponents
        return Match(learning_team, {behavior_id: opponents.get(behavior_id, NEWEST) for behavior_id in players})

    def matchup(self, players: Iterable[str], learning_team: int) -> Matchup:
        """Return the current assignment together with the policies that it names."""
        policies = []
        for behavior_id in players:
            update = self._frozen.get(behavior_id) or self._histories[behavior_name(behavior_id)].newest
            assert update is not None, "players have a policy"
            policies.append(replace(update, behavior_id=behavior_id))
        assignment = Assignment(
            generation=self.generation,
            learning_team=learning_team,
            policies={update.behavior_id: (update.snapshot, update.version) for update in policies},
            opponent=next((update.snapshot for update in self._frozen.values()), NEWEST),
            all_learn=all_teams_learn(self._histories),
        )
        return Matchup(assignment, tuple(policies))

    def state_dict(self) -> dict[str, Any]:
        """Return the assignment, the frozen policies' weights, the choices for the next one, and the random state."""
        return {
            "generation": self.generation,
            "chosen": dict(self._chosen),
            "frozen": {behavior_id: policy_state(update) for behavior_id, update in self._frozen.items()},
            "random": generator_state(self._random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.generation = int(state["generation"])
        self._chosen = {str(behavior_id): int(number) for behavior_id, number in state["chosen"].items()}
        frozen = {str(behavior_id): policy_from_state(plain) for behavior_id, plain in state["frozen"].items()}
        self._frozen = {behavior_id: update for behavior_id, update in frozen.items() if update is not None}
        restore_generator(self._random, state["random"])


log = logging.getLogger(__name__)

POLICY, REPORT = "policy", "report"
"""The two kinds of message that show a trainer's progress: its newest policy, and its report."""


class ResumeWait:
    """Tracks which trainer messages and behaviour ids a resumed run still waits for.

    Args:
        ids: the behaviour ids that took part in the saved run.
        behaviors: the names of those behaviours that had been trained.
    """

    def __init__(self, ids: Iterable[str] = (), behaviors: Iterable[str] = ()) -> None:
        self._ids = set(ids)
        self._messages = {name: {POLICY, REPORT} for name in behaviors}
        self._announced: set[str] = set()

    def __bool__(self) -> bool:
        """Return True while a message or a behaviour id is missing."""
        return bool(self._messages or self._ids)

    def __contains__(self, behavior: str) -> bool:
        """Return True while a message from this behaviour's trainer is missing."""
        return behavior in self._messages

    def receive(self, behavior: str, message: str) -> bool:
        """Record a trainer's message; return True if it was missing."""
        missing = self._messages.get(behavior, set())
        expected = message in missing
        missing.discard(message)
        if not missing:
            self._messages.pop(behavior, None)
        return expected

    def announce(self, behavior_id: str) -> bool:
        """Record that an environment has announced a behaviour id; return True if it was missing."""
        self._announced.add(behavior_name(behavior_id))
        expected = behavior_id in self._ids
        self._ids.discard(behavior_id)
        return expected

    def all_announced(self) -> frozenset[str]:
        """Stop waiting for behaviour ids that no environment has announced.

        Returns:
            The behaviour ids that were still missing.
        """
        gone, self._ids = frozenset(self._ids), set()
        self._messages = {name: missing for name, missing in self._messages.items() if name in self._announced}
        if gone:
            log.warning(
                "Self-play continues without %s, which the checkpoint contains but this run's environments do not. If "
                "this is not intended, stop the run and resume it with environments that have these behaviours and "
                "teams.",
                ", ".join(sorted(gone)),
            )
        return gone
