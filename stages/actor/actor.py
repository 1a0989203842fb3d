"""The actor: environment stage and agent processor hand in hand, as the source of trajectories.

It steps, collects, and stands still when flow control says so. Policies, assignments, environment parameters, credits
and commands are given to it by its host, from outside its task; they take effect between two ticks. It knows no queue
and no channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from queues.messages import Assignment, Barrier, PolicyUpdate, TrajectoryBatch
from queues.specs import BehaviorSpec, behavior_name
from stages.actor.credit_gate import CreditGate
from stages.agent import AgentProcessor
from stages.environment.parameters import EnvironmentParameters
from stages.environment.stage import EnvironmentStage
from stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError
from stages.restarts import RestartBudget
from stages.stage import Source, StageContext

_LESSON, _TURN = 1, 2
"""Why environments begin anew in mid-play: a lesson that wants it, or another team's turn to learn."""


@dataclass(frozen=True)
class ActorPort:
    """How the actor speaks to its host. All calls return at once."""

    announce: Callable[[BehaviorSpec], None] = lambda spec: None
    """A behaviour id was seen for the first time."""
    checkpoint: Callable[[int], None] = lambda number: None
    """The actor has reached checkpoint `number`: its part may be written."""
    ended: Callable[[str], None] = lambda reason: None
    """The environments have come to their end in order: nothing more will come, and the run should end."""


