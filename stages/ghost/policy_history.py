"""One behaviour in self-play: its newest policy, a window of snapshots, ratings and counters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from headrace.config import SelfPlaySettings
from headrace.queues.messages import PolicyUpdate
from headrace.stages.errors import StageError, describe_error
from headrace.stages.ghost.opponents import Candidate, OpponentSampler
from headrace.stages.plain_state import policy_from_state, policy_state

NEWEST = -1
"""Stands for the newest policy in place of a snapshot number."""


Player = int | str
"""A behaviour's player in a game: the number of a snapshot, `NEWEST`, or the name of a brain."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A past policy in the window."""

    number: int
    update: PolicyUpdate


@dataclass(slots=True)
class Record:
    """Rating and results of a snapshot or the newest policy; outlives the snapshot's time in the window."""

    rating: float
    """Elo points."""
    step: int = 0
    """Trainer step of its creation."""
    version: int = 0
    wins: int = 0
    """Games against it that the learner won."""
    draws: int = 0
    losses: int = 0
    """Games against it that the learner lost."""
    mu: float | None = None
    """With `sigma`, the rating in games between more than two teams; None before the first one."""
    sigma: float | None = None

    @property
    def games(self) -> int:
        """Games that learners have played against it."""
        return self.wins + self.draws + self.losses

    def count(self, score: float) -> None:
        """Count a game against it; `score` is the learner's: 1 won, 0.5 drawn, 0 lost."""
        if score == 0.5:
            self.draws += 1
        elif score > 0.5:
            self.wins += 1
        else:
            self.losses += 1


@dataclass(slots=True)
class Counters:
    """The counters in a `PolicyHistory`."""

    made: int = 0
    """Number of snapshots made."""
    last_save: int = 0
    """Trainer step of the last snapshot."""
    turn_began: int = 0
    """Trainer step at the start of the turn."""
    ghost_step: int = 0
    """Steps of its agents that its trainer did not learn from."""
    turn_steps: int = 0
    """Steps as an opponent in this turn."""
    turn_learned: int = 0
    """Steps as a learner in this turn, including those that its trainer has received but not yet learned from."""
    next_swap: int = 0
    """Steps in a turn at which the next swap is due."""
    done: bool = False
    """True once its trainer has reached max_steps."""


