"""The ghost controller, which holds all of a run's self-play logic, without queues, clocks or channels.

The controller decides which team learns (or that all teams do), which snapshots the others play, and which trajectories
the trainers learn from. It also rates games. The ghost stages pass their items to the controller and carry out its
decisions.

A team is identified by its team id. A team may have several behaviours, and a behaviour may be on several teams, so
games may be symmetric (one behaviour on all teams), asymmetric (a different behaviour on each), or something in
between. `PolicyHistory` keeps a behaviour's snapshots, `Assignments` the current policies, and `SnapshotRatings` past
matches and ratings. This module keeps track of turns.

The semantics are those of ML-Agents: trainer steps drive snapshots and team changes, and ghost steps drive opponent
swaps. Known defects of ML-Agents are fixed: a match is rated once; K is explicit; a policy is never rated against
itself; each game is rated for the policies that actually played it; each opponent team has its own policy; behaviours
that have reached max_steps get no turns; and all state is in the checkpoint.

A run has a single self-play controller. Each behaviour has two stages that use it: `GhostStage` between actors and
trainer, which passes on the learning team's trajectories, and counts and drops all others as ghost steps, and
`GhostPolicies` between trainer and publisher. The stages have no state; the controller's owner saves the controller's
state once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import SelfPlaySettings
from headrace.queues.messages import Assignment, Columns, Matchup, PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.ghost.policy_history import (
    NEWEST,
    OpponentSampler,
    PolicyHistory,
    UniformOpponents,
    all_teams_learn,
)
from headrace.stages.ghost.rating import SnapshotRatings, report
from headrace.stages.plain_state import generator_state, policy_from_state, policy_state, restore_generator
from headrace.stages.stage import Stage, StageContext

log = logging.getLogger(__name__)


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

    def begin(self, players: Iterable[str], learning_team: int, changed: Iterable[str]) -> dict[str, int]:
        """Begin a new assignment.

        Args:
            players: the behaviour ids that play. Each has a policy.
            learning_team: the team that learns, unless all teams learn.
            changed: behaviour ids that switch to the policy chosen for them; other opponents keep their policies.

        Returns:
            The number of the snapshot that plays for each behaviour id.
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
        return {behavior_id: opponents.get(behavior_id, NEWEST) for behavior_id in players}

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


SWAP_TOLERANCE, SWAP_TURNS = 1.5, 20
"""Ratio between two sides' swaps in a turn above which a warning is logged (5 agents against 4 with equal `swap_steps`
exceed it), and the number of turns in which each side must have learned before that."""
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


