"""The agent processor stage, which turns the steps of many agents into trajectories of single agents.

An `Assembler` turns one behaviour id's steps into closed trajectories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.queues.errors import ShapeError
from headrace.queues.messages import Array, Columns, Floats, StepBatch, TrajectoryBatch
from headrace.queues.specs import behavior_name
from headrace.stages.agent.pages import ClosedTrajectories, EndedEpisodes, Outbox, PageColumn, Pages
from headrace.stages.errors import StageError
from headrace.stages.slots import Numbers, Slots, Where, as_slice, enlarged
from headrace.stages.stage import Stage


# Runs in the environment stage's task: a queue between them would cost a copy and two task switches
# (docs/decisions/003).
class AgentProcessor(Stage[StepBatch, TrajectoryBatch]):
    """Turns steps into trajectories, agent by agent, for all behaviour ids of its actor.

    A row of a `StepBatch` carries the reward for the agent's previous decision and completes that step. An ending row
    closes the trajectory. Reaching `time_horizon` also closes it, and the episode continues in a new trajectory. Closed
    trajectories are emitted as one packed batch per behaviour id, together with the episodes and games that ended in
    the meantime. An ending that is not `terminated` counts as truncated.

    For each agent, the stage keeps one open decision and the steps before it. If an agent has no open decision, its
    ending and the reward in its decision row are ignored. If an agent starts a new episode without an ending row, its
    open decision is dropped, because its reward and next observation are unknown. The steps before it are emitted as
    truncated, with that decision's observation as their next observation, and a warning is logged once. If only an
    agent's self-play stamp changes, its trajectory is cut: each step keeps its decision's stamp, and no step is lost.
    An agent that vanishes without an ending row keeps its slot forever, because it may come back. Environments must
    therefore end their agents, or the actor must call `drop_environments`.

    `finish` emits all completed steps. A checkpoint holds neither unfinished trajectories nor the environments' states,
    so there is no `state_dict`. After a resume the actor collects new steps in place of those that were not emitted. In
    deterministic runs, `close_all` closes the trajectories at the checkpoint.

    Args:
        horizons: `time_horizon` for each behaviour name, as a mapping or a function.
        source: id of the actor's incarnation, for flow credits.
        min_rows: the number of rows in closed trajectories at which `emit_full` emits them; with 1, it emits them
            immediately.

    Raises:
        StageError: if a behaviour's horizon is less than 1 or unknown.
        ShapeError: if a behaviour's columns change in name, dtype or shape.
    """

    def __init__(self, horizons: Mapping[str, int] | Callable[[str], int], source: int = 0, min_rows: int = 1) -> None:
        self._horizons = horizons
        self.source = source
        """Id of the actor's incarnation, stamped on its batches."""
        self._min_rows = min_rows
        self._assemblers: dict[str, Assembler] = {}
        self._by_name: dict[str, list[Assembler]] = {}

    def process(self, item: StepBatch) -> Iterator[TrajectoryBatch]:
        """Add one tick; yield at most one batch, after all state is updated."""
        self.add(item)
        yield from self.emit_full(item.behavior_id)

    def add(self, item: StepBatch) -> None:
        """Add one tick."""
        assembler = self._assemblers.get(item.behavior_id)
        if assembler is None:
            if item.ended == len(item.agent_ids) and not item.decisions:
                return  # no agent has an open decision, and the decision columns are not known yet
            assembler = self._add_assembler(item)
        try:
            assembler.add(item)
        except ShapeError as error:
            raise ShapeError(f"{item.behavior_id}: {error}") from error

    def emit_full(self, behavior_id: str | None = None) -> list[TrajectoryBatch]:
        """Emit a behaviour id's closed trajectories if they have at least `min_rows` rows in total.

        Args:
            behavior_id: the behaviour id to emit; None for all.
        """
        full = [
            assembler
            for assembler in self._assemblers.values()
            if assembler.outbox.rows >= self._min_rows and behavior_id in (None, assembler.behavior_id)
        ]
        return _emit(full) if full else []

    # With decisions from before the wait, lag 0 would not be on-policy (docs/decisions/024).
    def replace_decisions(self, item: StepBatch) -> None:
        """Replace the decisions of the last tick's agents, before the environments act on them.

        Args:
            item: the same tick's batch, with newer policies' decisions. Its observations and rewards are ignored, and
                so are agents forgotten in the meantime.
        """
        assembler = self._assemblers.get(item.behavior_id)
        if assembler is not None:
            assembler.replace_decisions(item)

    def finish(self) -> list[TrajectoryBatch]:
        """Emit every completed step."""
        return self.flush()

    def begin_source(self, source: int) -> None:
        """Stamp everything emitted from now on with a new source, and spend that source's credits."""
        self.source = source
        for assembler in self._assemblers.values():
            assembler.begin_source(source)

    def used(self, behavior_name: str) -> int:
        """Return the number of learning-team steps that this source has emitted or holds, completed."""
        used = 0
        for assembler in self._by_name.get(behavior_name, ()):
            used += assembler.emitted + assembler.pending
        return used

    def emitted(self, behavior_name: str) -> int:
        """Return the number of learning-team steps that this source has emitted, which are the credits spent."""
        return sum(assembler.emitted for assembler in self._by_name.get(behavior_name, ()))

    def open_agents(self, behavior_name: str) -> int:
        """Return the number of agents with an open decision."""
        agents = 0
        for assembler in self._by_name.get(behavior_name, ()):
            agents += len(assembler.slots)
        return agents

    def flush(self) -> list[TrajectoryBatch]:
        """Close unfinished trajectories at their last completed step and emit everything, including game results.

        The observation of an open decision is the next observation of the trajectory cut before it, and the decision
        becomes the first step of the agent's next trajectory. No step is lost or duplicated.
        """
        for assembler in self._assemblers.values():
            assembler.cut()
        return _emit(self._assemblers.values())

    # Trajectories that span updates would have no bound on their policy lag (docs/decisions/022).
    def cut_older_than(self, behavior_id: str, version: int) -> list[TrajectoryBatch]:
        """Flush one behaviour id, but only trajectories whose first policy version is at most `version`."""
        assembler = self._assemblers.get(behavior_id)
        if assembler is None:
            return []
        assembler.cut(version)
        return _emit([assembler])

    def end_learning(self, behavior_id: str) -> None:
        """Exclude a behaviour id's open decisions from learning; its agents keep playing.

        Their unfinished trajectories close before those decisions, and are emitted together with other trajectories.
        Steps completed earlier have spent credits; steps completed from now on spend none.
        """
        assembler = self._assemblers.get(behavior_id)
        if assembler is not None:
            assembler.end_learning()

    def close_all(self) -> list[TrajectoryBatch]:
        """Close and emit unfinished trajectories and forget all agents, before their environments are reset.

        Open decisions are dropped, and the episodes do not count as ended. The trajectories are marked as truncated,
        because no other trajectory continues the episode.
        """
        for assembler in self._assemblers.values():
            assembler.close()
        return _emit(self._assemblers.values())

    def close_environments(self, env_ids: ArrayLike) -> None:
        """Close the agents of closed environment instances as `close_all` does. The next batch contains their steps."""
        closed = np.asarray(env_ids, np.int64)
        for assembler in self._assemblers.values():
            assembler.close(closed)

    def drop_environments(self, env_ids: ArrayLike) -> int:
        """Forget the agents of crashed environment instances, and drop their unfinished trajectories.

        Returns:
            The number of completed learning-team steps that are lost.
        """
        crashed = np.asarray(env_ids, np.int64)
        return sum(assembler.drop(crashed) for assembler in self._assemblers.values())

    def _add_assembler(self, step: StepBatch) -> Assembler:
        name = behavior_name(step.behavior_id)
        horizons = self._horizons
        try:
            horizon = horizons(name) if callable(horizons) else horizons[name]
        except KeyError as error:
            message = f"agent processor: no time_horizon for behaviour {name!r}; add it to `behaviors`"
            raise StageError(message) from error
        if horizon < 1:
            raise StageError(f"agent processor: time_horizon of {name!r} must be at least 1, got {horizon}")
        assembler = self._assemblers[step.behavior_id] = Assembler(step, horizon, self.source)
        self._by_name.setdefault(name, []).append(assembler)
        return assembler


