"""The actor's states and its transition table. The `actor` module implements the guards and actions.

A *tick* is a decision of the policies (DECIDING) followed by a step of the environments (DECIDED). An actor without
credits waits: it has emitted all its trajectories, and follows its host's commands immediately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, IntEnum, auto
from typing import NamedTuple

from headrace.queues.messages import Barrier, TrajectoryBatch

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
    RENEWAL_DUE = auto()  # the same, in a run that resets its environments at each checkpoint
    STOP_DUE = auto()  # a stop was requested, and commands are followed here
    POLICY_MISSING = auto()  # a behaviour has no policy yet
    RESET_DUE = auto()  # a lesson or another team's turn requires a reset of the environments
    CREDITS_MISSING = auto()  # a behaviour is out of credits, or its policy is older than the grant requires
    ALWAYS = auto()


class Action(Enum):
    """What an actor does in a transition: it first emits items, then awaits something."""

    BARRIER = auto()  # emit the checkpoint's barrier
    RENEWAL = auto()  # request fresh credits, close and emit all trajectories, then the barrier
    FLUSH = auto()  # emit everything that is held
    SLEEP = auto()  # wait for the host
    DECIDE = auto()  # let the policies decide; emit the trajectories that older policies began
    RESET = auto()  # close and emit all trajectories, reset the environments
    STEP = auto()  # emit closed trajectories if there are enough, step the environments
    STAND_STILL = auto()  # emit everything that is held, request credits, wait for the host
    ASK = auto()  # request credits if the behaviours that need them have changed, wait for the host
    RESUME = auto()  # let newer policies decide again, step the environments
    RENEW = auto()  # reset the environments with the checkpoint's seed
    CLOSE = auto()  # close and emit all trajectories, return all credits, wait for the host


class Work(NamedTuple):
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
        Transition(Guard.RENEWAL_DUE, Action.RENEWAL, State.CHECKPOINT),
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
        Transition(Guard.RENEWAL_DUE, Action.RENEWAL, State.CHECKPOINT),
        Transition(Guard.STOP_DUE, Action.FLUSH, State.STOPPED),
        Transition(Guard.CREDITS_MISSING, Action.ASK, State.CHECKPOINT),
        Transition(Guard.POLICY_MISSING, Action.SLEEP, State.CHECKPOINT),
        Transition(Guard.ALWAYS, Action.RENEW, State.RESET_WAITING),
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
