"""A league in main: its controller, the stages on its learners' routes, and its messages to actors and learners.

Main acts immediately on each policy and each result. In a deterministic run, it waits until all actors are idle, and
then handles one learner after another, so that timing has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from headrace.config.league_game import LeagueGame, league_game
from headrace.pipeline.common.daemon_threads import in_thread
from headrace.pipeline.common.graph import LEAGUE, league_seats
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control.messages import BeginAnew
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.main.shared_stage import SharedState
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.messages import Columns, Matches, PolicyUpdate, TrajectoryBatch
from headrace.stages.errors import StageError
from headrace.stages.league.controller import Freeze, LeagueController
from headrace.stages.league.match_table import MatchTable
from headrace.stages.league.pool import FOLDER, Member, Pool, packed, unpacked
from headrace.stages.league.turns import Turns
from headrace.stages.stage import Stage, StageContext
from headrace.stages.trainer.report import TrainerReport
from headrace.surroundings import shown

log = logging.getLogger(__name__)

_SHARED = {"resets", "turns", "freezes"}
"""Keys of the league's part of a checkpoint, in addition to the league's behaviour."""
SLOW_S = 10.0
"""Seconds after which a write into the pool causes a warning."""
_SLOW = "Freezing %s is taking more than %.0f s. Until the disk responds, the league freezes no policy."
_LEFT = (
    "The run is ending without freezing %s: the disk has not responded for %.0f s (pipeline.supervision.grace_s). A "
    "resumed run freezes that policy or a later one."
)


class LeaguePart(RunPart):
    """A run's leagues; if several behaviours have a league, their leagues are combined into one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        plan = run.plan
        self._config = plan.config
        self._seats = league_seats(plan.config)
        self._deterministic = plan.config.pipeline.deterministic
        self._shared: SharedState | None = None
        self._league: LeagueController | None = None
        self._game: LeagueGame | None = None
        self._learners: dict[str, str] = {}
        """Maps each learner's behaviour name to the learner's key in the settings."""
        self._newest: dict[str, PolicyUpdate] = {}
        self._sent: dict[tuple[str, int], int] = {}
        """Per learner and actor: the number of the last match table sent to the actor."""
        self._late: dict[str, int] = {}
        """Per learner: the version of a policy whose report has arrived but which has not itself arrived yet."""
        self._resets: dict[str, dict[str, Any]] = {}
        """Per learner: its last reset, as the fields of `BeginAnew`, because a restarted learner may not know it."""
        self._held_resets: list[str] | None = None
        """Learners whose reset waits until the checkpoint in progress ends; None if no checkpoint is in progress."""
        self._restored: dict[str, int] = {}
        """Per learner: the version of the policy that the checkpoint already includes."""
        self._freezes: deque[Freeze] = deque()
        """Policies to write into the pool; the first one is being written."""
        self._settled = asyncio.Event()
        """Set while no policy waits to be written."""
        self._settled.set()
        self._writing: asyncio.Task[None] | None = None
        """The task that writes the policies in `_freezes`."""
        self._turns: Turns | None = None
        """The learners' turns; None if all learn simultaneously."""
        self._waiting: dict[str, tuple[list[Columns], list[PolicyUpdate]]] = {}
        """Per learner: the games and policies that a deterministic run handles once all actors are idle."""

    # The interface that self-play also has, for a learner's route. ----------------------------------------------------

    def add(self, behavior: str) -> None:
        """Add a learner whose route is being opened."""
        if self._game is None:
            self._game = league_game(self._config)
            self._open(self._game)
        self._learners[behavior] = self._game.keys[behavior]
        self.shared.add(behavior)

    def _open(self, game: LeagueGame) -> None:
        plan = self.run.plan
        pool = Pool(behavior_folder(plan.folder.path, game.home) / FOLDER)
        random = np.random.default_rng(derive_seed(plan.seed, LEAGUE, game.home))
        self._league = controller = LeagueController(game.home, game.settings, pool, random, game.sides)
        pending = self._restore(self.run.stages.saved_state(LEAGUE) or {}, game)
        if self._turns is not None:
            self._hold(self._turns)
        for freeze in pending:
            controller.freezing.add(freeze.learner)
            self._freeze(freeze)

    def _restore(self, saved: Mapping[str, Any], game: LeagueGame) -> list[Freeze]:
        """Restore the state from a checkpoint; return the policies that were waiting to be written into the pool."""
        if saved and game.home not in saved:
            raise StageError(
                f"the league's part of the checkpoint belongs to {', '.join(saved.keys() - _SHARED)}, but should "
                f"belong to {game.home}, the first behaviour with a league: restore the order of the behaviours"
            )
        self._resets = dict(saved.get("resets", {}))
        if lengths := game.settings.turns():
            self._turns = Turns(lengths)
            self._turns.load_state_dict(saved.get("turns", self._turns.state_dict()))
        if game.home in saved:
            self.league.load_state_dict(saved[game.home])
            versions = {name: each["version"] for name, each in saved[game.home]["progress"].items()}
            self._restored |= {game.learner_name(key): version for key, version in versions.items()}
        pending = [Freeze(learner, unpacked(policy), parent) for learner, parent, policy in saved.get("freezes", ())]
        return [freeze for freeze in pending if freeze.learner in game.learners]

    def _hold(self, turns: Turns) -> None:
        """Pause the actors of all learners whose turn it is not."""
        assert self._game is not None, "it has turns"
        self.run.flow.hold([self._game.learners[key] for key in turns.waiting])

    @property
    def league(self) -> LeagueController:
        """The league's controller, which exists once the first learner has been added."""
        assert self._league is not None, "a learner is opened"
        return self._league

    def add_behavior(self, behavior_id: str) -> None:
        """Do nothing: leagues do not need to know about new teams."""

    def on_report(self, report: TrainerReport) -> None:
        """Do nothing: `reported` handles the learners' reports."""

    def elo(self, behavior: str) -> float | None:
        """Return None, because payoffs contain more information than a rating."""
        return None

    def trajectory_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between actors and trainer."""
        return LeagueStage(self, behavior)

    def policy_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between trainer and publisher."""
        return LeaguePolicies(self, behavior)

    @property
    def shared(self) -> SharedState:
        """The state that all learners' routes share, which is one part of a checkpoint."""
        if self._shared is None:
            self._shared = SharedState(LEAGUE, self.run.stages, self._state)
        return self._shared

    def checkpoint_begins(self) -> None:
        """Expect a barrier on each learner's route, and hold back resets until the checkpoint has ended."""
        self.shared.begin_checkpoint()
        self._held_resets = []

    def checkpoint_ended(self) -> None:
        """Send the resets that were decided during the checkpoint.

        If they were sent earlier, a trainer that saves its part of the checkpoint after main could include a reset,
        while main's part lacks the policy whose freeze caused that reset.
        """
        held, self._held_resets = self._held_resets or [], None
        for behavior in held:
            self.learner_ready(behavior)

    # Reports from the stages. -----------------------------------------------------------------------------------------

    def games_ended(self, behavior: str, games: Columns) -> list[tuple[str, str, float]]:
        """Count finished games; return a list of (behaviour, statistic, value)."""
        if self._deterministic:
            kept = {name: column.copy() for name, column in games.items()}
            self._waiting.setdefault(behavior, ([], []))[0].append(kept)
            return []
        return self._rate(behavior, games)

    def policy_made(self, behavior: str, update: PolicyUpdate) -> None:
        """Handle a learner's new policy."""
        if not self._deterministic:
            self._take(behavior, update)
            self._tell_all()
            return
        self._waiting.setdefault(behavior, ([], []))[1].append(update.copy())
        if self._late.get(behavior, update.version) <= update.version:
            self._late.pop(behavior, None)
            if not self._late:
                self.run.flow.resume(LEAGUE)
        if not self._newest and self._waiting.keys() >= set(self._seats):
            self.at_rest()  # actors wait until they know the players

    def reported(self, report: TrainerReport) -> None:
        """Handle a trainer's report, which may end a turn; in a deterministic run, wait for the learner's policy."""
        key = self._learners.get(report.behavior)
        if self._turns is not None and key is not None and self._turns.reported(key, report.step, report.done):
            self._hold(self._turns)
        updates = self._waiting.get(report.behavior, ([], []))[1]
        newest = updates[-1] if updates else self._newest.get(report.behavior)
        if self._deterministic and newest is not None and newest.version < report.version:
            self._late[report.behavior] = report.version
            self.run.flow.pause(LEAGUE)

    def at_rest(self) -> None:
        """Handle the pending events, and send the new match tables to the actors."""
        if self._newest or self._waiting.keys() >= set(self._seats):
            self._look()
            self._tell_all()

    def _look(self) -> None:
        """Handle the pending events of a deterministic run, one learner after the other."""
        waiting, self._waiting = self._waiting, {}
        learners = () if self._game is None else self._game.learners.values()
        for behavior in filter(waiting.__contains__, learners):
            games, updates = waiting[behavior]
            for each in games:
                for category, name, value in self._rate(behavior, each):
                    self.run.statistics.add(category, name, value)
            for update in updates:
                self._take(behavior, update)

    # Actors and learners. ---------------------------------------------------------------------------------------------

    async def learns(self, behavior: str, slot: ActorSlot) -> None:
        """Send an actor that has a learner's agents the match table and the other learners' newest policies."""
        if behavior not in self._learners or self._game is None:
            return
        for name in self._game.learners.values():
            if name != behavior and name not in slot.policies:
                await self.run.launcher.open_policies(slot, name)
                if name in self._newest:
                    slot.policies[name].put_nowait(self._newest[name])
        self._sent.pop((behavior, slot.replica), None)
        if behavior in self._newest:  # otherwise, the table is sent with the first policy
            self._tell(behavior)

    def _rate(self, behavior: str, games: Columns) -> list[tuple[str, str, float]]:
        found = self.league.rate(self._learners[behavior], games)
        return [(behavior, name, value) for _, name, value in found]

    def _take(self, behavior: str, update: PolicyUpdate) -> None:
        self._newest[behavior] = kept = update.copy()
        self.run.broadcaster.send_to_actors(kept)  # with only the behaviour name, for the actors of other learners
        known = self._restored.pop(behavior, None) == kept.version
        if known:  # the checkpoint already includes this policy's effects
            return
        freeze = self.league.note_policy(self._learners[behavior], kept)
        if freeze is not None:
            self._freeze(freeze)

    def _freeze(self, freeze: Freeze) -> None:
        if self._deterministic:  # all actors are idle
            self._frozen(freeze, self.league.write(freeze))
            return
        self._freezes.append(freeze)
        if self._settled.is_set():
            self._settled.clear()
            self._writing = self.run.tasks.start(self._freeze_all())

    async def _freeze_all(self) -> None:
        """Write policies into the pool one at a time, because each may take a second on a slow disk."""
        try:
            while self._freezes:
                written = await self._written(self._freezes[0])
                self._frozen(self._freezes.popleft(), written)
                self._tell_all()
        finally:
            self._settled.set()

    async def _written(self, freeze: Freeze) -> Member | OSError:
        """Write a policy in a thread, and warn if that takes too long."""
        slow = asyncio.get_running_loop().call_later(SLOW_S, log.warning, _SLOW, self._words(freeze), SLOW_S)
        try:
            return await in_thread("write into a pool", self.league.write, freeze)
        finally:
            slow.cancel()

    def _words(self, freeze: Freeze) -> str:
        assert self._game is not None, "it has learners"
        behavior, folder = self._game.learners[freeze.learner], shown(self.league.pool.folder)
        return f"step {freeze.update.step} of {behavior} into {folder}"

    def _frozen(self, freeze: Freeze, written: Member | OSError) -> None:
        """Handle the outcome of writing a policy, and the reset that may follow."""
        reset = self.league.frozen(freeze, written)
        if reset is None:
            return
        assert self._game is not None, "it has learners"
        behavior = self._game.learners[freeze.learner]
        weights = None if reset.weights is None else np.ascontiguousarray(reset.weights.weights, "<f4").tobytes()
        whose = "its initial" if weights is None else "another learner's"
        log.info("%s restarts at step %d with %s weights.", behavior, freeze.update.step, whose)
        # In a resumed run, main's state may be older or newer than the learner, so a plain count could fall behind.
        last = self._resets.get(behavior, {"number": 0})["number"]
        self._resets[behavior] = {"number": max(freeze.update.version, last + 1), "weights": weights}
        if self._held_resets is None:
            self.learner_ready(behavior)
        else:
            self._held_resets.append(behavior)

    def learner_ready(self, behavior: str) -> None:
        """Send a learner its last reset, if any, because a learner that replaces a lost one does not know it."""
        state = self.run.behaviors.get(behavior)
        if behavior in self._resets and state is not None and state.learner is not None:
            state.learner.control.send(BeginAnew(**self._resets[behavior]))

    def _tell_all(self) -> None:
        for behavior in self._learners:
            self._tell(behavior)

    def _tell(self, behavior: str) -> None:
        """Send a learner's match table to its actors, unless they already have it."""
        table = self.league.table(self._learners[behavior])
        if table is None:
            return
        for slot in self.run.launcher.actors.values():
            if self._seats[slot.replica] == behavior and self._sent.get((behavior, slot.replica)) != table.number:
                self._sent[behavior, slot.replica] = table.number
                slot.handle.control.send(_matches(table))

    # Checkpoints and the end. -----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all policies are written, or until the disk has been unresponsive for `grace_s`."""
        grace_s = self.run.plan.config.pipeline.supervision.grace_s
        while not self._settled.is_set():
            awaited = self._freezes[0]
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), grace_s)
            if not self._settled.is_set() and self._freezes[0] is awaited:
                log.warning(_LEFT, self._words(awaited), grace_s)
                assert self._writing is not None, "it waits for the disk"
                self._writing.cancel()
                return

    def _state(self) -> dict[str, Any]:
        self._look()
        resets = {"resets": dict(self._resets)} if self._resets else {}
        turns = {"turns": self._turns.state_dict()} if self._turns is not None else {}
        pending = [[each.learner, each.parent, packed(each.update)] for each in self._freezes]
        freezes = {"freezes": pending} if pending else {}
        return {self.league.behavior: self.league.state_dict()} | resets | turns | freezes

    def league_reports(self) -> Mapping[str, dict[str, Any]]:
        """Return the league's report; empty before the league exists."""
        if self._league is None:
            return {}
        turn = {"turn": self._turns.learner} if self._turns is not None else {}
        return {self._league.behavior: self._league.report() | turn}


def _matches(table: MatchTable) -> Matches:
    members = {number: asdict(member) for number, member in table.members.items()}
    return Matches(table.number, table.seats, table.opponents, table.weights, members)


class LeagueStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Counts the results of a learner's games. Its actors have already removed steps that the trainer ignores."""

    def __init__(self, part: LeaguePart, behavior: str) -> None:
        self._part = part
        self._behavior = behavior
        self._context = StageContext(LEAGUE)

    def start(self, context: StageContext) -> None:
        """Store the context, which provides the statistics."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Count the batch's games, and yield the batch."""
        if item.games:
            for behavior, statistic, value in self._part.games_ended(self._behavior, item.games):
                self._context.statistics.add(behavior, statistic, value)
        yield item


class LeaguePolicies(Stage[PolicyUpdate, PolicyUpdate]):
    """Passes each of a learner's new policies to the league."""

    def __init__(self, part: LeaguePart, behavior: str) -> None:
        self._part = part
        self._behavior = behavior

    def process(self, item: PolicyUpdate) -> Iterator[PolicyUpdate]:
        """Yield the policy for the learner's own actors, then pass it to the league."""
        yield item
        self._part.policy_made(self._behavior, item)