def _emit(assemblers: Collection[Assembler]) -> list[TrajectoryBatch]:
    return [batch for assembler in assemblers if (batch := assembler.emit()) is not None]


log = logging.getLogger(__name__)


class Groups:
    """The groups that one behaviour id's agents belong to, by slot.

    Attributes:
        ids: [total] the group in which an agent took its open decision; 0 for none.
        returns: [total] the sum of the group rewards that an agent has received in its episode.
        tick: number of the last tick added.
        parted: the groups of the trajectories that have closed since their teammates' trajectories were last cut.
    """

    def __init__(self, total: int) -> None:
        self.ids = np.zeros(total, np.int64)
        self.returns = np.zeros(total, np.float64)
        self.tick = 0
        self.parted: list[Numbers] = []

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
        self.parted.append(ids)
        goes_on = np.ones(len(ids), np.bool_) if left is None else (ids != 0) & np.isin(ids, self.ids[left])
        return {"group_ids": ids, "next_ticks": np.full(len(ids), self.tick, np.int64), "group_left": goes_on}

    def mates_of_parted(self, slots: Numbers) -> Numbers:
        """Return the given agents that belong to one of the groups in `parted`."""
        ids = self.ids[slots]
        mates: Numbers = slots[(ids != 0) & np.isin(ids, np.concatenate(self.parted))]
        return mates

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
        env_ids: [total] the environment that the agent lives in.
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
        self.env_ids = np.zeros(total, np.int32)

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
        living: Numbers = slots[np.isin(self.env_ids[slots], env_ids)]
        return living

    def enlarge(self, total: int) -> None:
        """Make room for `total` slots."""
        present = len(self.cursor)
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray) and values.ndim:
                setattr(self, name, enlarged(values, total))
        self.cursor[present:] = self._nowhere
        if self.mates is not None:
            self.mates.enlarge(total)


