"""The actor runs the environment stage and the agent processor in one task, and is the source of trajectories.

The actor steps environments, collects trajectories, and pauses when flow control requires it. From outside the actor's
task, its host passes in policies, assignments, environment parameters, credits and commands, which take effect between
two ticks. The actor itself uses neither queues nor channels.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto
from functools import partial
from typing import NamedTuple

import numpy as np

from headrace.queues.messages import Assignment, Barrier, Matches, PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.activity import ACTING, ASKING, RESTING, STEPPING, WAITING
from headrace.stages.actor.credits import CreditAccount, CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.remote_policy import NoDecisionError
from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.parameters import EnvironmentParameters
from headrace.stages.environments.protocol import StepResult, maybe_await
from headrace.stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError
from headrace.stages.restarts import RestartBudget
from headrace.stages.stage import Source, StageContext

_LESSON, _TURN = 1, 2
"""Codes for the two reasons for a reset during play: a lesson that requires a reset, and a new team's turn.

The reset's seed depends on the code.
"""


class Resets:
    """Resets an actor's environments, and rebuilds them when they break.

    Args:
        environment: the environment stage.
        processor: the agent processor, which drops the unfinished trajectories of broken environments.
        restarts: the limits on rebuilding a broken environment.
        resumed_at: number of the checkpoint that the run resumes from; -1 for a fresh run.
        clock: returns the time in seconds, for the restart limits.
    """

    def __init__(
        self,
        environment: EnvironmentStage,
        processor: AgentProcessor,
        restarts: RestartBudget,
        resumed_at: int,
        clock: Callable[[], float],
    ) -> None:
        self._environment = environment
        self._processor = processor
        self._restarts = restarts
        self._resumed_at = resumed_at
        self._clock = clock
        self._context = StageContext("actor")
        self._received: EnvironmentParameters | None = None
        self._stretch: tuple[int, ...] = (resumed_at,)
        self._reset_to: tuple[int, ...] = ()
        self._played_turn = 0
        """Number of the turn in which the current games began; 0 before the first turn."""

    def start(self, context: StageContext) -> None:
        """Store the context, and pass any parameters received so far to the environments."""
        self._context = context
        self.adopt_parameters()

    def receive_parameters(self, parameters: EnvironmentParameters) -> None:
        """Store parameters until they are adopted. If earlier parameters required a reset, that reset remains due."""
        if self._received is not None and self._received.reset:
            parameters = replace(parameters, reset=True)
        self._received = parameters

    def adopt_parameters(self) -> bool:
        """Pass the newest parameters to the environments; return True if these parameters require a reset."""
        newest, self._received = self._received, None
        if newest is not None:
            self._environment.parameters.receive(newest)
        return newest is not None and newest.reset

    def due(self) -> bool:
        """Return True if the environments must be reset now. This adopts new parameters, which may require a reset."""
        if self._received is not None and self.adopt_parameters():
            self._reset_to = (*self._stretch, self._environment.parameters.generation, _LESSON)
            return True
        mappings = self._environment.mappings
        if self._played_turn and self._played_turn != mappings.turns:
            self._reset_to = (*self._stretch, mappings.current.generation, _TURN)
            return True
        self._played_turn = mappings.turns  # no game of an earlier turn is running
        return False

    def reach_checkpoint(self, number: int) -> None:
        """Record that the next stretch of the run begins at this checkpoint."""
        self._stretch = (number,)

    async def begin_segment(self) -> None:
        """Reset the environments as at the start of the run, or as at the last checkpoint."""
        await self._begin_anew(self._stretch)

    async def make(self) -> None:
        """Perform the reset that is due for a lesson or a turn, with a seed that no restart uses."""
        try:
            await self._begin_anew(self._reset_to)
        except BrokenEnvironmentError as error:
            await self.recover(error)

    async def recover(self, error: BrokenEnvironmentError) -> None:
        """Rebuild the environments, retrying until a rebuild succeeds or the restart limits are reached.

        Raises:
            StageError: if the limits forbid another restart.
        """
        failure: BrokenEnvironmentError | None = error
        while failure is not None:
            refusal = self._restarts.refusal(self._clock())
            if refusal is not None:
                again = f". It is not restarted again: {refusal}." if self._restarts.count else ""
                raise StageError(f"{failure}{again}", key=failure.key) from failure
            self._restarts.spend(self._clock())
            dropped = self._processor.drop_environments(np.arange(self._environment.num_envs))
            self._context.log.warning(
                "%s. Restarting it (restart %d); %d steps of incomplete trajectories are lost.",
                failure,
                self._restarts.count,
                dropped,
            )
            try:
                stretch = (self._resumed_at, self._restarts.count)
                await self._environment.restart(self._seed(*stretch), stretch)
                failure = None
            except BrokenEnvironmentError as again:
                failure = again

    async def _begin_anew(self, stretch: tuple[int, ...]) -> None:
        await self._environment.reset(self._seed(*stretch), stretch)
        self._played_turn = self._environment.mappings.turns

    def _seed(self, *path: int) -> int:
        """Return a seed that is unique to a stretch between two checkpoints, a reset within it, or a restart."""
        entropy = [self._context.seed, *(part + 1 for part in path)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF


Item = TrajectoryBatch | Barrier
"""What an actor emits: trajectories, and checkpoint barriers."""


class State(IntEnum):
    """The states of an actor."""

    DECIDING = auto()  # the environments have stepped: the policies decide next
    DECIDED = auto()  # the policies have decided: the environments step next
    RESET = auto()  # the environments were reset during a tick: the policies decide again
    WAITING = auto()  # the actor waits for credits, and for the policies that they were granted for
    RESET_WAITING = auto()  # the environments were reset while the actor waits: the policies decide
    CHECKPOINT = auto()  # a deterministic run at a checkpoint: once there are fresh credits, the environments are reset
    ENDED = auto()  # the environments have ended normally: only commands are followed
    STOPPED = auto()  # the last item was emitted


class Guard(Enum):
    """Conditions on transitions. In each state, the actor tests the guards in order."""

    CHECKPOINT_DUE = auto()  # a checkpoint was requested, and commands are followed here
    RESETTING_CHECKPOINT_DUE = auto()  # the same, in a run that resets its environments at each checkpoint
    STOP_DUE = auto()  # a stop was requested, and commands are followed here
    POLICY_MISSING = auto()  # a behaviour has no policy yet
    RESET_DUE = auto()  # a lesson or another team's turn requires a reset of the environments
    CREDITS_MISSING = auto()  # a behaviour is out of credits, or its policy is older than the grant requires
    ALWAYS = auto()


class Action(Enum):
    """What an actor does in a transition: it first emits items, then awaits something."""

    BARRIER = auto()  # emit the checkpoint's barrier
    CLOSING_BARRIER = auto()  # request fresh credits, close and emit all trajectories, then the barrier
    FLUSH = auto()  # emit everything that is held
    SLEEP = auto()  # wait for the host
    DECIDE = auto()  # let the policies decide; emit the trajectories that older policies began
    RESET = auto()  # close and emit all trajectories, reset the environments
    STEP = auto()  # emit closed trajectories if there are enough, step the environments
    STAND_STILL = auto()  # emit everything that is held, request credits, wait for the host
    ASK = auto()  # request credits if the behaviours that need them have changed, wait for the host
    RESUME = auto()  # let newer policies decide again, step the environments
    CHECKPOINT_RESET = auto()  # reset the environments with the checkpoint's seed
    CLOSE = auto()  # close and emit all trajectories, return all credits, wait for the host


class Effects(NamedTuple):
    """The two halves of an action: `emit` may return items to emit; `wait` is awaited after the host has taken them."""

    emit: Callable[[], Iterable[Item] | None] | None
    wait: Callable[[], Awaitable[None]] | None
    consult: Callable[[], Awaitable[bool]] | None = None
    """Awaited before both halves; if it returns False, neither half runs, and the state's guards are tested again."""


