"""The states of the actor, and the table of transitions between them. Pure: `actor` says what each name in it does.

A *tick* is a decision of the policies (DECIDING) followed by a step of the environments (DECIDED). An actor without
credits stands still: it has emitted all it holds, and follows its host's commands at once.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple


class State(IntEnum):
    """Where the actor is."""

    DECIDING = auto()
    """The environments have stepped: the policies decide next."""
    DECIDED = auto()
    """The policies have decided: the environments step next."""
    RESET = auto()
    """The environments have begun anew in the midst of a tick: the policies decide once more."""
    WAITING = auto()
    """It stands still and waits for credits, and for the policies that these were granted for."""
    RESET_WAITING = auto()
    """The environments have begun anew while it stands still: the policies decide."""
    CHECKPOINT = auto()
    """A deterministic run stands at a checkpoint: with fresh credits, the environments begin anew."""
    ENDED = auto()
    """The environments have ended in order: nothing is left but to follow commands."""
    STOPPED = auto()
    """The last item was emitted."""


class Cue(Enum):
    """A condition that makes the actor do something."""

    CHECKPOINT_DUE = auto()
    """A checkpoint was requested, and commands are followed here."""
    RENEWAL_DUE = auto()
    """As `CHECKPOINT_DUE`, in a run whose environments begin anew at each checkpoint."""
    STOP_DUE = auto()
    """A stop was requested, and commands are followed here."""
    POLICY_MISSING = auto()
    """A behaviour has no policy yet."""
    RESET_DUE = auto()
    """A lesson or another team's turn makes the environments begin anew."""
    CREDITS_MISSING = auto()
    """A behaviour has used up its credits, or its policy is older than the one they were granted for."""
    ALWAYS = auto()
    """Nothing stands against it."""


class Act(Enum):
    """Something that the actor does: it emits items, then awaits."""

    BARRIER = auto()
    """Emit the checkpoint's barrier."""
    RENEWAL = auto()
    """Close and emit all trajectories, then the barrier; ask for the credits of those who played."""
    FLUSH = auto()
    """Emit all that is held."""
    SLEEP = auto()
    """Wait for the host."""
    DECIDE = auto()
    """Have the policies decide, and emit what the decisions' observations complete."""
    RESET = auto()
    """Close and emit all trajectories, then begin anew."""
    STEP = auto()
    """Step the environments."""
    STAND_STILL = auto()
    """Emit all that is held, ask for credits, wait for the host."""
    ASK = auto()
    """Ask for credits if other behaviours need them than before, wait for the host."""
    RESUME = auto()
    """Have a newer policy decide again, step the environments."""
    RENEW = auto()
    """Begin anew with the seed of the checkpoint."""
    CLOSE = auto()
    """Close and emit all trajectories, wait for the host."""


class Transition(NamedTuple):
    """What the actor does on a cue, and the state it is in afterwards."""

    cue: Cue
    act: Act
    then: State


def _commands(state: State) -> tuple[Transition, ...]:
    """The transitions that the host's commands make: a stop comes after the checkpoint that was requested before it."""
    return (
        Transition(Cue.RENEWAL_DUE, Act.RENEWAL, State.CHECKPOINT),
        Transition(Cue.CHECKPOINT_DUE, Act.BARRIER, state),
        Transition(Cue.STOP_DUE, Act.FLUSH, State.STOPPED),
    )


TRANSITIONS: dict[State, tuple[Transition, ...]] = {
    State.DECIDING: (
        *_commands(State.DECIDING),
        Transition(Cue.POLICY_MISSING, Act.SLEEP, State.DECIDING),
        Transition(Cue.ALWAYS, Act.DECIDE, State.DECIDED),
    ),
    State.DECIDED: (
        Transition(Cue.RESET_DUE, Act.RESET, State.RESET),
        Transition(Cue.CREDITS_MISSING, Act.STAND_STILL, State.WAITING),
        Transition(Cue.ALWAYS, Act.STEP, State.DECIDING),
    ),
    State.RESET: (Transition(Cue.ALWAYS, Act.DECIDE, State.DECIDED),),
    State.WAITING: (
        *_commands(State.WAITING),
        Transition(Cue.POLICY_MISSING, Act.SLEEP, State.WAITING),
        Transition(Cue.RESET_DUE, Act.RESET, State.RESET_WAITING),
        Transition(Cue.CREDITS_MISSING, Act.ASK, State.WAITING),
        Transition(Cue.ALWAYS, Act.RESUME, State.DECIDING),
    ),
    State.RESET_WAITING: (Transition(Cue.ALWAYS, Act.DECIDE, State.WAITING),),
    State.CHECKPOINT: (
        Transition(Cue.RENEWAL_DUE, Act.RENEWAL, State.CHECKPOINT),
        Transition(Cue.STOP_DUE, Act.FLUSH, State.STOPPED),
        Transition(Cue.CREDITS_MISSING, Act.ASK, State.CHECKPOINT),
        Transition(Cue.ALWAYS, Act.RENEW, State.RESET_WAITING),
    ),
    State.ENDED: (
        Transition(Cue.CHECKPOINT_DUE, Act.BARRIER, State.ENDED),
        Transition(Cue.STOP_DUE, Act.FLUSH, State.STOPPED),
        Transition(Cue.ALWAYS, Act.CLOSE, State.ENDED),
    ),
    State.STOPPED: (),
}
"""The transitions out of each state; the first one whose cue is there is made. One more, from wherever environments
step or begin anew: where they end in order, the actor is ENDED."""

STANDS_STILL = frozenset({State.WAITING, State.RESET_WAITING, State.CHECKPOINT, State.ENDED})
"""States in which a deterministic run follows commands: it comes to them whenever its host speaks."""