def as_bytes(stamps: Stamps) -> bytes:
    """Return stamps as bytes, which are fast to compare."""
    try:
        return b"".join(stamps)  # type: ignore[arg-type]  # an array is a buffer, read without a copy
    except TypeError:  # an array is not contiguous, such as a column of a table
        return b"".join([values.tobytes() for values in stamps])


@dataclass(slots=True)
class DecidingAgents:
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


_NONE = np.empty(0, np.int64)


class Assembler:
    """Keeps each agent's open decision, and its earlier steps until their trajectory closes, for one behaviour id.

    An agent has a slot as long as it has an open decision. For each slot, the agent state holds the decision's row in
    the pages, its stamps, and the episode's return so far.

    The trajectories of a group's agents close together: when one closes, its teammates' trajectories are cut at the
    same tick. A single batch therefore shows the trainer the entire group's actions at each tick, and which agents
    remained when one ended.

    Attributes:
        pending: number of learning rows held: completed rows of unfinished trajectories, and closed rows not yet
            emitted.
        emitted: number of learning rows emitted so far under the current source.
        behavior_id: the behaviour id.
        slots: the slots of the agents that have an open decision.
        outbox: the closed trajectories that are not yet emitted.
    """

    def __init__(self, step: StepBatch, horizon: int, source: int) -> None:
        self.pending = 0
        self.emitted = 0
        self.behavior_id = step.behavior_id
        self._source = source
        self._pages = Pages(step, horizon)
        self.outbox = Outbox()
        self.slots = Slots(len(step.agent_ids))
        self._last: DecidingAgents | None = None
        """The agents that decided at the last tick; None if an agent has left, or the stamps must be compared."""
        self._agents = AgentState(self.slots.total, self._pages.nowhere, step.group_ids is not None)
        self._mates = self._agents.mates
        self._warned = False

    def add(self, step: StepBatch) -> None:
        """Add one tick, copying all data that is kept.

        Raises:
            ShapeError: if a column's name, dtype or shape differs from those of the first step.
        """
        if step.games:
            self.outbox.add_games(step.games)
        pages, ended, count = self._pages, step.ended, len(step.agent_ids)
        if not count:
            return
        if (step.group_ids is None) != (self._mates is None):
            raise ShapeError("a behaviour must have group_ids either in all steps or in no step")
        agents = self._agents
        slots, ending, strangers, tick = self._find_agents(step)
        # The rows of the open decisions that this tick completes; `nowhere` for agents that have none.
        at = agents.cursor[slots]
        if ended:
            agents.cursor[ending] = pages.nowhere
            at[ended:] = agents.cursor[tick.where]
        # For agents that start an episode, this adds to their previous episode's return; `_start_episodes` resets it to
        # 0.
        rewards = step.rewards if step.undiscounted is None else step.undiscounted[:, 0]
        returns = rewards.astype(_RETURN)  # convert first: adding arrays of two dtypes is slower in NumPy
        returns += agents.returns[slots]
        pages.rewards[at] = step.rewards
        if pages.env_frames is not None and step.env_frames is not None:
            pages.env_frames[at] = step.env_frames
        if self._mates is not None:
            self._mates.tick = step.tick
            pages.of_groups["group_rewards"][at] = step.group_rewards
        at = at + _ONE  # not in place: `at` may be a view of the cursor
        lengths = at % pages.stride
        observations = pages.observation_records(step.observations)
        if ended:
            closing: Where = slice(ended)
            if strangers:  # an episode without a decision has nothing to close
                closing = ending.nonzero()[0]
                ending = ending[closing]
            if len(ending):
                self._end(step, closing, ending, at[closing], lengths[closing], returns[closing])
        if ended < count:
            self._decide(step, tick, at[ended:], lengths[ended:], returns[ended:], observations)
        for column, records in observations:
            column.records[at] = records
        if ended:
            gone = ending[pages.unwritten(agents.cursor[ending])]
            if len(gone):
                self.slots.remove(gone)
                self._last = None
        if self._mates is not None:
            self._cut_mates(self._mates)

    def _find_agents(self, step: StepBatch) -> tuple[Where, Numbers, bool, DecidingAgents]:
        """Find the slots of a tick's agents. New agents that decide get slots.

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
            if self.slots.total > len(self._agents.cursor):
                self._agents.enlarge(self.slots.total)
            self._agents.env_ids[joined] = step.env_ids[new]
        deciding = slots[ended:]
        self._last = last = DecidingAgents(key, deciding, as_slice(deciding))
        return slots, slots[:ended], strangers, last

    def cut(self, max_first_version: int | None = None, slots: Numbers | None = None) -> None:
        """Close unfinished trajectories at their current rows; open decisions begin the agents' next trajectories.

        The trajectories of the agents' teammates are cut too.

        Args:
            max_first_version: cut only trajectories whose first policy version is at most this; None cuts all.
            slots: cut only the trajectories of these agents; None cuts all agents'.
        """
        slots = self.slots.used() if slots is None else slots
        ends = self._agents.cursor[slots]
        lengths = ends % self._pages.stride
        chosen = lengths > 0
        if max_first_version is not None:
            chosen &= self._pages.versions[ends - lengths] <= max_first_version
        slots, ends = slots[chosen], ends[chosen]
        if not len(slots):
            return
        starts = self._pages.allocate(len(slots))
        self._pages.move(ends, starts)
        self._agents.cursor[slots] = starts
        self._close(slots, ends, lengths[chosen])
        if self._mates is not None:
            self._cut_mates(self._mates)

    def end_learning(self) -> None:
        """Exclude the open decisions from learning, so the trainer learns only from completed steps."""
        slots = self.slots.used()
        slots = slots[self._agents.learning[slots]]
        self.cut(slots=slots)
        self._agents.learning[slots] = False
        self._last = None

    def replace_decisions(self, step: StepBatch) -> None:
        """Replace the open decisions of a tick's agents with decisions made by newer policies."""
        slots, _ = self.slots.look_up(step.agent_ids[step.ended :])
        present = slots.nonzero()[0]  # unknown agents have no decision: actions in the `nowhere` row stay 0
        decisions = {name: values[present] for name, values in step.decisions.items()}
        self._pages.write_decisions(self._agents.cursor[slots[present]], decisions, step.policy_versions[present])

    def close(self, env_ids: Numbers | None = None) -> None:
        """Truncate unfinished trajectories at their current rows, and forget their agents and the open decisions.

        Args:
            env_ids: the environments whose agents are closed; None for all.
        """
        slots = self.slots.used()
        if env_ids is not None:
            slots = self._agents.living_in(slots, env_ids)
        self._leave(slots)
        self.slots.remove(slots)
        self._last = None
        if self._mates is not None:
            self._cut_mates(self._mates)

    def drop(self, env_ids: Numbers) -> int:
        """Forget the agents in these environments, and drop their unfinished trajectories.

        Returns:
            The number of completed learning rows that are lost.
        """
        slots = self._agents.living_in(self.slots.used(), env_ids)
        at = self._agents.cursor[slots]
        lengths = at % self._pages.stride
        lost = int(lengths @ self._agents.learning[slots])
        self._pages.free.release(at - lengths)
        self._agents.cursor[slots] = self._pages.nowhere
        self.slots.remove(slots)
        self._last = None
        self.pending -= lost
        return lost

    def begin_source(self, source: int) -> None:
        """Use a new source for everything emitted from now on."""
        self._source, self.emitted = source, 0
        self.outbox.renumber()

    def emit(self) -> TrajectoryBatch | None:
        """Return all closed trajectories and pending game results as one batch; None if there is nothing to emit."""
        batch = self.outbox.emit(self._pages, self.behavior_id, self._source)
        if batch is not None:
            credits = batch.credits
            self.pending -= credits
            self.emitted += credits
        return batch

    def _end(
        self,
        step: StepBatch,
        places: Where,
        ending: Numbers,
        ends: Numbers,
        lengths: Numbers,
        returns: NDArray[np.float64],
    ) -> None:
        """Close the trajectories that end at this tick.

        Args:
            step: the tick.
            places: [k] indices, within the tick, of the rows that end.
            ending: [k] the slots of the agents whose episodes end.
            ends: [k] the rows after the agents' last decisions.
            lengths: [k] the number of rows that precede `ends` in their pages.
            returns: [k] the returns of the episodes.
        """
        terminated, parameters = step.terminated[places].astype(_FLAG), step.parameters
        parameters = np.zeros(len(ending), _NUMBER) if parameters is None else parameters[places].astype(_NUMBER)
        agent_ids, stamps = self.slots.ids[ending], self._agents.stamps(ending)
        closed = ClosedTrajectories._make((ends, agent_ids, *stamps[: LEARNING + 1], terminated, ~terminated))
        self.pending += int(np.count_nonzero(closed.learning))
        steps = self._agents.steps_before[ending] + lengths
        of_trajectories = of_episodes = None
        if self._mates is not None:
            slots = self.slots.used()
            left = slots[self._agents.cursor[slots] != self._pages.nowhere]
            of_trajectories = self._mates.note_closed(ending, left)
            of_episodes = self._mates.of_episodes(ending, _shared(step)[places], steps, of_trajectories["group_left"])
        episodes = EndedEpisodes(closed.agent_ids, returns, steps, closed.learning, parameters)
        self.outbox.add(closed, sum(lengths.tolist()), of_trajectories, episodes, of_episodes)

    def _decide(
        self,
        step: StepBatch,
        tick: DecidingAgents,
        at: Numbers,
        lengths: Numbers,
        returns: NDArray[np.float64],
        observations: list[tuple[PageColumn, Array]],
    ) -> None:
        """Open this tick's decisions.

        Args:
            step: the tick.
            tick: the agents that decide.
            at: [d] the rows after the agents' previous decisions, which are now complete; changed in place for agents
                that begin a new page, because `add` then writes the tick's observations to these rows.
            lengths: [d] the number of rows that precede `at` in their pages.
            returns: [d] the returns of the agents' episodes so far.
            observations: the observation columns, each with its records [n] for all agents.
        """
        where = tick.where
        self._agents.returns[where] = returns
        stamps: Stamps = (step.episode_ids[step.ended :], step.generations, step.opponents, step.learning)
        if self._mates is not None and step.group_ids is not None:
            self._mates.returns[where] += _shared(step)[step.ended :]
            stamps = (*stamps, step.group_ids[step.ended :])
        key = as_bytes(stamps)  # one comparison instead of one per column, in each tick
        turning, fresh, restamped = (lengths == self._pages.full).nonzero()[0], 0, None
        # Fast path: with the last tick's agents and stamps, and no ending, no episode starts.
        if step.ended or tick.stamps != key:
            tick.stamps, tick.learning = key, int(np.count_nonzero(step.learning))
            fresh, restamped = self._check_stamps(tick, at, turning, stamps)
            if restamped is not None:
                restamped[turning] = True
                turning = restamped.nonzero()[0]
        self.pending += tick.learning
        if len(turning):
            self._turn_pages(tick.slots, at, turning, fresh, observations, step.ended)
        if restamped is not None:
            self._agents.stamp(where, stamps)
        self._pages.write_decisions(at, step.decisions, step.policy_versions)
        if self._mates is not None:
            self._pages.of_groups["ticks"][at] = step.tick
        self._agents.cursor[where] = at

    def _check_stamps(
        self, tick: DecidingAgents, at: Numbers, turning: Numbers, stamps: Stamps
    ) -> tuple[int, NDArray[np.bool_] | None]:
        """Handle agents whose new stamps differ from their open decision's, and correct `pending` for them.

        Args:
            tick: the agents that decide, with the new decisions' stamps as bytes.
            at: [d] the rows after the agents' open decisions; set to the row after `nowhere` where a decision is
                dropped.
            turning: the indices of the agents whose page is full, or that have no page.
            stamps: [d] the new decisions' stamps.

        Returns:
            The number of agents that start an episode, and flags [d], true where a stamp changed: the new stamps must
            be set once the open step is complete. The flags are None if stamps changed only where an episode starts.
        """
        fresh = turning
        if len(turning):
            slots = tick.slots[turning]
            starting = self._pages.unwritten(self._agents.cursor[slots])
            fresh = turning[starting]
            self._start_episodes(slots[starting], [values[fresh] for values in stamps])
        old = self._agents.stamps(tick.where)
        if as_bytes(old) == tick.stamps:
            return len(fresh), None
        lost = (old[0] != stamps[0]).nonzero()[0]
        if len(lost):
            if not self._warned:
                self._warned = True
                slot = tick.slots[lost[0]]
                log.warning(
                    "%s: agent %d began episode %d, but its episode %d has not ended; the last decision of an episode "
                    "like this is dropped (logged once). The environment should report the end of each episode.",
                    *(self.behavior_id, self.slots.ids[slot], stamps[0][lost[0]], self._agents.episode_ids[slot]),
                )
            self._leave(tick.slots[lost])
            self._start_episodes(tick.slots[lost], [values[lost] for values in stamps])
            at[lost] = self._pages.nowhere + 1
            old = self._agents.stamps(tick.where)
        # The other open steps keep their decision's stamp when they complete.
        self.pending += int(np.count_nonzero(old[LEARNING])) - int(np.count_nonzero(stamps[LEARNING]))
        changed = np.logical_or.reduce([before != now for before, now in zip(old, stamps, strict=True)])
        changed[lost] = True
        return len(fresh) + len(lost), changed

    def _start_episodes(self, slots: Numbers, stamps: Stamps) -> None:
        """Begin episodes for agents [k] without an open decision; these agents' rows complete no step."""
        agents = self._agents
        agents.stamp(slots, stamps)
        agents.returns[slots] = _NO_RETURN
        agents.steps_before[slots] = _NO_STEPS
        if self._mates is not None:
            self._mates.returns[slots] = _NO_RETURN
        self.pending -= int(np.count_nonzero(stamps[LEARNING]))

    def _turn_pages(
        self,
        slots: Numbers,
        at: Numbers,
        turning: Numbers,
        fresh: int,
        observations: list[tuple[PageColumn, Array]],
        ended: int,
    ) -> None:
        """Begin new pages for agents `turning` (`fresh` had none), and set `at[turning]` to each page's first row."""
        pages, ends = self._pages, at[turning]
        if fresh < len(turning):
            for column, records in observations:
                column.records[ends] = records[ended:][turning]
        starts = pages.allocate(len(turning))
        for column in pages.actions:  # the previous actions of the first decision in the new page
            column.records_before[starts] = column.records_before[ends]
        at[turning] = starts
        if fresh < len(turning):
            if fresh:
                cut = (ends != pages.nowhere + 1).nonzero()[0]
                turning, ends = turning[cut], ends[cut]
            self._close(slots[turning], ends, ends % pages.stride)

    # POCA finds teammates in one batch only if their trajectories close together (docs/decisions/026).
    def _cut_mates(self, mates: Groups) -> None:
        """Close the completed rows of the teammates of agents whose trajectories have just closed."""
        if mates.parted:
            slots = mates.mates_of_parted(self.slots.used())
            mates.parted.clear()
            self.cut(slots=slots)  # these agents belong to the same groups, so no further trajectories close

    def _leave(self, slots: Numbers) -> None:
        """Truncate these agents' completed rows, and drop their open decisions."""
        ends = self._agents.cursor[slots]
        lengths = ends % self._pages.stride
        completed = lengths > 0
        self._pages.free.release(ends[~completed])
        self._agents.cursor[slots] = self._pages.nowhere
        self._close(slots[completed], ends[completed], lengths[completed], truncated=True)

    def _close(self, slots: Numbers, ends: Numbers, lengths: Numbers, *, truncated: bool = False) -> None:
        """Add trajectories without an ending to the outbox; each is the `lengths` [k] rows before row `ends` [k]."""
        if not len(slots):
            return
        self._agents.steps_before[slots] += lengths
        flags = np.zeros((2, len(slots)), np.bool_)
        flags[1] = truncated
        of_groups = None if self._mates is None else self._mates.note_closed(slots)
        agent_ids, stamps = self.slots.ids[slots], self._agents.stamps(slots)
        closed = ClosedTrajectories._make((ends, agent_ids, *stamps[: LEARNING + 1], *flags))
        self.outbox.add(closed, sum(lengths.tolist()), of_groups)


def _shared(step: StepBatch) -> Floats:
    """Return the group rewards [n] that count towards episode returns, or 0 for a behaviour without groups."""
    if step.undiscounted is not None:
        return step.undiscounted[:, 1]
    return np.zeros(len(step.rewards), np.float32) if step.group_rewards is None else step.group_rewards


_FLAG, _NUMBER = np.dtype(np.bool_), np.dtype(np.int32)
_ONE = np.array(1, np.int64)  # NumPy takes longer to convert a Python number than to add it to a few rows
