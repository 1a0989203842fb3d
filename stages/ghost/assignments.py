"""Which policy each behaviour id plays with: chosen when opponents are swapped, and frozen until they are again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from queues.messages import Assignment, Matchup, PolicyUpdate
from queues.specs import behavior_name, behavior_team
from stages.ghost.league import Match
from stages.ghost.lineage import NEWEST, Lineage
from stages.ghost.serialization import plain_policy, plain_random, policy_from, restore_random


class Assignments:
    """The assignments of a run, one after the other.

    Learners always have their newest policy. Everybody else's stays what it was when it was assigned, even if its
    snapshot has left the window or it was the newest one then.

    Attributes:
        generation: number of the current assignment, 0 before the first one.

    Args:
        lineages: what each behaviour has been, by behaviour name.
        random: the source of chance in choosing opponents.
    """

    def __init__(self, lineages: Mapping[str, Lineage], random: np.random.Generator) -> None:
        self.generation = 0
        self._lineages = lineages
        self._random = random
        self._chosen: dict[str, int] = {}
        self._frozen: dict[str, PolicyUpdate] = {}

    @property
    def opponents(self) -> dict[str, int]:
        """The snapshot that each behaviour id which doesn't learn plays with, `NEWEST` for the newest policy."""
        return {behavior_id: update.snapshot for behavior_id, update in self._frozen.items()}

    def choose(self, ghosts: Iterable[str]) -> None:
        """Choose new policies for opponents, each for itself, which they have when the next assignment begins."""
        for behavior_id in ghosts:
            self._chosen[behavior_id] = self._lineages[behavior_name(behavior_id)].choose(self._random)

    def forget(self, gone: Collection[str]) -> None:
        """These behaviour ids are there no more."""
        self._chosen = {behavior_id: number for behavior_id, number in self._chosen.items() if behavior_id not in gone}

    def begin(self, players: Iterable[str], learning_team: int, changed: Iterable[str]) -> Match:
        """Begin a new assignment.

        Args:
            players: the behaviour ids that play, each of which has a policy.
            learning_team: who learns.
            changed: those who take up what was chosen for them; the others' opponents stay as they are.

        Returns:
            who meets whom.
        """
        self.generation += 1
        old, fresh, players = self._frozen, set(changed), list(players)
        self._frozen = {}
        for behavior_id in players:
            if behavior_team(behavior_id) == learning_team:
                self._chosen.pop(behavior_id, None)
            elif behavior_id in old and behavior_id not in fresh:
                self._frozen[behavior_id] = old[behavior_id]
            else:
                lineage = self._lineages[behavior_name(behavior_id)]
                self._frozen[behavior_id] = lineage.policy(self._chosen.get(behavior_id, NEWEST))
        opponents = self.opponents
        return Match(learning_team, {behavior_id: opponents.get(behavior_id, NEWEST) for behavior_id in players})

    def matchup(self, players: Iterable[str], learning_team: int) -> Matchup:
        """The assignment in force, with the policies that it names."""
        policies = []
        for behavior_id in players:
            update = self._frozen.get(behavior_id) or self._lineages[behavior_name(behavior_id)].newest
            assert update is not None, "who plays has a policy"
            policies.append(replace(update, behavior_id=behavior_id))
        assignment = Assignment(
            generation=self.generation,
            learning_team=learning_team,
            policies={update.behavior_id: (update.snapshot, update.version) for update in policies},
            opponent=next((update.snapshot for update in self._frozen.values()), NEWEST),
        )
        return Matchup(assignment, tuple(policies))

    def state_dict(self) -> dict[str, Any]:
        """What is assigned, with the frozen policies' weights, what was chosen, and the state of chance."""
        return {
            "generation": self.generation,
            "chosen": dict(self._chosen),
            "frozen": {behavior_id: plain_policy(update) for behavior_id, update in self._frozen.items()},
            "random": plain_random(self._random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.generation = int(state["generation"])
        self._chosen = {str(behavior_id): int(number) for behavior_id, number in state["chosen"].items()}
        frozen = {str(behavior_id): policy_from(plain) for behavior_id, plain in state["frozen"].items()}
        self._frozen = {behavior_id: update for behavior_id, update in frozen.items() if update is not None}
        restore_random(self._random, state["random"])