class Actor(Source[TrajectoryBatch | Barrier]):
    """Steps environments and emits trajectories.

    Args:
        environment: the environment stage; started and stopped by the actor.
        processor: the agent processor.
        gate: flow control.
        port: how it speaks to its host.
        restarts: how often a broken environment may be built anew.
        resets_at_checkpoints: close half-made trajectories and reset the environments at each checkpoint, with a seed
            derived from the run's seed and the checkpoint's number, so that a resumed run equals an uninterrupted one.
        resumed_at: number of the checkpoint that the run goes on from, -1 for a fresh run.
        clock: seconds, for the restart limits.
    """

    may_block = True

    def __init__(
        self,
        environment: EnvironmentStage,
        processor: AgentProcessor,
        gate: CreditGate,
        port: ActorPort,
        restarts: RestartBudget | None = None,
        resets_at_checkpoints: bool = False,
        resumed_at: int = -1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = environment
        self._processor = processor
        self._gate = gate
        self._port = port
        self._restarts = restarts or RestartBudget(0, 0, 60.0)
        self._resets_at_checkpoints = resets_at_checkpoints
        self._resumed_at = resumed_at
        self._clock = clock
        self._context = StageContext("actor")
        self._wake = asyncio.Event()
        self._stopping = self._held = self._changed = self._over = False
        self._checkpoint: int | None = None
        self._resets_to: int | None = None
        self._stretch = (resumed_at,)
        self._parameters: EnvironmentParameters | None = None
        self._players: tuple[str, ...] = ()
        self._asked_for: tuple[str, ...] | None = None
        self._adopted: dict[str, int] = {}
        self._turns = self._played_turn = 0
        self._known: set[str] = set()
        self._names: tuple[str, ...] = ()

    # What the host calls. ------------------------------------------------------------------------------------------

    def take_policy(self, update: PolicyUpdate) -> None:
        """Act by this policy from the next decision on."""
        self._environment.update(update)
        if update.snapshot < 0:
            self._adopted[update.behavior_id] = update.version
        self._changed = True
        self._wake.set()

    def take_assignment(self, assignment: Assignment) -> None:
        """Play the next games under this assignment."""
        self._environment.lineups.assign(assignment)
        self._wake.set()

    def take_parameters(self, parameters: EnvironmentParameters) -> None:
        """Tell the environments of these; before the start, and then between two ticks."""
        if self._parameters is not None and self._parameters.reset:
            parameters = replace(parameters, reset=True)
        self._parameters = parameters
        self._wake.set()

    def take_grant(self, number: int, caps: Mapping[str, int], versions: Mapping[str, int]) -> None:
        """Credits for further steps."""
        self._gate.granted(number, caps, versions)
        self._wake.set()

    def request_checkpoint(self, number: int) -> None:
        """Put a barrier into the stream at the next tick."""
        self._checkpoint = number
        self._wake.set()

    def request_stop(self) -> None:
        """Stop stepping; what is held is emitted and the source ends (after a checkpoint that was asked for)."""
        self._stopping = True
        self._environment.request_stop()
        self._wake.set()

    # The loop. -----------------------------------------------------------------------------------------------------

    async def start(self, context: StageContext) -> None:
        """Build and reset the environments, and tell what behaviours they have."""
        self._context = context
        self._adopt_parameters()
        self._environment.start(context)
        self._processor.start(context)
        await self._begin_anew(self._stretch)
        self._announce()

    async def stop(self) -> None:
        """Close the environments."""
        closing = self._environment.stop()
        if closing is not None:
            await closing

    async def produce(self) -> AsyncIterator[TrajectoryBatch | Barrier]:
        """Yield trajectories, and a barrier for each checkpoint, until asked to stop."""
        while True:
            if self._checkpoint is not None and self._obeys():
                # Another one may be asked for while these wait for their place.
                number, self._checkpoint = self._checkpoint, None
                for item in self._take_checkpoint(number):
                    yield item
            if self._stopping and self._obeys():
                break
            if self._over:
                for batch in self._processor.close_all(truncated=True):
                    yield batch
                await self._sleep()
                continue
            if self._resets_to is not None:
                learners = self._learners(self._players)
                if self._gate.closed(self._used()[0], learners) or self._behind(learners):
                    self._ask_for(learners)
                    await self._sleep()
                    continue
                self._adopt_parameters()
                self._stretch = (self._resets_to,)
                await self._begin_anew(self._stretch)
                self._resets_to, self._held = None, True
                if self._over:
                    continue
                for batch in self._decide():
                    yield batch
            if not self._environment.lineups.ready(self._environment.specs):
                await self._sleep()
                continue
            if not self._held:
                for batch in self._decide():
                    yield batch
            reason = self._reason_to_reset() if self._obeys() else None
            if reason is not None:
                for batch in self._processor.close_all(truncated=True):
                    yield batch
                await self._reset_for(reason)
                if self._over:
                    continue
                for batch in self._decide():
                    yield batch
            used, alive = self._used()
            if self._gate.closed(used, alive) or self._behind(alive):
                if not self._held:
                    for batch in self._processor.flush():
                        yield batch
                    self._held, self._asked_for = True, None
                self._ask_for(alive)
                await self._sleep()
                continue
            if self._held:
                self._resume_stepping()
            elif not self._resets_at_checkpoints:
                self._gate.look_ahead(used, alive)
            await self._advance()
            await asyncio.sleep(0)  # let policies, credits and commands in
        for batch in self._processor.flush():
            yield batch

    def _decide(self) -> Iterable[TrajectoryBatch]:
        # A policy that comes while a batch waits for its place has not decided this tick.
        adopted, self._adopted = self._adopted, {}
        self._changed = False
        self._end_turn()
        for step in self._environment.decide():
            yield from self._processor.process(step)
        # What an older policy began is sent off: until this actor acts by a version it gets no credits for the next
        # one, so the trainer can't have run ahead by more than its window.
        for behavior_id, version in adopted.items():
            yield from self._processor.cut_older_than(behavior_id, version - 1)

    def _end_turn(self) -> None:
        """If another team learns than did, have nothing learned from what was decided in the turn before.

        The gate does not hold back behaviours that learn no more, and gives their credits back: steps that they then
        completed as learners would be beyond all caps, more of them with each turn. Each tick's decisions are taken
        after this, and its steps are completed after it: what is open now was decided before another team's turn came.
        """
        lineups = self._environment.lineups
        if self._turns != lineups.turns:
            self._turns = lineups.turns
            for behavior_id in filter(lineups.plays, self._environment.specs):
                self._processor.end_learning(behavior_id)

    def _resume_stepping(self) -> None:
        """Step again after standing still: decisions that were taken before by an older policy are taken anew."""
        self._held = False
        if self._changed:
            for step in self._environment.decide_again():
                self._processor.replace_decisions(step)
            self._adopted.clear()

    async def _advance(self) -> None:
        try:
            await self._environment.advance()
        except BrokenEnvironmentError as error:
            await self._recover(error)
        except EnvironmentEnded as end:
            self._end(end)
            return
        lost = self._environment.lost
        if lost is not None:
            dropped = self._processor.drop_environments(lost, 0)
            if dropped:
                self._context.log.warning("%d steps of half-made trajectories are dropped with it.", dropped)
        if len(self._environment.specs) > len(self._known):
            self._announce()

    async def _begin_anew(self, stretch: tuple[int, ...]) -> None:
        try:
            await self._environment.reset(self._seed(*stretch), stretch)
        except EnvironmentEnded as end:
            self._end(end)
        self._played_turn = self._environment.lineups.turns

    def _end(self, end: EnvironmentEnded) -> None:
        """The environments have ended in order: from now on nothing is done but what the host asks for."""
        self._over = True
        why = str(end)
        self._context.log.info("%s. The run ends.", why[:1].upper() + why[1:])
        self._port.ended(str(end))

    def _reason_to_reset(self) -> tuple[int, int] | None:
        """Why the environments have to begin anew now: a number for the seed, and what it is a number of."""
        if self._adopt_parameters():
            return self._environment.parameters.generation, _LESSON
        lineups = self._environment.lineups
        if self._played_turn and self._played_turn != lineups.turns:
            return lineups.current.generation, _TURN
        self._played_turn = lineups.turns  # at first no game has begun before there is a turn
        return None

    def _adopt_parameters(self) -> bool:
        """Give the parameters that came last to the environments; whether these have to begin anew for it."""
        taken, self._parameters = self._parameters, None
        if taken is not None:
            self._environment.parameters.take(taken)
        return taken is not None and taken.reset

    async def _reset_for(self, reason: tuple[int, int]) -> None:
        """Begin anew because of a lesson or a turn; its seed is kept apart from those of restarts."""
        stretch = (*self._stretch, *reason)
        try:
            await self._begin_anew(stretch)
        except BrokenEnvironmentError as error:
            await self._recover(error)

    async def _recover(self, error: BrokenEnvironmentError) -> None:
        """Build the environments anew, as often as the restart limits allow."""
        failure: BrokenEnvironmentError | None = error
        while failure is not None:
            refusal = self._restarts.refusal(self._clock())
            if refusal is not None:
                raise StageError(f"{failure}. It is not restarted again: {refusal}.") from failure
            self._restarts.spend(self._clock())
            dropped = self._processor.drop_environments(np.arange(self._environment.num_envs), 0)
            self._context.log.warning(
                "%s. Restarting it (restart %d); %d steps of half-made trajectories are dropped.",
                failure,
                self._restarts.count,
                dropped,
            )
            try:
                stretch = (self._resumed_at, self._restarts.count)
                await self._environment.restart(self._seed(*stretch), stretch)
                failure = None
            except EnvironmentEnded as end:
                self._end(end)
                return
            except BrokenEnvironmentError as again:
                failure = again

    def _obeys(self) -> bool:
        """Whether commands are followed now: deterministic runs follow them only where they stand still."""
        if not self._resets_at_checkpoints or self._held or self._over or self._resets_to is not None:
            return True
        return not self._gate.bounds(self._used()[1])

    def _take_checkpoint(self, number: int) -> list[TrajectoryBatch | Barrier]:
        items: list[TrajectoryBatch | Barrier] = []
        if self._resets_at_checkpoints and not self._over:
            # As a resumed run does: start anew with fresh credits, which come when everybody has saved his part,
            # and so under the policies and the assignment that follow from all that went before the barrier.
            self._players = tuple(n for n in self._names if self._processor.open_agents(n)) or self._players
            items += self._processor.close_all(truncated=True)
            self._asked_for = None
            self._ask_for(self._learners(self._players))
            self._resets_to = number
        elif self._stopping:
            items += self._processor.flush()
        self._port.checkpoint(number)
        items.append(Barrier(number, self._processor.source))
        return items

    async def _sleep(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def _behind(self, alive: Iterable[str]) -> bool:
        """Whether a grant came before the policy that it was made for."""
        lineups = self._environment.lineups
        return any(lineups.newest_version(name) < self._gate.needed_version(name) for name in alive)

    def _used(self) -> tuple[dict[str, int], tuple[str, ...]]:
        processor = self._processor
        used = {name: int(processor.emitted(name) + processor.pending(name)) for name in self._names}
        return used, self._learners(name for name in self._names if processor.open_agents(name))

    def _learners(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of some behaviours that are learned from now: only they need credits, and their newest policies."""
        return tuple(name for name in names if self._environment.lineups.learns(name))

    def _ask_for(self, learners: tuple[str, ...]) -> None:
        """Ask for credits while standing still, once more if others learn than those that were asked for."""
        if learners != self._asked_for:
            self._asked_for = learners
            self._gate.wait(self._used()[0], learners)

    def _announce(self) -> None:
        for behavior_id, spec in self._environment.specs.items():
            if behavior_id not in self._known:
                self._known.add(behavior_id)
                self._port.announce(spec)
        self._names = tuple(dict.fromkeys(behavior_name(i) for i in self._environment.specs))

    def _seed(self, *path: int) -> int:
        """A seed that differs for each stretch of the run between two checkpoints, and for each restart."""
        entropy = [self._context.seed, *(part + 1 for part in path)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
