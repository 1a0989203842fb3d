"""The work of the agent processor for one behaviour id: steps in, closed trajectories out."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queues.errors import ShapeError
from queues.messages import Array, Floats, StepBatch, TrajectoryBatch
from stages.agent.agent_state import LEARNING, AgentState, Stamps, as_bytes
from stages.agent.groups import Groups
from stages.agent.outbox import EndedEpisodes, Outbox
from stages.agent.pages import PageColumn, Pages
from stages.slots import NOBODY, Numbers, Slots, Where, as_slice, enlarged, pick

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _LastTick:
    """The agents that decided at the last tick: where they are those of the next one, nothing need be looked up."""

    agents: bytes
    where: Where
    stamps: bytes = b""
    learning: int = 0


class Assembler:
    """Keeps one open decision per agent of a behaviour id, and the steps before it until they are closed.

    An agent has a slot as long as it has an open decision. By slot, `_cursor` is the row of the pages in which that
    decision stands; its stamps and the episode's return so far are in the agent state.

    Trajectories of a group's agents are closed together: where one is, its mates' are cut at the same tick. So the
    trainer finds in one batch what all of a group did at each moment, and which agents were left when one ended.

    Attributes:
        pending: learning rows held: completed ones of half-made trajectories, and closed ones to be emitted.
        emitted: learning rows emitted so far by its present source.
    """

    def __init__(self, step: StepBatch, horizon: int, source: int) -> None:
        self.pending = 0
        self.emitted = 0
        self._behavior_id = step.behavior_id
        self._source = source
        self._pages = Pages(step, horizon)
        self._outbox = Outbox()
        self._slots = Slots(len(step.agent_ids))
        self._cursor = np.full(self._slots.total, self._pages.nowhere)
        self._agents = AgentState(self._slots.total, step.group_ids is not None)
        self._mates = self._agents.mates
        self._last_tick: _LastTick | None = None
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
        """Add one tick, copying all that is kept.

        Raises:
            ShapeError: if a column differs from those of the first step.
        """
        if step.games:
            self._outbox.add_games(step.games)
        pages, ended, count = self._pages, step.ended, len(step.agent_ids)
        if not count:
            return
        if (step.group_ids is None) != (self._mates is None):
            raise ShapeError("a behaviour has group_ids either in all steps or in none")
        ending, tick = self._locate(step)
        # The rows of the open decisions that this tick completes; nowhere for agents that have none.
        at = np.empty(count, np.int64)
        if ended:
            at[:ended] = self._cursor[ending]
            self._cursor[ending] = pages.nowhere
        at[ended:] = self._cursor[tick.where]
        pages.rewards[at] = step.rewards
        if pages.env_frames is not None and step.env_frames is not None:
            pages.env_frames[at] = step.env_frames
        if self._mates is not None:
            self._mates.tick = step.tick
            pages.of_groups["group_rewards"][at] = step.group_rewards
        at += 1
        observations = pages.observation_records(step.observations)
        if ended:
            ending = self._end(step, ending, at[:ended])
        if ended < count:
            self._decide(step, tick, at[ended:], [(column, records[ended:]) for column, records in observations])
        for column, records in observations:
            column.records[at] = records
        if ended:
            self._forget(ending[self._cursor[ending] == pages.nowhere])
        if self._mates is not None:
            self._cut_mates(self._mates)

    def cut(self, max_first_version: int | None = None) -> None:
        """Close half-made trajectories where they stand; open decisions become first rows of the next ones.

        Args:
            max_first_version: only trajectories whose first policy version is at most this; None: all.
        """
        self._cut(self._slots.used(), max_first_version)
        if self._mates is not None:
            self._cut_mates(self._mates)

    def end_learning(self) -> None:
        """End learning from decisions already taken: completed steps are learned from, open ones are not."""
        slots = self._slots.used()
        slots = slots[self._agents.learning[slots]]
        self._cut(slots)
        if self._mates is not None:
            self._cut_mates(self._mates)
        self._agents.learning[slots] = False
        self._last_tick = None  # the next decisions' stamps have to be compared with these

    def replace_decisions(self, step: StepBatch) -> None:
        """Replace the open decisions of a tick's agents by those of newer policies."""
        slots = self._slots.find(step.agent_ids[step.ended :])
        known = slots.nonzero()[0]  # unknown agents decide nothing: actions in nobody's row stay 0
        decisions = {name: values[known] for name, values in step.decisions.items()}
        self._pages.write_decisions(self._cursor[slots[known]], decisions, step.policy_versions[known])

    def close(self, *, truncated: bool, env_ids: Numbers | None = None) -> None:
        """Close half-made trajectories where they stand and forget agents with their open decisions.

        Args:
            truncated: the mark of the trajectories.
            env_ids: of the agents in these environments; None: of all.
        """
        slots = self._slots.used()
        if env_ids is not None:
            slots = self._agents.living_in(slots, env_ids)
        self._leave(slots, truncated=truncated)
        self._forget(slots)
        if self._mates is not None:
            self._cut_mates(self._mates)

    def drop(self, env_ids: Numbers) -> int:
        """Forget the agents of some environments and their half-made trajectories.

        Returns:
            The number of completed learning rows that are lost.
        """
        slots = self._agents.living_in(self._slots.used(), env_ids)
        at = self._cursor[slots]
        lengths = self._pages.lengths(at)
        lost = int(lengths @ self._agents.learning[slots])
        self._pages.release(at - lengths)
        self._cursor[slots] = self._pages.nowhere
        self._forget(slots)
        self.pending -= lost
        return lost

    def renew(self, source: int) -> None:
        """Emit as another source from now on."""
        self._source, self.emitted = source, 0
        self._outbox.renumber()

    def emit(self) -> TrajectoryBatch | None:
        """All closed trajectories and waiting game results as one batch; None if there are none."""
        batch = self._outbox.emit(self._pages, self._behavior_id, self._source)
        if batch is not None:
            credits = batch.credits
            self.pending -= credits
            self.emitted += credits
        return batch

    def _locate(self, step: StepBatch) -> tuple[Numbers, _LastTick]:
        """Slots of agents that ended (`NOBODY` if unknown), and of those that decide (new ones get one)."""
        ended = step.ended
        agent_ids = step.agent_ids[ended:]
        # Comparing bytes costs a tenth of `array_equal`; identity would prove nothing, as arrays may be reused.
        key = agent_ids.tobytes()
        tick = self._last_tick
        if tick is not None and tick.agents == key:
            return self._slots.find(step.agent_ids[:ended]) if ended else _NONE, tick
        slots = self._slots.find(step.agent_ids)
        ending, deciding = slots[:ended], slots[ended:]
        new = (deciding == NOBODY).nonzero()[0]
        if len(new):
            deciding[new] = self._join(agent_ids[new], step.env_ids[ended:][new])
        self._last_tick = tick = _LastTick(key, as_slice(deciding))
        return ending, tick

    def _join(self, agent_ids: Numbers, env_ids: NDArray[np.int32]) -> Numbers:
        slots = self._slots.add(agent_ids)
        total, present = self._slots.total, len(self._cursor)
        if total > present:
            self._cursor = enlarged(self._cursor, total)
            self._cursor[present:] = self._pages.nowhere
        self._agents.join(slots, total, env_ids)
        return slots

    def _end(self, step: StepBatch, ending: Numbers, ends: Numbers) -> Numbers:
        """Close the trajectories that this tick's endings completed; returns the slots of known agents."""
        terminated, rewards, shared = step.terminated, _returned(step)[: step.ended], _shared(step)[: step.ended]
        parameters = step.parameters.copy() if step.parameters is not None else np.zeros(step.ended, np.int32)
        if np.count_nonzero(ending) < len(ending):  # an episode without a decision leaves nothing to close
            known = ending.nonzero()[0]
            ending, ends, terminated, rewards = ending[known], ends[known], terminated[known], rewards[known]
            parameters, shared = parameters[known], shared[known]
            if not len(known):
                return ending
        lengths = self._pages.lengths(ends)
        closed = self._agents.closed(ending, self._slots.ids[ending], ends, terminated.copy(), ~terminated)
        self.pending += int(np.count_nonzero(closed.learning))
        steps = self._agents.steps_before[ending] + lengths
        of_trajectories = of_episodes = None
        if self._mates is not None:
            slots = self._slots.used()
            left = slots[self._cursor[slots] != self._pages.nowhere]
            of_trajectories = self._mates.note_closed(ending, left)
            of_episodes = self._mates.of_episodes(ending, shared, steps, of_trajectories["group_left"])
        self._outbox.add(closed, sum(lengths.tolist()), of_trajectories)
        returns = self._agents.returns[ending] + rewards
        self._outbox.add_episodes(
            EndedEpisodes(closed.agent_ids, returns, steps, closed.learning, parameters), of_episodes
        )
        return ending

    def _decide(
        self, step: StepBatch, tick: _LastTick, at: Numbers, observations: list[tuple[PageColumn, Array]]
    ) -> None:
        """Open this tick's decisions.

        Args:
            step: the tick.
            tick: who decides.
            at: [d] the rows after those of their previous decisions, which are completed; changed for agents
                that begin another page.
            observations: the columns of observations with the agents' records [d].
        """
        where = tick.where
        # Agents that start an episode get a wrong return here; `_start_episodes` sets it to 0.
        self._agents.returns[where] += _returned(step)[step.ended :]
        stamps: Stamps = (step.episode_ids[step.ended :], step.generations, step.opponents, step.learning)
        if self._mates is not None and step.group_ids is not None:
            self._mates.returns[where] += _shared(step)[step.ended :]
            stamps = (*stamps, step.group_ids[step.ended :])
        key = as_bytes(stamps)
        fresh, restamped = 0, None
        # Where agents and stamps are the last tick's and no agent ended, no episode starts: the fast path.
        if step.ended or tick.stamps != key:
            tick.stamps, tick.learning = key, int(np.count_nonzero(step.learning))
            fresh, restamped = self._check_stamps(where, at, stamps, key)
        self.pending += tick.learning
        self._turn_pages(where, at, fresh, restamped, observations)
        if restamped is not None:
            self._agents.stamp(where, stamps)
        self._pages.write_decisions(at, step.decisions, step.policy_versions)
        if self._mates is not None:
            self._pages.of_groups["ticks"][at] = step.tick
        self._cursor[where] = at

    def _check_stamps(
        self, where: Where, at: Numbers, stamps: Stamps, expected: bytes
    ) -> tuple[int, NDArray[np.bool_] | None]:
        """Handle agents whose stamps are not those of their open decision; corrects `pending` for them.

        Args:
            where: the slots of the agents that decide.
            at: [d] the rows after those of their open decisions; nowhere's for decisions that are dropped.
            stamps: [d] of the new decisions.
            expected: the same as bytes.

        Returns:
            The number of agents that start an episode, and [d] true where stamps changed within one, to be set when
            the open step is completed (None if none did).
        """
        fresh = (at == self._pages.nowhere + 1).nonzero()[0]
        if len(fresh):
            self._start_episodes(pick(where, fresh), [values[fresh] for values in stamps])
        old = self._agents.stamps(where)
        if as_bytes(old) == expected:
            return len(fresh), None
        lost = (old[0] != stamps[0]).nonzero()[0]
        if len(lost):
            self._warn(pick(where, lost[:1]), stamps[0][lost[0]])
            self._leave(pick(where, lost), truncated=True)
            self._start_episodes(pick(where, lost), [values[lost] for values in stamps])
            at[lost] = self._pages.nowhere + 1
            old = self._agents.stamps(where)
        # The other open steps are completed under the stamp that they were decided under.
        self.pending += int(np.count_nonzero(old[LEARNING])) - int(np.count_nonzero(stamps[LEARNING]))
        changed = np.logical_or.reduce([before != now for before, now in zip(old, stamps, strict=True)])
        return len(fresh) + len(lost), changed

    def _start_episodes(self, slots: Numbers, stamps: Stamps) -> None:
        """Begin episodes of agents [k] that had no open decision: their rows complete no step."""
        self._agents.start_episodes(slots, stamps)
        self.pending -= int(np.count_nonzero(stamps[LEARNING]))

    def _warn(self, slots: Numbers, episode_id: int) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s: agent %d began episode %d, but its episode %d never ended; the last decision of such "
                "episodes is dropped (logged once). Environments should report an ending row.",
                *(self._behavior_id, self._slots.ids[slots[0]], episode_id, self._agents.episode_ids[slots[0]]),
            )

    def _turn_pages(
        self,
        where: Where,
        at: Numbers,
        fresh: int,
        restamped: NDArray[np.bool_] | None,
        observations: list[tuple[PageColumn, Array]],
    ) -> None:
        """Begin pages of agents whose page is full, whose stamps changed, or (`fresh` many) that have none."""
        pages = self._pages
        full = at % pages.stride == pages.stride - 1  # true for nowhere's row as well
        if restamped is not None:
            full |= restamped
        turning = full.nonzero()[0]
        if not len(turning):
            return
        ends = at[turning]
        for column, records in observations:
            column.records[ends] = records[turning]
        starts = pages.allocate(len(turning))
        pages.keep_actions(ends, starts)
        at[turning] = starts
        if fresh < len(turning):
            if fresh:
                cut = (ends != pages.nowhere + 1).nonzero()[0]
                turning, ends = turning[cut], ends[cut]
            self._close(pick(where, turning), ends, pages.lengths(ends))

    def _cut(self, slots: Numbers, max_first_version: int | None = None) -> None:
        """Close the completed rows of these agents; their open decisions become first rows of other pages."""
        ends = self._cursor[slots]
        lengths = self._pages.lengths(ends)
        chosen = lengths > 0
        if max_first_version is not None:
            chosen &= self._pages.versions[ends - lengths] <= max_first_version
        slots, ends = slots[chosen], ends[chosen]
        if not len(slots):
            return
        starts = self._pages.allocate(len(slots))
        self._pages.move(ends, starts)
        self._cursor[slots] = starts
        self._close(slots, ends, lengths[chosen])

    def _cut_mates(self, mates: Groups) -> None:
        """Close the completed rows of the mates of agents whose trajectories were just closed."""
        if mates.anyone_parted:
            self._cut(mates.parted(self._slots.used()))
            mates.forget_parted()

    def _leave(self, slots: Numbers, *, truncated: bool) -> None:
        """Close the completed rows of agents, and drop their open decisions."""
        ends = self._cursor[slots]
        lengths = self._pages.lengths(ends)
        made = lengths > 0
        self._pages.release(ends[~made])
        self._cursor[slots] = self._pages.nowhere
        self._close(slots[made], ends[made], lengths[made], truncated=truncated)

    def _close(self, slots: Numbers, ends: Numbers, lengths: Numbers, *, truncated: bool = False) -> None:
        """Put trajectories that did not end in the outbox: `lengths` [k] rows before the rows `ends` [k]."""
        if not len(slots):
            return
        self._agents.steps_before[slots] += lengths
        flags = np.zeros((2, len(slots)), np.bool_)
        flags[1] = truncated
        of_groups = None if self._mates is None else self._mates.note_closed(slots)
        closed = self._agents.closed(slots, self._slots.ids[slots], ends, *flags)
        self._outbox.add(closed, sum(lengths.tolist()), of_groups)

    def _forget(self, slots: Numbers) -> None:
        """Forget agents that have no open decision any more."""
        if len(slots):
            self._slots.remove(slots)
            self._last_tick = None


def _returned(step: StepBatch) -> Floats:
    """Rewards [n] as the returns of episodes count them."""
    return step.rewards if step.undiscounted is None else step.undiscounted[:, 0]


def _shared(step: StepBatch) -> Floats:
    """Rewards [n] of agents' groups as the returns of episodes count them; 0 where there are no groups."""
    if step.undiscounted is not None:
        return step.undiscounted[:, 1]
    return np.zeros(len(step.rewards), np.float32) if step.group_rewards is None else step.group_rewards


_NONE = np.empty(0, np.int64)
