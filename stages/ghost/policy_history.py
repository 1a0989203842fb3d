"""The history of one behaviour in self-play: its newest policy, a window of snapshots, ratings and counters.

An opponent sampler chooses a snapshot to play against. `config/opponents.py` lists the built-in samplers. A sampler
chooses only among snapshots. Before that, `play_against_latest_model_ratio` decides whether the newest policy plays
instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from headrace.config import SelfPlaySettings
from headrace.queues.messages import PolicyUpdate
from headrace.stages.errors import StageError, describe_error
from headrace.stages.plain_state import policy_from_state, policy_state


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot in the window, with its rating and results."""

    number: int
    """The snapshot's number, counted from 0; the newest snapshot has the highest number."""
    rating: float
    """The snapshot's rating, in Elo points."""
    games: int
    """Number of games that learners have played against the snapshot."""
    wins: int
    """Number of games that the learner won against the snapshot."""
    draws: int
    losses: int
    """Number of games that the learner lost against the snapshot."""

    @property
    def beaten(self) -> float:
        """Probability that the learner beats this snapshot: its mean score, smoothed by one extra win and loss."""
        return (self.wins + 0.5 * self.draws + 1.0) / (self.games + 2.0)


class OpponentSampler(Protocol):
    """Chooses opponents. Checkpoints do not save a sampler's attributes."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose a snapshot.

        Args:
            candidates: the snapshots in the window, oldest first; never empty.
            random: the only generator that the sampler may use, so equal seeds give equal runs.

        Returns:
            The number of the chosen snapshot.
        """
        ...


class UniformOpponents:
    """ML-Agents' rule: all snapshots in the window are equally likely."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Draw a snapshot uniformly."""
        return candidates[int(random.integers(len(candidates)))].number


class PrioritisedOpponents:
    """Prioritised fictitious self-play: snapshots that the learner tends to lose to are more likely.

    A snapshot that the learner beats with probability p is chosen with a probability proportional to f(p) = (1 - p) ^
    power (Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods, `f_hard`).

    Args:
        power: 0 makes all snapshots equally likely; higher values favour the hardest ones.
    """

    def __init__(self, power: float = 2.0) -> None:
        self._power = power

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Draw a snapshot with a probability proportional to f(p)."""
        # Logarithms, because with a high power all weights would underflow to 0.
        logs = self._power * np.log([1.0 - candidate.beaten for candidate in candidates])
        weights = np.exp(logs - logs.max())
        return candidates[int(random.choice(len(candidates), p=weights / weights.sum()))].number


NEWEST = -1
"""Used in place of a snapshot number for the newest policy."""


Player = int | str
"""A behaviour's player in a game: a snapshot's number, `NEWEST`, or the name of a brain."""


@dataclass(slots=True)
class Record:
    """The rating and results of a snapshot or the newest policy, kept even after the snapshot has left the window."""

    rating: float
    """Rating in Elo points."""
    step: int = 0
    """The trainer's step when the policy was created."""
    version: int = 0
    wins: int = 0
    """Number of games that the learner won against this player."""
    draws: int = 0
    losses: int = 0
    """Number of games that the learner lost against this player."""
    mu: float | None = None
    """Mean of the skill rating, with deviation `sigma`, from games between more than two teams; None before the first
    of these games."""
    sigma: float | None = None

    @property
    def games(self) -> int:
        """Number of games that learners have played against this player."""
        return self.wins + self.draws + self.losses

    def count(self, score: float) -> None:
        """Count a game against this player; `score` is 1 if the learner won, 0.5 for a draw, else 0."""
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
    """Number of snapshots made so far."""
    last_save: int = 0
    """The trainer's step at the last snapshot."""
    turn_began: int = 0
    """The trainer's step at the start of the turn."""
    ghost_step: int = 0
    """Number of steps by this behaviour's agents that its trainer did not learn from."""
    turn_steps: int = 0
    """Number of steps as an opponent in this turn."""
    turn_learned: int = 0
    """Number of steps as a learner in this turn, including those that the trainer has received but not yet learned
    from."""
    next_swap: int = 0
    """The value of `turn_steps` at which the next swap is due."""
    done: bool = False
    """True once the behaviour's trainer has reached max_steps."""


