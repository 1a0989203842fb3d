"""The agent processor stage: takes in steps of many agents, and emits trajectories of single agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from headrace.queues.errors import ShapeError
from headrace.queues.messages import StepBatch, TrajectoryBatch
from headrace.queues.specs import behavior_name
from headrace.stages.agent.assembler import Assembler
from headrace.stages.errors import StageError
from headrace.stages.stage import Stage


# Runs in the environment stage's task: a queue between them would cost a copy and two switches (docs/decisions/003).
class AgentProcessor(Stage[StepBatch, TrajectoryBatch]):
    """Turns steps into trajectories, agent by agent, for all behaviour ids of its actor.

    A row of a `StepBatch` carries the reward of the agent's previous decision and completes that step. An ending row
    closes the trajectory; so does the `time_horizon`, after which the same episode continues in another trajectory.
    Closed trajectories leave as one packed batch per behaviour id, with the episodes and games that ended meanwhile. An
    ending that is not `terminated` counts as truncated.

    The stage keeps one open decision per agent and the steps before it. It ignores the ending of an agent without an
    open decision, and the reward in that agent's decision row. An agent that starts another episode without an
    ending row loses its open decision, whose reward and next observation are unknown; the steps before it leave as
    truncated, with that decision's observation as their next observation, and a warning is logged once. If only the
    self-play stamp of an agent changes, its trajectory is cut: each step keeps the stamp of its decision, and none is
    lost. An agent that vanishes without an ending row keeps its slot forever, as it may come back: environments must
    end their agents, or the actor must call `drop_environments`.

    `finish` emits all completed steps. A checkpoint holds neither unfinished trajectories nor the environments' states,
    so there is no `state_dict`: after a resume the actor collects steps in place of those that were not emitted; in
    deterministic runs, `close_all` closes them at the checkpoint.

    Args:
        horizons: `time_horizon` by behaviour name, as a mapping or a function.
        source: the incarnation of the actor, for flow credits.
        min_rows: the number of rows in closed trajectories at which `emit_full` emits them; 1 means immediately.

    Raises:
        StageError: if `min_rows` or a behaviour's horizon is less than 1, or a horizon is unknown.
        ShapeError: if a behaviour's columns change in name, dtype or shape.
    """

    def __init__(self, horizons: Mapping[str, int] | Callable[[str], int], source: int = 0, min_rows: int = 1) -> None:
        if min_rows < 1:
            raise StageError(f"agent processor: min_rows must be at least 1, got {min_rows}")
        self._horizons = horizons
        self.source = source
        """The incarnation of the actor, stamped on its batches."""
        self._min_rows = min_rows
        self._assemblers: dict[str, Assembler] = {}
        self._by_name: dict[str, list[Assembler]] = {}

    def process(self, item: StepBatch) -> Iterator[TrajectoryBatch]:
        """Add one tick; yield at most one batch, after all state is up to date."""
        self.add(item)
        yield from self.emit_full(item.behavior_id)

    def add(self, item: StepBatch) -> None:
        """Add one tick."""
        assembler = self._assemblers.get(item.behavior_id)
        if assembler is None:
            if item.ended == len(item.agent_ids) and not item.decisions:
                return  # no agent has an open decision, and the columns of decisions are not known yet
            assembler = self._add_assembler(item)
        try:
            assembler.add(item)
        except ShapeError as error:
            raise ShapeError(f"{item.behavior_id}: {error}") from error

    def emit_full(self, behavior_id: str | None = None) -> list[TrajectoryBatch]:
        """Emit a behaviour id's closed trajectories if they have at least `min_rows` rows.

        Args:
            behavior_id: the behaviour id to emit; None for all.
        """
        if behavior_id is None:
            return _emit([each for each in self._assemblers.values() if each.waiting_rows >= self._min_rows])
        assembler = self._assemblers.get(behavior_id)
        return _emit([assembler]) if assembler is not None and assembler.waiting_rows >= self._min_rows else []

    # With decisions from before the wait, lag 0 would not be on-policy (docs/decisions/024).
    def replace_decisions(self, item: StepBatch) -> None:
        """Replace the decisions of the last tick's agents, before the environments act on them.

        Args:
            item: the same tick's batch, with decisions of newer policies; its observations, its rewards, and agents
                forgotten meanwhile are ignored.
        """
        assembler = self._assemblers.get(item.behavior_id)
        if assembler is not None:
            assembler.replace_decisions(item)

    def finish(self) -> list[TrajectoryBatch]:
        """Emit every completed step."""
        return self.flush()

    def renew(self, source: int) -> None:
        """From now on, stamp everything emitted with another source, and spend that source's credits."""
        self.source = source
        for assembler in self._assemblers.values():
            assembler.renew(source)

    def pending(self, behavior_name: str) -> int:
        """The number of learning-team steps that are completed and not yet emitted."""
        return sum(assembler.pending for assembler in self._by_name.get(behavior_name, ()))

    def emitted(self, behavior_name: str) -> int:
        """The number of learning-team steps emitted so far by this source: the credits spent."""
        return sum(assembler.emitted for assembler in self._by_name.get(behavior_name, ()))

    def open_agents(self, behavior_name: str) -> int:
        """The number of agents with an open decision."""
        return sum(assembler.open_agents for assembler in self._by_name.get(behavior_name, ()))

    def flush(self, behavior_name: str | None = None) -> list[TrajectoryBatch]:
        """Close unfinished trajectories at their last completed step and emit everything, including game results.

        The observation of an open decision is the next observation of the trajectory cut before it, and the
        decision becomes the first step of the agent's next trajectory: no step is lost or doubled.

        Args:
            behavior_name: flush only behaviour ids of this name; None for all.
        """
        chosen = self._assemblers.values() if behavior_name is None else self._by_name.get(behavior_name, ())
        for assembler in chosen:
            assembler.cut()
        return _emit(chosen)

    # Trajectories across updates would have no bound on their lag (docs/decisions/022).
    def cut_older_than(self, behavior_id: str, version: int) -> list[TrajectoryBatch]:
        """Flush one behaviour id, but only trajectories whose first policy version is at most this one."""
        assembler = self._assemblers.get(behavior_id)
        if assembler is None:
            return []
        assembler.cut(version)
        return _emit([assembler])

    def end_learning(self, behavior_id: str) -> None:
        """End learning from a behaviour id's open decisions; its agents play on.

        Their unfinished trajectories close before those decisions, to be emitted with others: steps completed
        earlier have spent credits, and steps completed from now on spend none.
        """
        assembler = self._assemblers.get(behavior_id)
        if assembler is not None:
            assembler.end_learning()

    def close_all(self, truncated: bool = True) -> list[TrajectoryBatch]:
        """Close and emit unfinished trajectories and forget all agents, before their environments are reset.

        Open decisions are dropped, and the episodes do not count as ended.

        Args:
            truncated: how the trajectories are marked: true, as no other trajectory continues the episode.
        """
        for assembler in self._assemblers.values():
            assembler.close(truncated=truncated)
        return _emit(self._assemblers.values())

    def close_environments(self, env_ids: ArrayLike) -> None:
        """Close the agents of instances that have closed, as `close_all` does; the next batch emits their steps."""
        closed = np.asarray(env_ids, np.int64)
        for assembler in self._assemblers.values():
            assembler.close(truncated=True, env_ids=closed)

    def drop_environments(self, env_ids: ArrayLike) -> int:
        """Forget the agents of crashed instances, with their unfinished trajectories.

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
    batches = [assembler.emit() for assembler in assemblers]
    return [batch for batch in batches if batch is not None]
