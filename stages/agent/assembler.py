"""The work of the agent processor for one behaviour id: steps in, closed trajectories out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Union

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array, StepBatch, TrajectoryBatch
from stages.agent.outbox import AGENT, EPISODE, GENERATION, LEARNING, OPPONENT, Closed, Ending, Outbox
from stages.agent.pages import Column, Pages
from stages.agent.slots import NOBODY, Numbers, Slots, enlarged

log = logging.getLogger(__name__)

Where = Union[slice, Numbers]
"""Slots; a slice where they follow each other, since NumPy's slices cost less than index arrays."""


@dataclass(slots=True)
class _LastTick:
    """Who decided at a group's last tick: if the next one is the same, nothing has to be looked up or compared."""

    agents: bytes
    where: Where
    stamps: bytes = b""
    learning: int = 0


class Assembler:
    """Keeps one open decision per agent of a behaviour id, and the steps before it, until a trajectory is closed.

    An agent has a slot as long as it has an open decision. The slot says in which row of the pages that decision
    stands (`_cursor`), under which stamp it was made, and what the episode brought so far.

    Attributes:
        pending: learning rows held: completed ones of half-made trajectories, and closed ones not yet emitted.
        emitted: learning rows emitted so far.
    """

    def __init__(self, step: StepBatch, horizon: int, source: int) -> None:
        self.pending = 0
        self.emitted = 0
        self._behavior_id = step.behavior_id
        self._source = source
        self._pages = Pages(step, horizon)
        self._outbox = Outbox()
        self._slots = Slots(len(step.agent_ids))
        total = self._slots.total
        self._cursor = np.full(total, self._pages.nowhere)
        self._stamps = Column("stamps", np.empty((0, 5), np.int64), total)
        self._returns = np.zeros(total, np.float64)
        self._steps_before = np.zeros(total, np.int64)  # decisions of the episode in earlier pages
        self._groups = np.zeros(total, np.int64)
        self._env_ids = np.zeros(total, np.int64)
        self._last_ticks: dict[int, _LastTick] = {}
        self._warned = False

    @property
    def open_agents(self) -> int:
        """Agents with an open decision."""
        return len(self._slots)

    @property
    def waiting_rows(self) -> int:
        """Rows of closed trajectories that wait to be emitted."""
        return self._outbox.rows

    def add(self, step: StepBatch) -> None:
        """Take one tick of one group in, copying all that is kept.

        Raises:
            ShapeError: if a column differs from those of the first step.
        """
        if step.games:
            self._outbox.add_games(step.games)
        pages, ended, count = self._pages, step.ended, len(step.agent_ids)
        if not count:
            return
        # The rows of the open decisions that this tick completes; nowhere for agents that have none.
        last = np.empty(count, np.int64)
        if ended:
            ending = self._slots.find(step.agent_ids[:ended])
            last[:ended] = self._cursor[ending]
            self._cursor[ending] = pages.nowhere
            self._returns[ending] += step.rewards[:ended]
        if ended < count:
            tick = self._locate(step)
            where = tick.where
            last[ended:] = self._cursor[where]
        pages.rewards[last] = step.rewards
        at = last
        at += 1
        observations = pages.observation_records(step.observations)
        if ended:
            ending = self._end(step, ending, at[:ended])
        if ended < count:
            self._returns[where] += step.rewards[ended:]  # those of agents that start an episode become 0 below
            # A tick whose agents, stamps and episodes are the last one's is the fast path: nobody starts anything.
            stamps = _stamp_bytes(step)
            if not ended and tick.stamps == stamps:
                restamped = None
                self.pending += tick.learning
            else:
                restamped = self._check_stamps(step, where, at[ended:])
                tick.stamps, tick.learning = stamps, np.count_nonzero(step.learning)
            self._turn_pages(where, at[ended:], restamped, [(c, o[ended:]) for c, o in observations])
            if restamped is not None:
                self._stamps.values[where] = _stamps_of(step)
            pages.write_decisions(at[ended:], step.decisions, step.policy_versions)
            self._cursor[where] = at[ended:]
        for column, values in observations:
            column.records[at] = values
        if ended:
            self._remove(ending[self._cursor[ending] == pages.nowhere])

    def cut(self, max_first_version: int | None = None) -> None:
        """Close half-made trajectories where they stand; open decisions become the first rows of the next ones.

        Args:
            max_first_version: only trajectories whose first policy version is at most this; None: all.
        """
        slots = self._slots.used()
        ends = self._cursor[slots]
        lengths = self._pages.lengths(ends)
        chosen = lengths > 0
        if max_first_version is not None:
            chosen &= self._pages.versions[ends - lengths] <= max_first_version
        slots, ends = slots[chosen], ends[chosen]
        if not len(slots):
            return
        starts = self._pages.take(len(slots))
        self._pages.move(ends, starts)
        self._cursor[slots] = starts
        self._close(slots, ends, lengths[chosen])

    def close(self, *, truncated: bool) -> None:
        """Close half-made trajectories where they stand and forget all agents with their open decisions."""
        slots = self._slots.used()
        self._leave(slots, truncated=truncated)
        self._remove(slots)

    def drop(self, env_ids: Numbers, group: int) -> int:
        """Forget the agents of some environments and their half-made trajectories.

        Returns:
            The number of completed learning rows that are lost.
        """
        slots = self._slots.used()
        slots = slots[(self._groups[slots] == group) & np.isin(self._env_ids[slots], env_ids)]
        at = self._cursor[slots]
        lengths = self._pages.lengths(at)
        lost = int(lengths @ self._stamps.values[slots, LEARNING])
        self._pages.give(at - lengths)
        self._remove(slots)
        self.pending -= lost
        return lost

    def emit(self) -> TrajectoryBatch | None:
        """All closed trajectories and waiting game results as one batch; None if there are none."""
        batch = self._outbox.emit(self._pages, self._behavior_id, self._source)
        if batch is not None:
            credits = batch.credits
            self.pending -= credits
            self.emitted += credits
        return batch

    def _end(self, step: StepBatch, ending: Numbers, ends: Numbers) -> Numbers:
        """Close the trajectories that this tick's endings completed; returns the slots of known agents."""
        terminated = step.terminated
        if np.count_nonzero(ending) < len(ending):  # an episode without a decision leaves nothing to close
            known = ending.nonzero()[0]
            ending, ends, terminated = ending[known], ends[known], terminated[known]
            if not len(known):
                return ending
        lengths = self._pages.lengths(ends)
        stamps = self._stamps.values.take(ending, 0)
        self.pending += np.count_nonzero(stamps[:, LEARNING])
        books = Ending(terminated.copy(), self._returns[ending], self._steps_before[ending] + lengths)
        self._outbox.add(Closed(ends, stamps, ending=books), sum(lengths.tolist()))
        return ending

    def _locate(self, step: StepBatch) -> _LastTick:
        """The slots of the agents that decide; unknown agents get one."""
        agent_ids = step.agent_ids[step.ended :]
        # Comparing bytes costs a tenth of `array_equal`; an array's identity would say nothing, as it may be reused.
        key = agent_ids.tobytes()
        tick = self._last_ticks.get(step.group)
        if tick is not None and tick.agents == key:
            return tick
        slots = self._slots.find(agent_ids)
        new = (slots == NOBODY).nonzero()[0]
        if len(new):
            slots[new] = self._join(agent_ids[new], step.env_ids[step.ended :][new], step.group)
        tick = self._last_ticks[step.group] = _LastTick(key, _as_slice(slots))
        return tick

    def _join(self, agent_ids: Numbers, env_ids: NDArray[np.int32], group: int) -> Numbers:
        slots = self._slots.add(agent_ids)
        total, present = self._slots.total, len(self._cursor)
        if total > present:
            self._cursor = enlarged(self._cursor, total)
            self._cursor[present:] = self._pages.nowhere
            self._stamps.grow(total)
            self._returns = enlarged(self._returns, total)
            self._steps_before = enlarged(self._steps_before, total)
            self._groups = enlarged(self._groups, total)
            self._env_ids = enlarged(self._env_ids, total)
        self._groups[slots] = group
        self._env_ids[slots] = env_ids
        return slots

    def _check_stamps(self, step: StepBatch, where: Where, at: Numbers) -> NDArray[np.bool_] | None:
        """Count completed learning rows, and look after agents whose stamp is not that of their open decision.

        Args:
            step: the tick.
            where: the slots of the agents that decide.
            at: [d] the rows after those of their open decisions; made nowhere's for decisions that are dropped.

        Returns:
            [d] whose stamps changed within an episode, to be taken up when the open step is completed; None if none.
        """
        stamps = _stamps_of(step)
        self.pending += np.count_nonzero(step.learning)
        fresh = (at == self._pages.nowhere + 1).nonzero()[0]
        if len(fresh):
            self._start_episodes(_pick(where, fresh), stamps.take(fresh, 0))
        if self._stamps.records[where].tobytes() == stamps.tobytes():
            return None
        old = self._stamps.values[where].copy()
        lost = (old[:, EPISODE] != stamps[:, EPISODE]).nonzero()[0]
        if len(lost):
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s: agent %d began episode %d, but its episode %d never ended; the last decision of such episodes "
                    "is dropped (said once). Environments should give an ending row.",
                    *(self._behavior_id, *stamps[lost[0], :2], old[lost[0], EPISODE]),
                )
            self._leave(_pick(where, lost), truncated=True)
            self._start_episodes(_pick(where, lost), stamps[lost])
            at[lost] = self._pages.nowhere + 1
            old[lost] = stamps[lost]
        # The other open steps are completed under the stamp that they were decided under.
        self.pending += np.count_nonzero(old[:, LEARNING]) - np.count_nonzero(stamps[:, LEARNING])
        return (old != stamps).any(axis=1)

    def _start_episodes(self, slots: Numbers, stamps: Numbers) -> None:
        """Open the books of agents [k] that had no open decision: their rows complete no step."""
        self._stamps.records[slots] = self._stamps.as_records(stamps)
        self._returns[slots] = 0
        self._steps_before[slots] = 0
        self.pending -= np.count_nonzero(stamps[:, LEARNING])

    def _turn_pages(
        self, where: Where, at: Numbers, restamped: NDArray[np.bool_] | None, observations: list[tuple[Column, Array]]
    ) -> None:
        """Give a new page to agents whose page is full, whose stamp changed, or who have none yet.

        Args:
            where: the slots of the agents that decide.
            at: [d] the rows for their new decisions; changed for those that get a page.
            restamped: [d] whose stamp changed, or None.
            observations: the agents' observations by column, [d].
        """
        pages = self._pages
        full = at % pages.stride == pages.stride - 1  # true for nowhere's row as well
        if restamped is not None:
            full |= restamped
        turning = full.nonzero()[0]
        if not len(turning):
            return
        ends = at[turning]
        for column, values in observations:
            column.records[ends] = values[turning]
        starts = pages.take(len(turning))
        pages.keep_actions(ends, starts)
        at[turning] = starts
        cut = (ends != pages.nowhere + 1).nonzero()[0]
        if len(cut):
            ends = ends[cut]
            self._close(_pick(where, turning[cut]), ends, pages.lengths(ends))

    def _leave(self, slots: Numbers, *, truncated: bool) -> None:
        """Close what agents completed, and drop their open decisions."""
        ends = self._cursor[slots]
        lengths = self._pages.lengths(ends)
        made = lengths > 0
        self._pages.give(ends[~made])
        self._cursor[slots] = self._pages.nowhere
        if made.any():
            self._close(slots[made], ends[made], lengths[made], truncated=truncated)

    def _close(self, slots: Numbers, ends: Numbers, lengths: Numbers, *, truncated: bool = False) -> None:
        """Put trajectories that did not end in the outbox: `lengths` rows before the rows `ends`."""
        self._steps_before[slots] += lengths
        self._outbox.add(Closed(ends, self._stamps.values.take(slots, 0), truncated), sum(lengths.tolist()))

    def _remove(self, slots: Numbers) -> None:
        """Forget agents that have no open decision."""
        if len(slots):
            self._cursor[slots] = self._pages.nowhere
            self._slots.remove(slots)
            self._last_ticks.clear()


def _stamp_bytes(step: StepBatch) -> bytes:
    """What `_stamps_of` says, but for the agents' ids, only good for being compared."""
    arrays = (step.episode_ids[step.ended :], step.generations, step.opponents, step.learning)
    return b"".join([array.tobytes() for array in arrays])


def _stamps_of(step: StepBatch) -> Numbers:
    """[d, 5] the stamps of a step's decisions."""
    ended = step.ended
    stamps = np.empty((len(step.agent_ids) - ended, 5), np.int64)
    stamps[:, AGENT] = step.agent_ids[ended:]
    stamps[:, EPISODE] = step.episode_ids[ended:]
    stamps[:, GENERATION] = step.generations
    stamps[:, OPPONENT] = step.opponents
    stamps[:, LEARNING] = step.learning
    return stamps


def _as_slice(slots: Numbers) -> Where:
    """The slots as a slice if they follow each other, else as they are."""
    first, count = int(slots[0]), len(slots)
    if slots[-1] - first == count - 1 and (slots[1:] > slots[:-1]).all():
        return slice(first, first + count)
    return slots


def _pick(where: Where, places: Numbers) -> Numbers:
    """The slots at some places of `where`."""
    return places + where.start if isinstance(where, slice) else where[places]