class PolicyHistory:
    """One behaviour's policies in self-play, with their ratings and the counters of its turns.

    Args:
        name: the behaviour name.
        settings: its `self_play` block.
        sampler: chooses snapshots to play against.
        max_steps: its trainer's `max_steps`, which is the step of its last policy.

    Attributes:
        newest: the newest policy; None before the first one.
        records: records, keyed by snapshot number; the newest policy's record is under `NEWEST`.
        brains: records, keyed by name, of the brains that learners may play against instead of this behaviour's
            policies.
        snapshots: the past policies that are still in the window, oldest first; each names its number.
        counters: snapshot, turn and swap counters.
        results: (learner's newest snapshot at the time, opponent's behaviour, opponent's player) → games won, drawn and
            lost.
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
        self.snapshots: list[PolicyUpdate] = []
        self._sampler = sampler
        # A swap can't coincide with the end of a first turn that lasts for the entire run.
        turns_end = settings.team_change < max_steps
        self.counters = Counters(next_swap=self._first_swap if turns_end else settings.swap_steps)

    @property
    def newest_snapshot(self) -> int:
        """Number of the newest snapshot; -1 before the first one."""
        return self.counters.made - 1

    @property
    def turn_is_over(self) -> bool:
        """True if the behaviour has learned for more than `team_change` steps since its turn began."""
        return self.newest is not None and self.newest.step - self.counters.turn_began > self.settings.team_change

    @property
    def turns_learned(self) -> float:
        """Number of steps that the trainer has learned from, in units of `team_change`."""
        return 0.0 if self.newest is None else self.newest.step / self.settings.team_change

    @property
    def all_steps(self) -> int:
        """Number of steps that the behaviour's agents have made, as learners and as opponents."""
        return self.counters.ghost_step + (0 if self.newest is None else self.newest.step)

    def record_of(self, player: Player) -> Record:
        """Return the record of a snapshot, the newest policy, or a brain."""
        return self.brains[player] if isinstance(player, str) else self.records[player]

    def add(self, update: PolicyUpdate) -> None:
        """Make a trainer's new policy the newest one, and take a snapshot of it if `save_steps` have passed."""
        self.newest = update.copy()
        if not self.snapshots or update.step - self.counters.last_save > self.settings.save_steps:
            self._save()

    def rewind(self, step: int) -> None:
        """Go back to an earlier step; the newest policy gets the rating of the last snapshot before that step."""
        counters, ratings = self.counters, self.records
        earlier = [record for number, record in ratings.items() if number != NEWEST and record.step <= step]
        before = max(earlier, key=lambda record: record.step, default=Record(self.settings.initial_elo))
        ratings[NEWEST] = replace(ratings[NEWEST], rating=before.rating, mu=before.mu, sigma=before.sigma)
        counters.last_save, counters.turn_began = min(counters.last_save, step), min(counters.turn_began, step)
        counters.done = False

    def begin_turn(self, learns: bool) -> None:
        """Begin a new turn; `learns` is true if this behaviour is in the team that learns."""
        counters = self.counters
        counters.turn_steps, counters.turn_learned, counters.next_swap = 0, 0, self._first_swap
        if learns and self.newest is not None:
            counters.turn_began = self.newest.step

    def count_ghost_steps(self, steps: int, in_turn: int) -> bool:
        """Count steps that no trainer learned from; return True if a swap of opponents is now due.

        Args:
            steps: the total number of steps.
            in_turn: the number of steps as an opponent since the last team change. Only these count towards swaps, so
                late steps from the previous turn don't change the number of swaps in a turn.
        """
        counters = self.counters
        counters.ghost_step += steps
        counters.turn_steps += in_turn
        if counters.turn_steps < counters.next_swap:
            return False
        # Counted from the step at which the swap was due: otherwise, large batches would cause fewer swaps in a turn.
        counters.next_swap += self.settings.swap_steps * (
            1 + (counters.turn_steps - counters.next_swap) // self.settings.swap_steps
        )
        return True

    def choose_opponent(self, random: np.random.Generator) -> int:
        """Choose a snapshot to play against a learner; return its number, or `NEWEST`.

        Raises:
            StageError: if the sampler raises, or returns anything but a candidate's number.
        """
        if not self.snapshots or random.random() < self.settings.play_against_latest_model_ratio:
            return NEWEST
        numbered = [(update.snapshot, self.records[update.snapshot]) for update in self.snapshots]
        candidates = [Candidate(i, r.rating, r.games, r.wins, r.draws, r.losses) for i, r in numbered]
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
        """Return a snapshot's policy, or the newest policy if the snapshot is not in the window."""
        assert self.newest is not None
        return next((update for update in self.snapshots if update.snapshot == number), self.newest)

    def state_dict(self) -> dict[str, Any]:
        """Return the entire history, including its snapshots' weights."""
        return {
            "newest": policy_state(self.newest),
            "window": [{"number": s.snapshot, "update": policy_state(s)} for s in self.snapshots],
            "records": [[number, asdict(record)] for number, record in self.records.items()],
            "brains": {name: asdict(record) for name, record in self.brains.items()},
            "results": [[*key, *counts] for key, counts in self.results.items()],
            "counters": asdict(self.counters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.newest = policy_from_state(state["newest"])
        updates = [policy_from_state(plain["update"]) for plain in state["window"]]
        self.snapshots = [update for update in updates if update is not None][-self.settings.window :]
        self.records = {int(number): Record(**record) for number, record in state["records"]}
        self.brains |= {str(name): Record(**record) for name, record in state["brains"].items()}
        self.results = {
            (int(a), str(b), c if isinstance(c, str) else int(c)): [int(n) for n in counts]
            for a, b, c, *counts in state["results"]
        }
        self.counters = Counters(**state["counters"])

    @property
    def _first_swap(self) -> int:
        """The number of steps in a turn until the first swap is due: half of `swap_steps`.

        No swap is then due just as a turn ends, when it would be useless and its occurrence would depend on timing. The
        formula for x swaps in a turn gives exactly x, even if the last batches arrive slightly early or late.
        """
        return (self.settings.swap_steps + 1) // 2

    def _save(self) -> None:
        assert self.newest is not None
        number, now = self.newest_snapshot + 1, self.records[NEWEST]
        snapshot = replace(self.newest, snapshot=number)
        self.snapshots = [*self.snapshots, snapshot][-self.settings.window :]
        self.records[number] = Record(now.rating, snapshot.step, snapshot.version, mu=now.mu, sigma=now.sigma)
        self.counters.made += 1
        self.counters.last_save = snapshot.step


def all_teams_learn(histories: Mapping[str, PolicyHistory]) -> bool:
    """Return True if all teams learn simultaneously with their newest policies; all histories agree on this."""
    return any(history.settings.learning_teams == "all" for history in histories.values())
