"""Per-slot data about one behaviour id's agents: which agents decide at a tick, their state, and their groups.

If the agents that decide have not changed since the last tick, a single comparison finds their slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array, Columns, Floats, StepBatch
from headrace.stages.agent.pages import ClosedTrajectories
from headrace.stages.slots import Numbers, Slots, Where, as_slice, enlarged


class Groups:
    """The groups that one behaviour id's agents belong to, by slot.

    Attributes:
        ids: [total] the group in which an agent took its open decision; 0 for none.
        returns: [total] the sum of the group rewards that an agent has received in its episode.
        tick: number of the last tick added.
    """

    def __init__(self, total: int) -> None:
        self.ids = np.zeros(total, np.int64)
        self.returns = np.zeros(total, np.float64)
        self.tick = 0
        self._parted: list[Numbers] = []

    def enlarge(self, total: int) -> None:
        """Make room for `total` slots."""
        self.ids, self.returns = enlarged(self.ids, total), enlarged(self.returns, total)

    def note_closed(self, slots: Numbers, left: Numbers | None = None) -> Columns:
        """Record that these agents' trajectories close now.

        Args:
            slots: [k] the agents whose trajectories close.
            left: slots of the agents that are still playing, if the given agents' episodes end; None if the given
                agents keep playing.

        Returns:
            `GROUP_TRAJECTORY_COLUMNS` [k].
        """
        ids = self.ids[slots]
        self._parted.append(ids)
        goes_on = np.ones(len(ids), np.bool_) if left is None else (ids != 0) & np.isin(ids, self.ids[left])
        return {"group_ids": ids, "next_ticks": np.full(len(ids), self.tick, np.int64), "group_left": goes_on}

    @property
    def anyone_parted(self) -> bool:
        """True if a trajectory has closed since the last call to `forget_parted`."""
        return bool(self._parted)

    def parted(self, slots: Numbers) -> Numbers:
        """Return the given agents whose group has closed a trajectory since the last call to `forget_parted`."""
        ids = self.ids[slots]
        mates: Numbers = slots[(ids != 0) & np.isin(ids, np.concatenate(self._parted))]
        return mates

    def forget_parted(self) -> None:
        """Forget which trajectories have closed, once all teammates' trajectories are cut."""
        self._parted.clear()

    def of_episodes(
        self, slots: Numbers, last_rewards: NDArray[np.float32], steps: Numbers, group_left: NDArray[np.bool_]
    ) -> Columns:
        """Return the group columns for episodes that have ended.

        A group has ended when none of its agents is still playing. Of the agents whose episodes ended last, the one
        with the longest episode has `episode_group_over` set, because its return counts as the group's return.

        Args:
            slots: [e] slots of the agents whose episodes have ended.
            last_rewards: [e] their groups' rewards for the last step.
            steps: [e] the number of decisions in each episode.
            group_left: [e] true for agents whose teammates are still playing.

        Returns:
            `GROUP_EPISODE_COLUMNS` [e].
        """
        ids = self.ids[slots]
        order = np.lexsort((-steps, ids))
        over = np.zeros(len(ids), np.bool_)
        over[order[np.unique(ids[order], return_index=True)[1]]] = True
        over &= (ids != 0) & ~group_left
        returns = (self.returns[slots] + last_rewards).astype(np.float32)
        return {"episode_group_returns": returns, "episode_group_over": over}


Stamps = Sequence[Array]
"""Stamps for a set of decisions: the episode ids; the assignment's generations, opponents and learning flags; and, if
the behaviour has groups, the group ids."""
LEARNING = 3
"""Index of `learning` in the stamps."""


_RETURN = np.dtype(np.float64)
# Zero-dimensional arrays: NumPy takes longer to convert a Python number than to write it to a few slots.
_NO_RETURN, _NO_STEPS = np.zeros((), _RETURN), np.zeros((), np.int64)


