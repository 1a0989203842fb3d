"""The ghost controller: the whole of self-play's bookkeeping, without queues, clocks or channels.

It decides which team learns, which snapshot the others play with, which trajectories are learned from, and what a
game's result does to the ratings. The ghost stage feeds it and carries out what it says.

Semantics are ML-Agents' (trainer steps drive snapshots and team changes, ghost steps drive opponent swaps), with its
known defects mended: one rating per match, an explicit K, no rating against oneself, each game rated against the
snapshot that it was really played against, and everything in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config import SelfPlaySettings
from queues.messages import Assignment, Columns, Matchup, PolicyUpdate, TrajectoryBatch
from queues.specs import behavior_team
from stages.ghost.rating import rated

NEWEST = -1
"""The snapshot number that stands for the newest policy."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A past policy in the window."""

    number: int
    update: PolicyUpdate


class GhostController:
    """Self-play of one behaviour name between teams (symmetric: all teams share one trainer).

    Args:
        settings: the behaviour's `self_play` block.
        random: the source of chance in choosing opponents.
    """

    def __init__(self, settings: SelfPlaySettings, random: np.random.Generator) -> None:
        self._settings = settings
        self._random = random
        self._ids: list[str] = []
        self._newest: PolicyUpdate | None = None
        self._playing: PolicyUpdate | None = None
        self._resumed = False
        self._snapshots: list[Snapshot] = []
        self._ratings: dict[int, float] = {NEWEST: settings.initial_elo}
        self._made = 0
        self._learning_team = -1
        self._opponent = NEWEST
        self._generation = 0
        self._valid_from = 0
        self._ghost_step = self._last_swap = 0
        self._last_save = self._last_change = 0

    @property
    def elo(self) -> float:
        """Rating of the newest policy."""
        return self._ratings[NEWEST]

    @property
    def ghost_step(self) -> int:
        """Steps that teams which were not learning have made."""
        return self._ghost_step

    @property
    def learning_team(self) -> int:
        """The team whose trajectories are learned from, -1 before the first policy."""
        return self._learning_team

    @property
    def opponent(self) -> int:
        """Number of the snapshot that the others play with, -1 for the newest policy."""
        return self._opponent

    @property
    def generation(self) -> int:
        """Number of the current assignment."""
        return self._generation

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The window, oldest first."""
        return tuple(sorted(self._snapshots, key=lambda snapshot: snapshot.number))

    def rating(self, snapshot: int) -> float:
        """Rating of a snapshot, or of the newest policy for -1."""
        return self._ratings[snapshot]

    def add_behavior(self, behavior_id: str) -> Matchup | None:
        """A team has appeared; returns a new matchup if play goes on already."""
        if behavior_id in self._ids:
            return None
        self._ids = sorted([*self._ids, behavior_id], key=behavior_team)
        if self._learning_team < 0:
            self._learning_team = behavior_team(behavior_id)
        if self._newest is None or self._resumed:
            return None  # the trainer's first policy brings everybody into play
        return self._matchup()

    def take_policy(self, update: PolicyUpdate) -> tuple[list[PolicyUpdate], Matchup | None]:
        """The trainer has a new policy.

        Returns:
            what to publish: the policy, addressed to the learning team, and a matchup if who plays whom changes.
        """
        resumed, self._resumed = self._resumed, False
        newest = self._newest
        if resumed and self._playing is not None and newest is not None and newest.version == update.version:
            return [], self._current()  # what this policy brings about was brought about before the checkpoint
        first = newest is None or resumed
        self._newest = update = update.copy()
        if not self._snapshots or update.step - self._last_save > self._settings.save_steps:
            self._save_snapshot()
        if update.step - self._last_change > self._settings.team_change and len(self._ids) > 1:
            self._rotate(update.step)
            return [], self._matchup()
        if first:  # a resumed run goes on under the assignment that it had
            return [], self._matchup() if self._playing is None else self._current()
        return [replace(update, behavior_id=i) for i in self._ids if behavior_team(i) == self._learning_team], None

    def judge(self, batch: TrajectoryBatch) -> NDArray[np.bool_]:
        """Which trajectories [K] are learned from: those that the learning team played since the last rotation."""
        columns = batch.trajectories
        if behavior_team(batch.behavior_id) != self._learning_team:
            return np.zeros(batch.num_trajectories, np.bool_)
        return np.asarray(columns["learning"] & (columns["generation"] >= self._valid_from))

    def count_ghost_steps(self, steps: int) -> Matchup | None:
        """Steps were turned away; returns a matchup if it is time to swap opponents."""
        self._ghost_step += steps
        if self._newest is None or self._ghost_step - self._last_swap <= self._settings.swap_steps:
            return None
        self._swap()
        return self._matchup()

    def rate(self, games: Columns) -> list[float]:
        """Games have ended; returns the newest policy's rating after each one that counts.

        A game between the newest policy and itself says nothing about it and does not count, nor does one from before
        the last rotation.
        """
        if not games:
            return []
        ratings = []
        for generation, opponent, outcome in zip(
            games["game_generation"], games["game_opponent"], games["game_outcome"], strict=True
        ):
            number = int(opponent)
            if number == NEWEST or generation < self._valid_from or number not in self._ratings:
                continue
            mine, theirs = rated(self.elo, self._ratings[number], float(outcome), self._settings.elo_k)
            self._ratings[NEWEST], self._ratings[number] = mine, theirs
            ratings.append(mine)
        return ratings

    def state_dict(self) -> dict[str, Any]:
        """Everything: snapshots with their weights, ratings, counters, whose turn it is, and the state of chance."""
        return {
            "ids": list(self._ids),
            "newest": _plain(self._newest) if self._newest is not None else None,
            "playing": _plain(self._playing) if self._playing is not None else None,
            "snapshots": [{"number": s.number, "update": _plain(s.update)} for s in self._snapshots],
            "ratings": [[number, rating] for number, rating in self._ratings.items()],
            "counters": {name: getattr(self, f"_{name}") for name in _COUNTERS},
            "random": _plain_random(self._random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self._ids = [str(behavior_id) for behavior_id in state["ids"]]
        self._newest = _update(state["newest"]) if state["newest"] is not None else None
        self._playing = _update(state["playing"]) if state["playing"] is not None else None
        self._resumed = True
        self._snapshots = [Snapshot(int(s["number"]), _update(s["update"])) for s in state["snapshots"]]
        self._ratings = {int(number): float(rating) for number, rating in state["ratings"]}
        for name in _COUNTERS:
            setattr(self, f"_{name}", int(state["counters"][name]))
        _restore_random(self._random, state["random"])

    def _save_snapshot(self) -> None:
        assert self._newest is not None
        snapshot = Snapshot(self._made, replace(self._newest, snapshot=self._made))
        if len(self._snapshots) < self._settings.window:
            self._snapshots.append(snapshot)
        else:
            self._snapshots[self._made % self._settings.window] = snapshot
        self._ratings[snapshot.number] = self.elo
        self._made += 1
        self._last_save = self._newest.step

    def _rotate(self, step: int) -> None:
        teams = [behavior_team(behavior_id) for behavior_id in self._ids]
        self._learning_team = teams[(teams.index(self._learning_team) + 1) % len(teams)]
        self._last_change = step
        self._swap()
        self._valid_from = self._generation + 1

    def _swap(self) -> None:
        latest = self._random.random() < self._settings.play_against_latest_model_ratio
        choice = int(self._random.integers(len(self._snapshots))) if self._snapshots else 0
        self._opponent = NEWEST if latest or not self._snapshots else self._snapshots[choice].number
        self._last_swap = self._ghost_step

    def _matchup(self) -> Matchup:
        """A new assignment. Its opponents stay as they are now until the next one, whatever becomes of the window."""
        assert self._newest is not None
        self._generation += 1
        window = {snapshot.number: snapshot.update for snapshot in self._snapshots}
        self._playing = window.get(self._opponent, self._newest)
        return self._current()

    def _current(self) -> Matchup:
        """The assignment in force, with the policies that it names."""
        assert self._newest is not None
        assert self._playing is not None
        opponent = self._playing
        policies = []
        for behavior_id in self._ids:
            learns = behavior_team(behavior_id) == self._learning_team
            policies.append(replace(self._newest if learns else opponent, behavior_id=behavior_id))
        assignment = Assignment(
            generation=self._generation,
            learning_team=self._learning_team,
            policies={update.behavior_id: (update.snapshot, update.version) for update in policies},
            opponent=opponent.snapshot,
        )
        return Matchup(assignment, tuple(policies))


_COUNTERS = (
    *("made", "learning_team", "opponent", "generation", "valid_from"),
    *("ghost_step", "last_swap", "last_save", "last_change"),
)


def _plain(update: PolicyUpdate) -> dict[str, Any]:
    plain = asdict(update)
    plain["weights"] = update.weights.copy()
    plain["layout"] = [[name, list(shape)] for name, shape in update.layout]
    return plain


def _update(plain: Mapping[str, Any]) -> PolicyUpdate:
    layout = tuple((str(name), tuple(int(s) for s in shape)) for name, shape in plain["layout"])
    return PolicyUpdate(**{**plain, "layout": layout})


def _plain_random(random: np.random.Generator) -> dict[str, Any]:
    state = random.bit_generator.state
    inner = {name: str(value) for name, value in state["state"].items()}  # 128-bit numbers: too wide for msgpack
    return {"state": inner, "has_uint32": int(state["has_uint32"]), "uinteger": int(state["uinteger"])}


def _restore_random(random: np.random.Generator, plain: Mapping[str, Any]) -> None:
    random.bit_generator.state = {
        "bit_generator": type(random.bit_generator).__name__,
        "state": {name: int(value) for name, value in plain["state"].items()},
        "has_uint32": plain["has_uint32"],
        "uinteger": plain["uinteger"],
    }
