"""The state of each agent beside its rows, by slot: its environment, its episode's return, its decision's stamps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array, Floats
from headrace.stages.agent.groups import Groups
from headrace.stages.agent.outbox import ClosedTrajectories
from headrace.stages.slots import Numbers, Where, enlarged

Stamps = Sequence[Array]
"""The stamps of decisions: episode ids; of the assignment the generation, opponent, learning or not; and where the
behaviour has groups, the group's id."""
LEARNING = 3
"""Place of `learning` in them."""


_RETURN = np.dtype(np.float64)
# Arrays of no dimension: a Python number takes NumPy longer to read than to write to a few slots.
_NO_RETURN, _NO_STEPS = np.zeros((), _RETURN), np.zeros((), np.int64)


class AgentState:
    """The per-agent arrays of one behaviour id.

    Args:
        total: number of slots.
        nowhere: the row of agents without an open decision.
        grouped: true if its agents may be in groups.

    Attributes:
        cursor: [total] the row of the pages in which the open decision stands.
        episode_ids: [total] the episode of the open decision.
        learning: [total] true where the open decision is learned from.
        returns: [total] sum of the episode's rewards so far.
        steps_before: [total] decisions of the episode in earlier pages.
        mates: the groups; None if there are none.
    """

    def __init__(self, total: int, nowhere: Numbers, grouped: bool) -> None:
        self._nowhere = nowhere
        self.cursor = np.full(total, nowhere)
        self.episode_ids = np.zeros(total, np.int64)
        self.learning = np.zeros(total, np.bool_)
        self.returns = np.zeros(total, np.float64)
        self.steps_before = np.zeros(total, np.int64)
        self.mates = Groups(total) if grouped else None
        self._generations = np.zeros(total, np.int32)
        self._opponents = np.zeros(total, np.int32)
        self._env_ids = np.zeros(total, np.int32)

    def join(self, slots: Numbers, total: int, env_ids: NDArray[np.int32]) -> None:
        """Add agents [k] of some environments; there are `total` slots now."""
        if total > len(self.episode_ids):
            self._enlarge(total)
        self._env_ids[slots] = env_ids

    def start_episodes(self, slots: Numbers, stamps: Stamps) -> None:
        """Begin episodes of agents [k] that had no open decision."""
        self.stamp(slots, stamps)
        self.returns[slots] = _NO_RETURN
        self.steps_before[slots] = _NO_STEPS
        if self.mates is not None:
            self.mates.returns[slots] = _NO_RETURN

    def stamp(self, where: Where, stamps: Stamps) -> None:
        """Set the stamps of agents' open decisions."""
        self.episode_ids[where] = stamps[0]
        self._generations[where] = stamps[1]
        self._opponents[where] = stamps[2]
        self.learning[where] = stamps[LEARNING]
        if self.mates is not None:
            self.mates.ids[where] = stamps[-1]

    def stamps(self, where: Where) -> Stamps:
        """The stamps of agents' open decisions."""
        stamps = (self.episode_ids[where], self._generations[where], self._opponents[where], self.learning[where])
        return stamps if self.mates is None else (*stamps, self.mates.ids[where])

    def living_in(self, slots: Numbers, env_ids: Numbers) -> Numbers:
        """Those of the agents that live in some environments."""
        living: Numbers = slots[np.isin(self._env_ids[slots], env_ids)]
        return living

    def returns_with(self, where: Where, rewards: Floats) -> NDArray[np.float64]:
        """The returns of agents' episodes with rewards added to them."""
        returns = rewards.astype(_RETURN)  # first: NumPy adds arrays of two dtypes more slowly
        returns += self.returns[where]
        return returns

    def closed(
        self,
        slots: Numbers,
        agent_ids: Numbers,
        ends: Numbers,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> ClosedTrajectories:
        """Trajectories [k] that are closed now, for the outbox."""
        return ClosedTrajectories(
            ends,
            agent_ids,
            self.episode_ids[slots],
            self._generations[slots],
            self._opponents[slots],
            self.learning[slots],
            terminated,
            truncated,
        )

    def _enlarge(self, total: int) -> None:
        present = len(self.cursor)
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray) and values.ndim:
                setattr(self, name, enlarged(values, total))
        self.cursor[present:] = self._nowhere
        if self.mates is not None:
            self.mates.enlarge(total)


def count_true(flags: NDArray[np.bool_]) -> int:
    """Number of flags that are true; for few, NumPy's own takes twice as long."""
    return flags.tobytes().count(1)


def as_bytes(stamps: Stamps) -> bytes:
    """Stamps in a form that is quick to compare."""
    try:
        return b"".join(stamps)  # type: ignore[arg-type]  # an array is a buffer: read without a copy of each
    except TypeError:  # one is not contiguous, such as a column of a table
        return b"".join([values.tobytes() for values in stamps])