class AgentState:
    """The per-agent arrays of one behaviour id.

    Args:
        total: number of slots.
        nowhere: the row that agents without an open decision point to.
        grouped: true if the agents may be in groups.

    Attributes:
        cursor: [total] the page row that holds the agent's open decision.
        episode_ids: [total] the episode that the open decision belongs to.
        learning: [total] true if the trainer will learn from the open decision.
        returns: [total] the sum of the episode's rewards so far.
        steps_before: [total] the number of the episode's decisions in earlier pages.
        mates: the agents' groups; None if the behaviour has no groups.
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
        """Add agents [k] that live in these environments; `total` is the new number of slots."""
        if total > len(self.episode_ids):
            self._enlarge(total)
        self._env_ids[slots] = env_ids

    def start_episodes(self, slots: Numbers, stamps: Stamps) -> None:
        """Begin episodes for agents [k] without an open decision."""
        self.stamp(slots, stamps)
        self.returns[slots] = _NO_RETURN
        self.steps_before[slots] = _NO_STEPS
        if self.mates is not None:
            self.mates.returns[slots] = _NO_RETURN

    def stamp(self, where: Where, stamps: Stamps) -> None:
        """Set the stamps on the open decisions of the agents at `where`."""
        self.episode_ids[where] = stamps[0]
        self._generations[where] = stamps[1]
        self._opponents[where] = stamps[2]
        self.learning[where] = stamps[LEARNING]
        if self.mates is not None:
            self.mates.ids[where] = stamps[-1]

    def stamps(self, where: Where) -> Stamps:
        """Return the open decisions' stamps for the agents at `where`."""
        stamps = (self.episode_ids[where], self._generations[where], self._opponents[where], self.learning[where])
        return stamps if self.mates is None else (*stamps, self.mates.ids[where])

    def living_in(self, slots: Numbers, env_ids: Numbers) -> Numbers:
        """Return the slots among `slots` whose agents are in these environments."""
        living: Numbers = slots[np.isin(self._env_ids[slots], env_ids)]
        return living

    def returns_with(self, where: Where, rewards: Floats) -> NDArray[np.float64]:
        """Return the agents' episode returns so far, with these rewards added."""
        returns = rewards.astype(_RETURN)  # convert first: adding arrays of two dtypes is slower in NumPy
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
        """Return the trajectory columns [k] to put into the outbox, for trajectories that close now."""
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
    """Count the true flags. For a few flags, this takes half as long as NumPy's own function."""
    return flags.tobytes().count(1)


def as_bytes(stamps: Stamps) -> bytes:
    """Return stamps as bytes, which are fast to compare."""
    try:
        return b"".join(stamps)  # type: ignore[arg-type]  # an array is a buffer, read without a copy
    except TypeError:  # an array is not contiguous, such as a column of a table
        return b"".join([values.tobytes() for values in stamps])


@dataclass(slots=True)
class Deciding:
    """The agents that decide at a tick.

    Attributes:
        agent_ids: the agents' ids, as bytes.
        slots: [d] the agents' slots.
        where: the same slots, as a slice if they are consecutive.
        stamps: the decisions' stamps, as bytes.
        learning: the number of these decisions that the trainer learns from.
    """

    agent_ids: bytes
    slots: Numbers
    where: Where
    stamps: bytes = b""
    learning: int = 0


class TickAgents:
    """Finds the slots of the agents in each tick, and gives slots to new agents.

    Args:
        capacity: the initial number of agents to make room for.

    Attributes:
        slots: the agents' slots.
    """

    def __init__(self, capacity: int) -> None:
        self.slots = Slots(capacity)
        self._last: Deciding | None = None

    def call(self, step: StepBatch, agents: AgentState) -> tuple[Where, Numbers, bool, Deciding]:
        """Find the slots of a tick's agents. New agents that decide get slots and are added to `agents`.

        Returns:
            The slots of all agents [n]; the slots of the agents whose episodes have ended [ended]; whether some of
            these agents are unknown (`NOBODY`); and the agents that decide.
        """
        ended = step.ended
        # Comparing bytes costs a tenth of `array_equal`; object identity would prove nothing, because arrays may be
        # reused.
        key = step.agent_ids[ended:].tobytes()
        last = self._last
        if last is not None and last.agent_ids == key:
            if not ended:
                return last.where, _NONE, False, last
            ending, unknown = self.slots.look_up(step.agent_ids[:ended])
            return np.concatenate((ending, last.slots)), ending, len(unknown) > 0, last
        slots, new = self.slots.look_up(step.agent_ids)
        strangers = bool(ended and len(new) and new.item(0) < ended)
        if strangers:
            new = new[new.searchsorted(ended) :]
        if len(new):
            slots[new] = joined = self.slots.add(step.agent_ids[new])
            agents.join(joined, self.slots.total, step.env_ids[new])
        deciding = slots[ended:]
        self._last = last = Deciding(key, deciding, as_slice(deciding))
        return slots, slots[:ended], strangers, last

    def remove(self, slots: Numbers) -> None:
        """Forget these agents."""
        if len(slots):
            self.slots.remove(slots)
            self._last = None

    def forget_stamps(self) -> None:
        """Forget the last tick's stamps, so the next stamps are compared with those of the open decisions."""
        self._last = None


_NONE = np.empty(0, np.int64)