class Transition(NamedTuple):
    """The action to take if a guard holds, and the next state."""

    guard: Guard
    action: Action
    then: State


def _on_commands(state: State) -> tuple[Transition, ...]:
    """Return the transitions for the host's commands; a checkpoint requested before a stop comes first."""
    return (
        Transition(Guard.RESETTING_CHECKPOINT_DUE, Action.CLOSING_BARRIER, State.CHECKPOINT),
        Transition(Guard.CHECKPOINT_DUE, Action.BARRIER, state),
        Transition(Guard.STOP_DUE, Action.FLUSH, State.STOPPED),
    )


TRANSITIONS: dict[State, tuple[Transition, ...]] = {
    State.DECIDING: (
        *_on_commands(State.DECIDING),
        Transition(Guard.POLICY_MISSING, Action.SLEEP, State.DECIDING),
        Transition(Guard.ALWAYS, Action.DECIDE, State.DECIDED),
    ),
    State.DECIDED: (
        Transition(Guard.RESET_DUE, Action.RESET, State.RESET),
        Transition(Guard.CREDITS_MISSING, Action.STAND_STILL, State.WAITING),
        Transition(Guard.ALWAYS, Action.STEP, State.DECIDING),
    ),
    State.RESET: (Transition(Guard.ALWAYS, Action.DECIDE, State.DECIDED),),
    State.WAITING: (
        *_on_commands(State.WAITING),
        Transition(Guard.POLICY_MISSING, Action.SLEEP, State.WAITING),
        Transition(Guard.RESET_DUE, Action.RESET, State.RESET_WAITING),
        Transition(Guard.CREDITS_MISSING, Action.ASK, State.WAITING),
        Transition(Guard.ALWAYS, Action.RESUME, State.DECIDING),
    ),
    State.RESET_WAITING: (Transition(Guard.ALWAYS, Action.DECIDE, State.WAITING),),
    State.CHECKPOINT: (
        Transition(Guard.RESETTING_CHECKPOINT_DUE, Action.CLOSING_BARRIER, State.CHECKPOINT),
        Transition(Guard.STOP_DUE, Action.FLUSH, State.STOPPED),
        Transition(Guard.CREDITS_MISSING, Action.ASK, State.CHECKPOINT),
        Transition(Guard.POLICY_MISSING, Action.SLEEP, State.CHECKPOINT),
        Transition(Guard.ALWAYS, Action.CHECKPOINT_RESET, State.RESET_WAITING),
    ),
    State.ENDED: (
        Transition(Guard.CHECKPOINT_DUE, Action.BARRIER, State.ENDED),
        Transition(Guard.STOP_DUE, Action.FLUSH, State.STOPPED),
        Transition(Guard.ALWAYS, Action.CLOSE, State.ENDED),
    ),
    State.STOPPED: (),
}
"""The transitions out of each state; the actor takes the first one whose guard holds. In addition, environments that
end normally during a step or a reset lead from any state to ENDED."""