class GhostController:
    """Controls self-play for all behaviours with a `self_play` block.

    Args:
        random: the generator used to choose opponents.
        bystanders: behaviour ids without self-play, for use in a warning; the collection may grow.
        replayed: whether games come from a recording. The recorded run's self-play has already decided what trainers
            learn from, and no agent plays under new assignments, so there is nothing to swap or rate.
    """

    def __init__(self, random: np.random.Generator, bystanders: Collection[str] = (), replayed: bool = False) -> None:
        self._bystanders = bystanders
        self._replayed = replayed
        self._last_versions: dict[str, int] = {}  # per finished trainer whose last policy has not arrived: its version
        self.histories: dict[str, PolicyHistory] = {}
        """Each behaviour's policies and counters, keyed by behaviour name."""
        self._ids: list[str] = []
        self.learning_team = -1
        """The team whose trajectories trainers learn from; -1 until a team is known."""
        self._valid_from = 0
        self._assignments = Assignments(self.histories, random)
        self._league = SnapshotRatings(self.histories)
        self._saved: dict[str, Any] = {}
        self._resumed = False
        self._resume_wait = ResumeWait()
        self._warned_of_one_team = self._warned_of_swaps = False

    @property
    def generation(self) -> int:
        """Number of the current assignment; 0 before the first one."""
        return self._assignments.generation

    @property
    def opponents(self) -> Mapping[str, int]:
        """Number of the snapshot that each opponent plays, keyed by behaviour id; -1 for the newest policy."""
        return self._assignments.opponents

    def report(self, behavior: str) -> dict[str, Any]:
        """Return the results of a behaviour's policies so far as plain data; see `league.report`."""
        return report(self.histories[behavior])

    def elo(self, behavior: str) -> float:
        """Return the rating of a behaviour's newest policy."""
        return self.histories[behavior].records[NEWEST].rating

    def add_history(
        self,
        behavior: str,
        settings: SelfPlaySettings,
        sampler: OpponentSampler | None = None,
        max_steps: float = math.inf,
    ) -> None:
        """Add a behaviour with self-play. Call this before adding its behaviour ids.

        Args:
            behavior: the behaviour name.
            settings: its `self_play` block.
            sampler: chooses the snapshots that the behaviour plays as an opponent; None makes all snapshots equally
                likely.
            max_steps: its trainer's `max_steps`.
        """
        history = self.histories[behavior] = PolicyHistory(behavior, settings, sampler or UniformOpponents(), max_steps)
        saved = self._saved.pop(behavior, None)
        if saved is not None:
            history.load_state_dict(saved)

    def add_behavior(self, behavior_id: str) -> Matchup | None:
        """Add a behaviour id. Return a matchup if the id joins the players or was the last missing id."""
        if self._resume_wait.announce(behavior_id):
            return self._resume_play()
        if behavior_id in self._ids:
            return None
        if self._resumed:
            log.warning("The checkpoint has no %s, which therefore joins self-play as a newcomer.", behavior_id)
        self._ids = sorted([*self._ids, behavior_id], key=lambda name: (behavior_team(name), name))
        if self.learning_team < 0:
            self.learning_team = behavior_team(behavior_id)
        if behavior_id not in self._players() or not self._can_play():
            return None  # the first policy to arrive brings the behaviour id into play
        return self._join([behavior_id])

    def all_announced(self) -> Matchup | None:
        """Stop waiting for behaviour ids that no environment has announced at its start.

        A resumed run continues without these ids. They get no turns. An id that appears later joins as a newcomer.

        Returns:
            A matchup if nothing else was missing.
        """
        gone = self._resume_wait.all_announced()
        if not gone:
            return None
        self._ids = [behavior_id for behavior_id in self._ids if behavior_id not in gone]
        self._assignments.forget(gone)
        return self._resume_play()

    def receive_policy(self, update: PolicyUpdate) -> tuple[list[PolicyUpdate], Matchup | None]:
        """Receive a trainer's new policy.

        Args:
            update: the policy, with the behaviour name as its behaviour id.

        Returns:
            The policy, once for each of the behaviour's learning behaviour ids, and a matchup if assignments change.
        """
        name = update.behavior_id
        history = self.histories[name]
        if self._resume_wait.receive(name, POLICY):
            assert history.newest is not None, "the saved history has a policy"
            if history.newest.version != update.version:
                history.add(update)  # otherwise, the checkpoint already includes this policy's effects
            return [], self._resume_play()
        joins = history.newest is None
        history.add(update)
        # The report alone does not end a turn: it travels separately from the policy, and the turn must not depend on
        # which of the two arrives first.
        if update.step >= history.max_steps or update.version >= self._last_versions.get(name, math.inf):
            history.counters.done = True
        self._warn_of_one_team(update)
        ids = [behavior_id for behavior_id in self._ids if behavior_name(behavior_id) == name]
        if not self._can_play():
            return [], None
        matchup = self._join(ids) if joins else self._end_turn()
        if matchup is not None:
            return [], matchup
        return [replace(update, behavior_id=i).copy() for i in ids if self._learns(i)], None

    def receive_report(self, behavior: str, done: bool, version: int = -1) -> Matchup | None:
        """Receive a trainer's report.

        Args:
            behavior: the behaviour name.
            done: whether the trainer has reached max_steps. A team whose behaviours are all done gets no more turns.
            version: version of the trainer's newest policy. A trainer counts as done once its last policy has arrived.

        Returns:
            A matchup if another team's turn begins, or if nothing else was missing in a resumed run.
        """
        history, waited_for = self.histories[behavior], behavior in self._resume_wait
        if done and not waited_for and history.newest is not None and history.newest.version < version:
            self._last_versions[behavior] = version
            return None
        became_done = done and not history.counters.done
        history.counters.done = done  # False after a resume with a larger max_steps
        if waited_for:
            self._resume_wait.receive(behavior, REPORT)
            return self._resume_play()
        return self._end_turn() if became_done and self.generation and self._can_play() else None

    def rewind(self, behavior: str, step: int) -> None:
        """Reset a behaviour to an earlier step, from which its trainer continues.

        Later snapshots are kept, because they are valid opponents.
        """
        self._last_versions.pop(behavior, None)
        self.histories[behavior].rewind(step)

    def learning_mask(self, batch: TrajectoryBatch) -> NDArray[np.bool_]:
        """Return a mask [K] of the trajectories to learn from. Learning teams made these since the last team change."""
        columns = batch.trajectories
        if self._replayed:  # the recorded generations number that run's assignments
            return np.asarray(columns["learning"])
        if not self._learns(batch.behavior_id):
            return np.zeros(batch.num_trajectories, np.bool_)
        return np.asarray(columns["learning"] & (columns["generation"] >= self._valid_from))

    def count_steps(self, batch: TrajectoryBatch, learned: NDArray[np.bool_]) -> Matchup | None:
        """Count the steps that trainers learn from, and the other steps as ghost steps.

        Args:
            batch: K trajectories.
            learned: [K] their `learning_mask`.

        Returns:
            A matchup if it is time to swap opponents.
        """
        history, columns = self.histories[batch.behavior], batch.trajectories
        if learned.any():
            history.counters.turn_learned += int(batch.lengths[learned].sum())
        ghost_steps = int(batch.lengths[~learned].sum())
        if not ghost_steps or self._replayed or all_teams_learn(self.histories):
            return None
        played = ~learned & (columns["generation"] >= self._valid_from)
        due = history.count_ghost_steps(ghost_steps, int(batch.lengths[played].sum()))
        ghosts = [i for i in self._players() if behavior_name(i) == history.name and not self._learns(i)]
        if not due or not self.generation or not self._can_play() or not ghosts:
            return None
        ending = any(learner.counters.turn_learned > learner.settings.team_change for learner in self._learners())
        if ending and self._next_team() != self.learning_team:
            return None  # the learners' next policy ends the turn: opponents drawn now would play hardly any games
        self._assignments.choose(ghosts)
        return self._assign(ghosts)

    def rate_games(self, games: Columns) -> list[tuple[str, str, float]]:
        """Rate finished games; return (behaviour name, statistic, value) for each newest policy."""
        return [] if self._replayed else self._league.rate(games)

    def state_dict(self) -> dict[str, Any]:
        """Return snapshots with weights, ratings, counters, the turn, assignments, and the generator's state."""
        histories = {name: history.state_dict() for name, history in self.histories.items()}
        return {
            "lineages": {**self._saved, **histories},
            "ids": list(self._ids),
            "learning_team": self.learning_team,
            "valid_from": self._valid_from,
            **self._assignments.state_dict(),
            "matches": self._league.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; histories that are added later get their saved states.

        Play starts once all saved behaviour ids are announced and each trainer has sent its policy and its report:
        assignments depend on all of these, and the trainers' checkpoints may be slightly newer than the controller's.
        """
        self._saved, self._resumed = dict(state["lineages"]), True
        self._ids = [str(behavior_id) for behavior_id in state["ids"]]
        trained = {name for name, saved in self._saved.items() if saved["newest"] is not None}
        self._resume_wait = ResumeWait(self._ids, trained & {*map(behavior_name, self._ids)})
        self.learning_team = int(state["learning_team"])
        self._valid_from = int(state["valid_from"])
        self._assignments.load_state_dict(state)
        self._league.load_state_dict(state["matches"])

    def _resume_play(self) -> Matchup | None:
        """Continue after a resume if no participant is missing; otherwise return None."""
        if not self._can_play():
            return None
        players, saved_players = self._players(), self._league.players(self.generation)
        newcomers = [behavior_id for behavior_id in players if behavior_id not in saved_players]
        if newcomers or len(saved_players) > len(players):
            return self._join(newcomers)
        ghosts = {behavior_id for behavior_id in players if not self._learns(behavior_id)}
        if ghosts != self.opponents.keys():  # the setting `learning_teams` was different before the resume
            return self._assign(players)
        return self._end_turn() or self._assignments.matchup(players, self.learning_team)

    def _can_play(self) -> bool:
        """Return True if all participants are present; in a new run, this means that each has a policy."""
        if self._resume_wait or not self._players():
            return False
        return self.generation > 0 or len(self._players()) == len(self._ids)

    def _next_team(self) -> int:
        """Return the team whose turn is next, or the learning team if no other team can learn."""
        teams = sorted({behavior_team(behavior_id) for behavior_id in self._players()})
        waiting = [team for team in teams if not all(self.histories[name].counters.done for name in self._names(team))]
        if not waiting and self.learning_team not in teams:
            waiting = teams  # the learning team no longer takes part, and all others are done
        later = [team for team in waiting if team > self.learning_team]
        return next(iter(later or waiting), self.learning_team)

    def _end_turn(self) -> Matchup | None:
        """Begin the next team's turn with new opponents, if this turn is over and another team can learn."""
        learners = self._learners()
        used_up = any(learner.turn_is_over for learner in learners)
        if all_teams_learn(self.histories) or not (used_up or all(learner.counters.done for learner in learners)):
            return None
        team = self._next_team()
        if team == self.learning_team:
            return None
        self._warn_of_uneven_swaps(learners, self._team(team))
        self.learning_team = team
        self._valid_from = self.generation + 1
        names = self._names(team)
        for history in self.histories.values():
            history.begin_turn(history.name in names)
        players = self._players()
        self._assignments.choose([behavior_id for behavior_id in players if not self._learns(behavior_id)])
        return self._assign(players)

    def _join(self, newcomers: Iterable[str]) -> Matchup:
        """Assign policies after behaviour ids have joined or left; this may end the turn."""
        return self._end_turn() or self._assign(newcomers)

    def _assign(self, changed: Iterable[str]) -> Matchup:
        """Begin a new assignment, in which the `changed` behaviour ids switch policies."""
        players = self._players()
        snapshots = self._assignments.begin(players, self.learning_team, changed)
        self._league.begin(self.generation, self.learning_team, snapshots)
        return self._assignments.matchup(players, self.learning_team)

    def _players(self) -> list[str]:
        """Return the behaviour ids that have a policy, in team order."""
        histories = self.histories
        return [i for i in self._ids if (name := behavior_name(i)) in histories and histories[name].newest is not None]

    def _learns(self, behavior_id: str) -> bool:
        return all_teams_learn(self.histories) or behavior_team(behavior_id) == self.learning_team

    def _learners(self) -> list[PolicyHistory]:
        return self._team(self.learning_team)

    def _team(self, team: int) -> list[PolicyHistory]:
        return [self.histories[name] for name in sorted(self._names(team))]

    def _names(self, team: int) -> set[str]:
        """Return the names of a team's behaviours that have appeared so far."""
        return {name for i in self._ids if behavior_team(i) == team and (name := behavior_name(i)) in self.histories}

    def _warn_of_one_team(self, update: PolicyUpdate) -> None:
        if not update.version or self._warned_of_one_team or len({*map(behavior_team, self._ids)}) != 1:
            return
        self._warned_of_one_team = True
        ids, others = ", ".join(self._ids), ", ".join(sorted(self._bystanders))
        if others:
            log.warning(
                "behaviors.%s.self_play: all behaviours with self_play are in one team (%s), so they have no "
                "opponent; add a self_play block to %s as well, if these are the opponents.",
                *(update.behavior_id, ids, others),
            )
            return
        log.warning(
            "behaviors.%s.self_play: the environment has only one team (%s), so its agents have no opponent; give the "
            "opponents a behaviour id with another team, such as %s?team=%d.",
            *(update.behavior_id, ids, update.behavior_id, self.learning_team + 1),
        )

    def _warn_of_uneven_swaps(self, learners: list[PolicyHistory], others: list[PolicyHistory]) -> None:
        """Warn, once per run, if one of two sides meets far more opponents in its turn than the other side does.

        For x swaps in the other side's turn, a behaviour's `swap_steps` must be (its agents / their agents) × (their
        `team_change` / x), as in ML-Agents. The ratio of the agents is that of all steps since the run began. It is
        known well enough after `SWAP_TURNS` turns, when the steps in flight no longer matter. In a side with several
        behaviours, only the behaviour that reaches its `team_change` first counts, because it ends the turn.
        """
        if self._warned_of_swaps or not learners or any(history in learners for history in others):
            return
        me, other = (max(side, key=lambda history: history.turns_learned) for side in (learners, others))
        if min(me.turns_learned, other.turns_learned) < SWAP_TURNS:
            return
        steps, their_steps = me.all_steps, other.all_steps
        swaps = their_steps / steps * me.settings.team_change / other.settings.swap_steps
        their_swaps = steps / their_steps * other.settings.team_change / me.settings.swap_steps
        if max(swaps, their_swaps) <= SWAP_TOLERANCE * min(swaps, their_swaps):
            return
        self._warned_of_swaps = True
        log.warning(
            "Teams of unequal size: %s makes %.2f steps for each step of %s. With these swap_steps, %s meets new "
            "opponents %.3g times per turn, and %s %.3g times. For equal numbers, set "
            "behaviors.%s.self_play.swap_steps to %d.",
            *(other.name, their_steps / steps, me.name, me.name, swaps, other.name, their_swaps, me.name),
            max(1, round(me.settings.swap_steps * their_swaps / swaps)),
        )


class GhostStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Passes on the trajectories to learn from, counts ghost steps, rates games and swaps opponents.

    Args:
        controller: the controller, shared by all behaviours.
        publish: called immediately with each new matchup.
    """

    def __init__(self, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._controller = controller
        self._publish = publish
        self._context = StageContext("ghost")

    def start(self, context: StageContext) -> None:
        """Store the context, which provides the statistics."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Yield the trajectories to learn from."""
        for behavior, statistic, value in self._controller.rate_games(item.games):
            self._context.statistics.add(behavior, statistic, value)
        keep = self._controller.learning_mask(item)
        if keep.any():
            yield item if keep.all() else item.select(keep)
        matchup = self._controller.count_steps(item, keep)
        if matchup is not None:
            self._publish(matchup)


class GhostPolicies(Stage[PolicyUpdate, PolicyUpdate]):
    """Receives the trainer's policies, takes snapshots, changes teams, and addresses policies to the learning team."""

    def __init__(self, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._controller = controller
        self._publish = publish

    def process(self, item: PolicyUpdate) -> Iterator[PolicyUpdate]:
        """Yield the policy once per learning behaviour id; publish a matchup if assignments change."""
        updates, matchup = self._controller.receive_policy(item)
        if matchup is not None:
            self._publish(matchup)
        yield from updates