class PolicyHistory:
    """The policies of one behaviour in self-play, with their ratings and the counters of its turns.

    Args:
        name: the behaviour name.
        settings: its `self_play` block.
        sampler: chooses snapshots to play against.
        max_steps: its trainer's `max_steps`; the last policy has this many steps.

    Attributes:
        newest: the newest policy, None before the first.
        records: records by snapshot number; the newest policy's is under `NEWEST`.
        brains: records of the brains that learners meet instead of its policies, by name.
        snapshots: the window, oldest first.
        counters: the counters of its turns.
        results: (learner's newest snapshot then, opponent's behaviour, its player) → games won, drawn, lost.
    """

    def __init__(
        self, name: str, settings: SelfPlaySettings, sampler: OpponentSampler, max_steps: float = math.inf
    ) -> None:
        self.name = name
        self.settings = settings
        self.max_steps = max_steps
        self.newest: PolicyUpdate | None = None
        self.records: dict[int, Record] = {NEWEST: Record(settings.initial_elo)}
        self.brains = {brain.name: Record(settings.initial_elo) for brain in settings.brains}
        self.results: dict[tuple[int, str, Player], list[int]] = {}
        self.snapshots: list[Snapshot] = []
        self._sampler = sampler
        # A swap can't coincide with the end of a first turn that lasts for the whole run.
        turns_end = settings.team_change < max_steps
        self.counters = Counters(next_swap=self._first_swap if turns_end else settings.swap_steps)

    @property
    def newest_snapshot(self) -> int:
        """Number of the newest snapshot, -1 before the first."""
        return self.counters.made - 1

    @property
    def turn_is_over(self) -> bool:
        """True if it has learned for `team_change` steps since its turn began."""
        return self.newest is not None and self.newest.step - self.counters.turn_began > self.settings.team_change

    def record_of(self, player: Player) -> Record:
        """Return the record of a snapshot, of the newest policy, or of a brain."""
        return self.brains[player] if isinstance(player, str) else self.records[player]

    def add(self, update: PolicyUpdate) -> None:
        """Make a trainer's new policy the newest one, and a snapshot if `save_steps` have passed."""
        self.newest = update.copy()
        if not self.snapshots or update.step - self.counters.last_save > self.settings.save_steps:
            self._save()

    def rewind(self, step: int) -> None:
        """Go back to an earlier step: the newest policy gets the rating of the last snapshot before it."""
        counters, ratings = self.counters, self.records
        earlier = [record for number, record in ratings.items() if number != NEWEST and record.step <= step]
        before = max(earlier, key=lambda record: record.step, default=Record(self.settings.initial_elo))
        ratings[NEWEST] = replace(ratings[NEWEST], rating=before.rating, mu=before.mu, sigma=before.sigma)
        counters.last_save, counters.turn_began = min(counters.last_save, step), min(counters.turn_began, step)
        counters.done = False

    def begin_turn(self, learns: bool) -> None:
        """Begin another team's turn; `learns` if this behaviour is in that team."""
        counters = self.counters
        counters.turn_steps, counters.turn_learned, counters.next_swap = 0, 0, self._first_swap
        if learns and self.newest is not None:
            counters.turn_began = self.newest.step

    def count_ghost_steps(self, steps: int, in_turn: int) -> bool:
        """Count steps that no trainer learned from; returns True if its policies as an opponent are due for a swap.

        Args:
            steps: the total.
            in_turn: the steps as an opponent since the last rotation. Only these count for swaps, so late steps of the
                previous turn don't change the number of swaps in a turn.
        """
        counters = self.counters
        counters.ghost_step += steps
        counters.turn_steps += in_turn
        if counters.turn_steps < counters.next_swap:
            return False
        # Counts from the step at which the swap was due: otherwise large batches would cause fewer swaps in a turn.
        counters.next_swap += self.settings.swap_steps * (
            1 + (counters.turn_steps - counters.next_swap) // self.settings.swap_steps
        )
        return True

    def choose_opponent(self, random: np.random.Generator) -> int:
        """Draw the number of a snapshot to play against a learner, or `NEWEST`.

        Raises:
            StageError: if the sampler raises, or returns anything but a candidate's number.
        """
        if not self.snapshots or random.random() < self.settings.play_against_latest_model_ratio:
            return NEWEST
        candidates = [self._candidate(snapshot.number) for snapshot in self.snapshots]
        where = f"behaviors.{self.name}.self_play.opponents: {type(self._sampler).__name__}.choose()"
        try:
            chosen = self._sampler.choose(candidates, random)
        except Exception as error:
            raise StageError(f"{where} raised {describe_error(error)}") from error
        if chosen not in [candidate.number for candidate in candidates]:
            numbers = ", ".join(str(candidate.number) for candidate in candidates)
            raise StageError(f"{where} returned {chosen!r}; expected the number of a candidate ({numbers})")
        return int(chosen)

    def policy(self, number: int) -> PolicyUpdate:
        """The policy of a snapshot; the newest policy if the window has no such snapshot."""
        assert self.newest is not None
        return next((s.update for s in self.snapshots if s.number == number), self.newest)

    def state_dict(self) -> dict[str, Any]:
        """The whole history, with the weights of its snapshots."""
        return {
            "newest": policy_state(self.newest),
            "window": [{"number": s.number, "update": policy_state(s.update)} for s in self.snapshots],
            "records": [[number, asdict(record)] for number, record in self.records.items()],
            "brains": {name: asdict(record) for name, record in self.brains.items()},
            "results": [[*key, *counts] for key, counts in self.results.items()],
            "counters": asdict(self.counters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.newest = policy_from_state(state["newest"])
        updates = [(int(plain["number"]), policy_from_state(plain["update"])) for plain in state["window"]]
        window = [Snapshot(number, update) for number, update in updates if update is not None]
        self.snapshots = window[-self.settings.window :]
        self.records = {int(number): Record(**record) for number, record in state["records"]}
        self.brains |= {str(name): Record(**record) for name, record in state.get("brains", {}).items()}
        self.results = {
            (int(a), str(b), c if isinstance(c, str) else int(c)): [int(n) for n in counts]
            for a, b, c, *counts in state["results"]
        }
        self.counters = Counters(**state["counters"])

    @property
    def _first_swap(self) -> int:
        """Steps in a turn until the first swap is due: half of `swap_steps`.

        So no swap is due just as a turn ends, when it would be useless and would depend on timing. The formula for x
        swaps in a turn gives exactly x, even if the last batches come slightly early or late.
        """
        return (self.settings.swap_steps + 1) // 2

    def _save(self) -> None:
        assert self.newest is not None
        number, now = self.newest_snapshot + 1, self.records[NEWEST]
        snapshot = Snapshot(number, replace(self.newest, snapshot=number))
        self.snapshots = [*self.snapshots, snapshot][-self.settings.window :]
        self.records[number] = Record(
            now.rating, snapshot.update.step, snapshot.update.version, mu=now.mu, sigma=now.sigma
        )
        self.counters.made += 1
        self.counters.last_save = snapshot.update.step

    def _candidate(self, number: int) -> Candidate:
        record = self.records[number]
        return Candidate(number, record.rating, record.games, record.wins, record.draws, record.losses)


def all_teams_learn(histories: Mapping[str, PolicyHistory]) -> bool:
    """Return True if all teams learn simultaneously, with their newest policies; all histories of a run agree."""
    return any(history.settings.learning_teams == "all" for history in histories.values())
