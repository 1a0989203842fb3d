"""The ghost controller: the whole of self-play's bookkeeping for a run, without queues, clocks or channels.

It decides which team learns, which snapshots the others play with, which trajectories are learned from, and what a
game's result does to the ratings. The ghost stages feed it and carry out what it says.

Teams are team ids. A team may hold several behaviours and a behaviour several teams, so games may be symmetric (one
behaviour on all teams), asymmetric (another one on each), or something in between. What a behaviour has been is its
`Lineage`; which policies play now stands in `Assignments`; who met whom is the `League`'s affair; what is here are
turns.

Semantics are ML-Agents' (trainer steps drive snapshots and team changes, ghost steps drive opponent swaps), with its
known defects mended: one rating per match, an explicit K, no rating against oneself, each game rated against what it
was really played against, each opponent team with a policy of its own, no turns for those who have had all their steps,
and everything in the checkpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config import SelfPlaySettings
from queues.messages import Columns, Matchup, PolicyUpdate, TrajectoryBatch
from queues.specs import behavior_name, behavior_team
from stages.ghost.assignments import Assignments
from stages.ghost.league import League, report
from stages.ghost.lineage import NEWEST, Lineage
from stages.ghost.opponents import OpponentSampler, Uniform
from stages.ghost.resume_wait import POLICY, REPORT, RollCall
from stages.ghost.swap_balance import Pace

log = logging.getLogger(__name__)


class GhostController:
    """Self-play of all behaviours that have it.

    Args:
        random: the source of chance in choosing opponents.
        bystanders: behaviour ids without self-play, which may become more: a warning tells them from nobody.
    """

    def __init__(self, random: np.random.Generator, bystanders: Collection[str] = ()) -> None:
        self._bystanders = bystanders
        self._last_versions: dict[str, int] = {}  # of trainers that are done but for this policy on its way
        self._lineages: dict[str, Lineage] = {}
        self._ids: list[str] = []
        self._learning_team = -1
        self._valid_from = 0
        self._assignments = Assignments(self._lineages, random)
        self._league = League(self._lineages)
        self._pace = Pace()
        self._saved: dict[str, Any] = {}
        self._awaited = RollCall()
        self._warned_of_one_team = False

    # What can be asked. --------------------------------------------------------------------------------------------

    @property
    def learning_team(self) -> int:
        """The team whose trajectories are learned from, -1 before the first one is known."""
        return self._learning_team

    @property
    def generation(self) -> int:
        """Number of the current assignment, 0 before the first one."""
        return self._assignments.generation

    @property
    def opponents(self) -> Mapping[str, int]:
        """The snapshot that each behaviour id of another team plays with, -1 for the newest policy."""
        return self._assignments.opponents

    @property
    def lineages(self) -> Mapping[str, Lineage]:
        """What each behaviour has been, by behaviour name."""
        return self._lineages

    def report(self, behavior: str) -> dict[str, Any]:
        """How a behaviour's policies have done so far, as plain data; see `league.report`."""
        return report(self._lineages[behavior])

    def elo(self, behavior: str) -> float:
        """Rating of a behaviour's newest policy."""
        return self._lineages[behavior].records[NEWEST].rating

    # Who takes part. -----------------------------------------------------------------------------------------------

    def add_lineage(
        self,
        behavior: str,
        settings: SelfPlaySettings,
        sampler: OpponentSampler | None = None,
        max_steps: float = math.inf,
    ) -> None:
        """A behaviour with self-play will take part; to be told before its behaviour ids.

        Args:
            behavior: the behaviour name.
            settings: its `self_play` block.
            sampler: chooses the snapshots that it plays with as an opponent; each is as likely as the others if None.
            max_steps: of its trainer.
        """
        lineage = self._lineages[behavior] = Lineage(behavior, settings, sampler or Uniform(), max_steps)
        saved = self._saved.pop(behavior, None)
        if saved is not None:
            lineage.load_state_dict(saved)

    def add_behavior(self, behavior_id: str) -> Matchup | None:
        """A behaviour id has appeared; returns a matchup if it can join those who play, or was all they waited for."""
        if self._awaited.meet(behavior_id):
            return self._take_up()
        if behavior_id in self._ids:
            return None
        self._ids = sorted([*self._ids, behavior_id], key=lambda known: (behavior_team(known), known))
        if self._learning_team < 0:
            self._learning_team = behavior_team(behavior_id)
        if behavior_id not in self._players() or not self._can_play():
            return None  # a policy brings everybody into play
        return self._join([behavior_id])

    def all_announced(self) -> Matchup | None:
        """The environments have announced all that they begin with; returns a matchup if play waited for that alone.

        A resumed run goes on without those that took part before and are not among them: they get no turns, and should
        they appear later, they join like newcomers.
        """
        gone = self._awaited.end()
        if not gone:
            return None
        self._ids = [behavior_id for behavior_id in self._ids if behavior_id not in gone]
        self._assignments.forget(gone)
        return self._take_up()

    # Policies. -----------------------------------------------------------------------------------------------------

    def take_policy(self, update: PolicyUpdate) -> tuple[list[PolicyUpdate], Matchup | None]:
        """A trainer has a new policy.

        Args:
            update: the policy, under its behaviour name.

        Returns:
            what to publish: the policy, addressed to the learning team, and a matchup if who plays whom changes.
        """
        name = update.behavior_id
        lineage = self._lineages[name]
        if self._awaited.hear(name, POLICY):
            assert lineage.newest is not None, "it was saved with one"
            if lineage.newest.version != update.version:
                lineage.take(update)  # else what it brings about was brought about before the checkpoint
            return [], self._take_up()
        joins = lineage.newest is None
        lineage.take(update)
        # Not only when its trainer says so, in a message that goes another way: whose turn it is would be a matter of
        # which of the two came first.
        if update.step >= lineage.max_steps or update.version >= self._last_versions.get(name, math.inf):
            lineage.done = True
        self._warn_of_one_team(update)
        ids = [behavior_id for behavior_id in self._ids if behavior_name(behavior_id) == name]
        if not self._can_play():
            return [], None
        if joins:
            return [], self._join(ids)
        if self._turn_is_over() and self._rotate():
            return [], self._current()
        return [replace(update, behavior_id=i).copy() for i in ids if self._learns(i)], None

    def hear_trainer(self, behavior: str, done: bool, version: int = -1) -> Matchup | None:
        """A trainer has reported.

        Args:
            behavior: the behaviour name.
            done: whether it has reached max_steps. Its team gets no more turns, if that holds of all its behaviours.
            version: of its newest policy, which may be still on its way; it is waited for.

        Returns:
            a matchup if it is another team's turn now, or if this was the last word that a resumed run waited for.
        """
        lineage = self._lineages[behavior]
        if done and behavior not in self._awaited and lineage.newest is not None and lineage.newest.version < version:
            self._last_versions[behavior] = version
            return None
        news = done and not lineage.done
        lineage.done = done  # it may have been done before a resume with more steps
        if behavior in self._awaited:
            self._awaited.hear(behavior, REPORT)
            return self._take_up()
        if not news or not self.generation or not self._can_play() or not self._turn_is_over() or not self._rotate():
            return None
        return self._current()

    # Trajectories and games. ---------------------------------------------------------------------------------------

    def judge(self, batch: TrajectoryBatch) -> NDArray[np.bool_]:
        """Which trajectories [K] are learned from: those that the learning team played since the last rotation."""
        columns = batch.trajectories
        if behavior_team(batch.behavior_id) != self._learning_team:
            return np.zeros(batch.num_trajectories, np.bool_)
        return np.asarray(columns["learning"] & (columns["generation"] >= self._valid_from))

    def count(self, batch: TrajectoryBatch, learned: NDArray[np.bool_]) -> Matchup | None:
        """Count what was learned from and what was turned away.

        Args:
            batch: trajectories.
            learned: [K] what `judge` said of them.

        Returns:
            a matchup if it is time to swap opponents.
        """
        lineage, columns = self._lineages[batch.behavior], batch.trajectories
        if learned.any():
            lineage.count_learned(int(batch.lengths[learned].sum()))
        away = int(batch.lengths[~learned].sum())
        if not away:
            return None
        played = ~learned & (columns["generation"] >= self._valid_from)
        due = lineage.count_ghost_steps(away, int(batch.lengths[played].sum()))
        self._pace.check(self._team(behavior_team(batch.behavior_id)), self._learners())
        ghosts = [i for i in self._players() if behavior_name(i) == lineage.name and not self._learns(i)]
        if not due or not self.generation or not self._can_play() or not ghosts or self._turn_is_ending():
            return None
        self._assignments.choose(ghosts)
        return self._assign(ghosts)

    def rate(self, games: Columns) -> list[tuple[str, str, float]]:
        """Games have ended; returns (behaviour name, statistic, value) for each rating of a newest policy it moved."""
        return self._league.rate(games)

    # Checkpoints. --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything: snapshots with their weights, ratings, counters, whose turn it is, and the state of chance."""
        known = {name: lineage.state_dict() for name, lineage in self._lineages.items()}
        return {
            "lineages": {**self._saved, **known},
            "ids": list(self._ids),
            "learning_team": self._learning_team,
            "valid_from": self._valid_from,
            **self._assignments.state_dict(),
            "matches": self._league.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; lineages are added afterwards and take up what was theirs.

        Nothing is published before all their behaviour ids have been announced, and all their trainers have said where
        they stand, as their checkpoints may be a little ahead of this one: who plays whom follows from all of them.
        """
        self._saved = dict(state["lineages"])
        self._ids = [str(behavior_id) for behavior_id in state["ids"]]
        trained = {name for name, saved in self._saved.items() if saved["newest"] is not None}
        self._awaited = RollCall(self._ids, trained & {*map(behavior_name, self._ids)})
        self._learning_team = int(state["learning_team"])
        self._valid_from = int(state["valid_from"])
        self._assignments.load_state_dict(state)
        self._league.load_state_dict(state["matches"])

    # Turns. --------------------------------------------------------------------------------------------------------

    def _take_up(self) -> Matchup | None:
        """One of those that a resumed run waits for is there; when all are, play goes on."""
        if not self._can_play():
            return None
        players, known = self._players(), self._league.players(self.generation)
        strangers = [behavior_id for behavior_id in players if behavior_id not in known]
        if strangers or len(known) > len(players):
            return self._join(strangers)
        if self._turn_is_over():
            self._rotate()
        return self._current()

    def _can_play(self) -> bool:
        """Whether everybody is there: at the start all need a policy, and after a resume all who were there before."""
        if self._awaited or not self._players():
            return False
        return self.generation > 0 or len(self._players()) == len(self._ids)

    def _turn_is_over(self) -> bool:
        """Whether the learning team has learned enough for now, or for ever."""
        learners = self._learners()
        return any(learner.turn_is_over for learner in learners) or all(learner.done for learner in learners)

    def _turn_is_ending(self) -> bool:
        """Whether the learners' next policy brings another team's turn: who was drawn now would hardly be met."""
        had_all = any(learner.turn_learned > learner.settings.team_change for learner in self._learners())
        return had_all and self._next_team() != self._learning_team

    def _next_team(self) -> int:
        """The team whose turn comes next; the one that learns if there is no other one that can."""
        teams = sorted({behavior_team(behavior_id) for behavior_id in self._players()})
        waiting = [team for team in teams if not all(self._lineages[name].done for name in self._names(team))]
        if not waiting and self._learning_team not in teams:
            waiting = teams  # a team that is gone learns no more, even if all others have had their steps
        later = [team for team in waiting if team > self._learning_team]
        return next(iter(later or waiting), self._learning_team)

    def _rotate(self) -> bool:
        """The next team learns, with new opponents; false if there is no other one that can."""
        team = self._next_team()
        if team == self._learning_team:
            return False
        self._learning_team = team
        self._valid_from = self.generation + 1
        learners = self._names(team)
        for lineage in self._lineages.values():
            lineage.begin_turn(lineage.name in learners)
        players = self._players()
        self._assignments.choose([behavior_id for behavior_id in players if not self._learns(behavior_id)])
        self._begin(players)
        return True

    def _join(self, newcomers: Iterable[str]) -> Matchup:
        """Others come into play, or leave; the turn may end with it, if those who learned have no more of theirs."""
        if self._turn_is_over() and self._rotate():
            return self._current()
        return self._assign(newcomers)

    def _assign(self, changed: Iterable[str]) -> Matchup:
        self._begin(changed)
        return self._current()

    def _begin(self, changed: Iterable[str]) -> None:
        """Begin a new assignment, in which these play with something else than before."""
        match = self._assignments.begin(self._players(), self._learning_team, changed)
        self._league.begin(self.generation, match)

    def _current(self) -> Matchup:
        return self._assignments.matchup(self._players(), self._learning_team)

    def _players(self) -> list[str]:
        """The behaviour ids that there is a policy for, by team."""
        lineages = self._lineages
        return [i for i in self._ids if (name := behavior_name(i)) in lineages and lineages[name].newest is not None]

    def _learns(self, behavior_id: str) -> bool:
        return behavior_team(behavior_id) == self._learning_team

    def _learners(self) -> list[Lineage]:
        return self._team(self._learning_team)

    def _team(self, team: int) -> list[Lineage]:
        return [self._lineages[name] for name in sorted(self._names(team))]

    def _names(self, team: int) -> set[str]:
        """The behaviours of a team, as far as they have appeared."""
        return {name for i in self._ids if behavior_team(i) == team and (name := behavior_name(i)) in self._lineages}

    def _warn_of_one_team(self, update: PolicyUpdate) -> None:
        if not update.version or self._warned_of_one_team or len({*map(behavior_team, self._ids)}) != 1:
            return
        self._warned_of_one_team = True
        known, others = ", ".join(self._ids), ", ".join(sorted(self._bystanders))
        if others:
            log.warning(
                "behaviors.%s.self_play: all that have self_play are of one team (%s), so there is nobody to play "
                "against; give %s a self_play block too, if that is whom they play.",
                *(update.behavior_id, known, others),
            )
            return
        log.warning(
            "behaviors.%s.self_play: the environment has one team only (%s), so there is nobody to play against; "
            "give the others' agents a behaviour id with another team, such as %s?team=%d.",
            *(update.behavior_id, known, update.behavior_id, self._learning_team + 1),
        )