STANDS_STILL = frozenset({State.WAITING, State.RESET_WAITING, State.CHECKPOINT, State.ENDED})
"""States in which deterministic runs follow commands.

In these states, the moment at which a command arrives does not affect the run.
"""


@dataclass(frozen=True)
class ActorPort:
    """The callbacks through which an actor notifies its host. All return immediately."""

    announce: Callable[[BehaviorSpec], None] = lambda spec: None
    """Called when the environments have announced a new behaviour id, with its spec."""
    ended: Callable[[str], None] = lambda reason: None
    """Called with the reason when the environments have ended normally; the actor then only emits the data it still
    holds."""
    stopped: Callable[[], None] = lambda: None
    """Called after a requested stop, once the host has taken the last item; the actor then closes the environments."""


class Actor(Source[Item]):
    """Steps environments and emits trajectories.

    Args:
        environment: the environment stage; the actor starts and stops it.
        processor: the agent processor.
        gate: flow control.
        port: the callbacks to the host.
        restarts: the limits on rebuilding a broken environment.
        resets_at_checkpoints: whether to close incomplete trajectories and reset the environments at each checkpoint,
            with a seed derived from the run's seed and the checkpoint number. A resumed run then equals an
            uninterrupted one.
        resumed_at: number of the checkpoint that the run resumes from; -1 for a fresh run.
        clock: returns the time in seconds, for the restart limits.
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
        self._account = CreditAccount(environment, processor, gate)
        self.acting: Mapping[str, tuple[int, int]] = self._account.acting
        """Pairs (steps, version), keyed by behaviour name.

        Learning steps after the first `steps` use that version or a newer one.
        """
        self.source = processor.source
        """Id of the actor's current incarnation; see `begin_source`."""
        self._port = port
        self._resets = Resets(environment, processor, restarts or RestartBudget(0, 0, 60.0), resumed_at, clock)
        self._resets_at_checkpoints = resets_at_checkpoints
        self._context = StageContext("actor")
        self._wake = asyncio.Event()
        self._asleep = False
        self._state = State.DECIDING
        self._transitions = self._bind()
        # Set by the host.
        self._stopping = self._changed = self._paused = False
        self._checkpoint: int | None = None
        self._adopted: dict[str, int] = {}
        # While another process decides: messages that arrive in the meantime, to apply after its answer.
        self._consulting = False
        self._deferred: list[Callable[[], None]] = []
        self._known: set[str] = set()
        # Behaviours that the actor waits for, because their learners have not learned yet.
        self._lacking: dict[str, None] = {}
        # Behaviours that had agents when the actor last requested credits at a checkpoint.
        self._players: tuple[str, ...] = ()

    def receive_policy(self, update: PolicyUpdate) -> None:
        """Use this policy, starting with the next decision."""
        if self._consulting:
            self._deferred.append(partial(self.receive_policy, update))
            return
        self._environment.update(update)
        if update.snapshot < 0 and update.behavior_id in self._environment.specs:
            self._adopted[update.behavior_id] = update.version
            if len(self._lacking) > 1:  # the actor still waits for other behaviours
                self._lacking.pop(behavior_name(update.behavior_id), None)
        self._changed = True
        self._wake.set()

    def receive_assignment(self, assignment: Assignment | Matches) -> None:
        """Play the next games under this assignment."""
        if self._consulting:
            self._deferred.append(partial(self.receive_assignment, assignment))
            return
        self._environment.mappings.assign(assignment)
        self._wake.set()

    def receive_parameters(self, parameters: EnvironmentParameters) -> None:
        """Pass these parameters to the environments, either before they start or between two ticks."""
        self._resets.receive_parameters(parameters)
        self._wake.set()

    def receive_grant(self, number: int, caps: Mapping[str, int], versions: Mapping[str, int]) -> None:
        """Accept a grant of credits for more steps."""
        self._gate.granted(number, caps, versions)
        self._wake.set()

    def begin_source(self, source: int) -> None:
        """Continue as a new source: credits are counted from 0, and pay for the steps that the actor still holds."""
        self._account.begin_source(source)  # gives the credits back as the source that was granted them
        self.source = source
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """Pause at the next tick, or continue."""
        self._paused = paused
        self._wake.set()

    def request_checkpoint(self, number: int) -> None:
        """Emit a checkpoint barrier at the next tick."""
        self._checkpoint = number
        self._give_up()

    def request_stop(self) -> None:
        """Stop stepping, emit all held trajectories, and end the source, after any checkpoint requested earlier."""
        self._stopping = True
        self._environment.request_stop()
        self._give_up()

    async def start(self, context: StageContext) -> None:
        """Build and reset the environments, and announce their behaviours."""
        self._context = context
        self._resets.start(context)
        self._environment.start(context)
        self._processor.start(context)
        try:
            await self._resets.begin_segment()
            self._announce()
        except EnvironmentEnded as end:
            self._announce()
            self._state = self._end(end)

    async def stop(self) -> None:
        """Close the environments."""
        await maybe_await(self._environment.stop)

    def progress(self) -> int | None:
        """Return the tick count; None while waiting for either the host or environments with their own deadlines."""
        return None if self._asleep else self._environment.progress()

    async def produce(self) -> AsyncIterator[Item]:
        """Yield trajectories, and a barrier for each checkpoint, until the host requests a stop."""
        while transitions := self._transitions[self._state]:
            for transition in transitions:
                if transition[0]():
                    break
            _, work, then = transition
            if work.consult is not None and not await work.consult():
                continue
            if work.emit is not None:
                for item in work.emit() or ():
                    yield item
            if work.wait is not None:
                try:
                    await work.wait()
                except EnvironmentEnded as end:
                    then = self._end(end)
            self._state = then
        self._port.stopped()

    def _bind(self) -> dict[State, list[tuple[Callable[[], bool], Effects, State]]]:
        """Bind the transition table to this actor's methods."""
        guards: dict[Guard, Callable[[], bool]] = {
            Guard.CHECKPOINT_DUE: lambda: self._checkpoint is not None and self._obeys(),
            Guard.RESETTING_CHECKPOINT_DUE: lambda: self._checkpoint is not None and self._obeys(),
            Guard.STOP_DUE: lambda: self._stopping and self._obeys(),
            Guard.POLICY_MISSING: lambda: not self._environment.mappings.ready(self._environment.specs),
            Guard.RESET_DUE: lambda: self._obeys() and self._resets.due(),
            Guard.CREDITS_MISSING: self._credits_missing,
            Guard.ALWAYS: lambda: True,
        }
        consult = None if self._environment.oracle is None else self._consult
        actions = {
            Action.BARRIER: Effects(self._barrier, None),
            Action.CLOSING_BARRIER: Effects(self._close_at_checkpoint, None),
            Action.FLUSH: Effects(self._processor.flush, None),
            Action.SLEEP: Effects(None, self._sleep),
            Action.DECIDE: Effects(self._decide, None, consult),
            Action.RESET: Effects(self._processor.close_all, self._reset),
            Action.STEP: Effects(self._before_step, self._advance),
            Action.STAND_STILL: Effects(self._stand_still, self._await_credits),
            Action.ASK: Effects(self._account.ask, self._await_credits),
            Action.RESUME: Effects(self._decide_again, self._advance, consult),
            Action.CHECKPOINT_RESET: Effects(None, self._reset_at_checkpoint),
            Action.CLOSE: Effects(self._close, self._sleep),
        }
        if not self._resets_at_checkpoints:
            del guards[Guard.RESETTING_CHECKPOINT_DUE]
            guards[Guard.RESET_DUE] = self._resets.due
        return {
            state: [(guards[row.guard], actions[row.action], row.then) for row in rows if row.guard in guards]
            for state, rows in TRANSITIONS.items()
        }

    def _obeys(self) -> bool:
        """Return True if the actor may follow commands now: in deterministic runs, only in a `STANDS_STILL` state.

        An actor reaches these states at steps that depend on its credits alone; in all others, the time at which a
        command arrives would decide where a trajectory is cut.
        """
        if not self._resets_at_checkpoints or self._state in STANDS_STILL:
            return True
        return not self._account.bounded()

    def _credits_missing(self) -> bool:
        """Return True if the actor is paused, is out of credits, or has a grant whose policy has not arrived yet."""
        missing = self._account.missing(self._players if self._state is State.CHECKPOINT else self._account.deciding())
        return missing or (self._paused and self._obeys())

    async def _consult(self) -> bool:
        """Get decisions from the process that makes them; return False if a command interrupts or no answer arrives.

        The current policies and assignment decide. Newer ones are applied after the answer has arrived.
        """
        if self._state is State.WAITING and not self._changed:
            return True  # the open decisions already come from the newest policies
        self._consulting = self._asleep = True
        try:
            with self._context.timings.lasting(ASKING):
                self._adopted |= await self._environment.consult()
        except NoDecisionError:
            self._catch_up()
            if self._state is not State.WAITING:
                self._state = State.DECIDING  # a state that follows commands; decisions from before a reset are gone
            await self._sleep()
            return False
        self._asleep = False
        return True

    def _catch_up(self) -> None:
        """Apply the messages that arrived while another process made the decisions."""
        self._consulting = False
        deferred, self._deferred = self._deferred, []
        for receive in deferred:
            receive()

    def _give_up(self) -> None:
        """Interrupt any wait for another process's decisions, so the actor can follow a command soon."""
        if self._environment.oracle is not None:
            self._environment.oracle.give_up()
        self._wake.set()

    def _decide(self) -> Iterable[TrajectoryBatch]:
        # A policy that arrives while a batch waits for queue space did not make this tick's decisions.
        adopted, self._adopted = self._adopted, {}
        self._changed = False
        versions = self._environment.mappings.newest_versions(self._account.names) if adopted else {}
        if self._account.turns != self._environment.mappings.turns:
            self._account.end_turn()
        began = time.perf_counter()
        steps = self._environment.decide()
        self._context.timings.add(ACTING, time.perf_counter() - began)
        for step in steps:
            self._processor.add(step)
        # Deferred messages come after the decisions that older policies made, and before the first batch is emitted:
        # emitting may wait for room in a queue, and commands must not wait with it.
        if self._consulting:
            self._catch_up()
        # Emit the trajectories that an older policy began. The ledger grants no credits for a version until this actor
        # acts with the one before it, so the trainer can't run ahead by more than its window.
        for behavior_id, version in adopted.items():
            yield from self._processor.cut_older_than(behavior_id, version - 1)
        self._account.note_versions(versions)

    def _decide_again(self) -> None:
        """Replace decisions made by older policies, before the first step after a wait."""
        if self._changed:
            for step in self._environment.decide(again=True):
                self._processor.replace_decisions(step)
            self._adopted.clear()
            versions = self._environment.mappings.newest_versions(self._account.names)
            self._account.note_versions(versions, granted=True)
            if self._consulting:
                self._catch_up()

    def _before_step(self) -> Iterable[TrajectoryBatch]:
        # Only if the actor is known to continue: a waiting actor emits these with the rest, in one batch.
        yield from self._processor.emit_full()
        if not self._resets_at_checkpoints:  # with resets, the time at which an answer arrives must have no effect
            self._account.request_ahead()

    async def _advance(self) -> None:
        began = time.perf_counter()
        try:
            result = await self._environment.advance()
        except BrokenEnvironmentError as error:
            await self._resets.recover(error)
            result = StepResult({})
        self._context.timings.add(STEPPING, time.perf_counter() - began)
        if result.lost is not None and (dropped := self._processor.drop_environments(result.lost)):
            self._context.log.warning("%d steps of incomplete trajectories are lost.", dropped)
        if result.closed is not None:
            self._processor.close_environments(result.closed)
        if len(self._environment.specs) > len(self._known):
            self._announce()
        await asyncio.sleep(0)  # let policies, credits and commands arrive

    def _stand_still(self) -> Iterable[TrajectoryBatch]:
        self._lacking = dict.fromkeys(self._account.unready)
        yield from self._processor.flush()
        self._account.ask(again=True)

    def _close(self) -> Iterable[TrajectoryBatch]:
        """Emit all held trajectories, and return unused credits for use by other actors."""
        yield from self._processor.close_all()
        self._account.give_back()

    async def _sleep(self) -> None:
        self._asleep = True
        with self._context.timings.lasting(RESTING):
            await self._wake.wait()
        self._asleep = False
        self._wake.clear()

    async def _await_credits(self) -> None:
        names = [WAITING, *(f"{WAITING}/{name}" for name in self._lacking)] if self._lacking else []
        with self._context.timings.lasting(*names):
            await self._sleep()

    def _barrier(self) -> Iterable[Item]:
        number = self._begin_checkpoint()
        if self._stopping:
            yield from self._processor.flush()
        yield Barrier(number, self.source)

    def _close_at_checkpoint(self) -> Iterable[Item]:
        # This is the same as the start of a resumed run: a reset, then fresh credits. The ledger grants them once all
        # stages have saved their parts of the checkpoint, so the policies and the assignment reflect everything before
        # the barrier.
        number = self._begin_checkpoint()
        self._resets.reach_checkpoint(number)
        self._players = self._account.deciding() or self._players
        self._lacking.clear()
        closed = self._processor.close_all()
        self._account.ask_for(self._players)
        yield from closed
        yield Barrier(number, self.source)

    def _begin_checkpoint(self) -> int:
        """Return the number of the requested checkpoint, and clear the request, so the host may request a new one."""
        number, self._checkpoint = self._checkpoint, None
        assert number is not None
        return number

    async def _reset_at_checkpoint(self) -> None:
        self._resets.adopt_parameters()
        await self._resets.begin_segment()
        self._announce()

    async def _reset(self) -> None:
        await self._resets.make()
        self._announce()

    def _end(self, end: EnvironmentEnded) -> State:
        why = str(end)
        self._context.log.info("%s.", why[:1].upper() + why[1:])
        self._account.forget_request()
        self._port.ended(why)
        return State.ENDED

    def _announce(self) -> None:
        for behavior_id, spec in self._environment.specs.items():
            if behavior_id not in self._known:
                self._known.add(behavior_id)
                self._port.announce(spec)
        self._account.adopt_behaviors()
