"""The agent processor stage: steps of many agents in, trajectories of single agents out."""

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


# Called in the environment stage's task, as a queue between would cost a copy and two switches (docs/decisions/003).
class AgentProcessor(Stage[StepBatch, TrajectoryBatch]):
    """Turns steps into trajectories, agent by agent, for all behaviour ids of its actor.

    A row of a `StepBatch` brings the reward of the agent's previous decision and completes its step. Ending
    rows close the trajectory; so does the `time_horizon`, after which the same episode continues in another
    one. Closed trajectories leave as one packed batch per behaviour id, with the episodes and games that
    ended meanwhile. An ending that is not `terminated` is truncated.

    It keeps one open decision per agent and the steps before it. An ending of an agent without an open decision is
    ignored, and so is the reward of such an agent's decision row. An agent that starts another episode without an
    ending row loses its open decision (its reward and next observation are unknown); the steps before leave as
    truncated, their next observation being that decision's, and this is logged once. An agent whose self-play stamp
    alone changes is cut there, its steps keep the stamp of their decisions, and none is lost. An agent that vanishes
    without an ending row keeps its slot for ever, as it may come back: environments must end their agents, or
    `drop_environments` must be called.

    `finish` emits all completed steps. Half-made trajectories are no part of a checkpoint (nor are the environments'
    states), so there is no `state_dict`: steps that were not emitted are made anew after a resume, or, in
    deterministic runs, closed by `close_all` at the checkpoint.

    Args:
        horizons: `time_horizon` by behaviour name, as a mapping or a function.
        source: the incarnation of the actor, for flow credits.
        min_rows: rows of closed trajectories that must wait before `emit_full` emits them; 1 means at once.

    Raises:
        StageError: if `min_rows` or a behaviour's horizon is less than 1, or a horizon is unknown.
        ShapeError: if a behaviour's columns change in name, dtype or shape.
    """

    def __init__(self, horizons: Mapping[str, int] | Callable[[str], int], source: int = 0, min_rows: int = 1) -> None:
        if min_rows < 1:
            raise StageError(f"agent processor: min_rows must be at least 1, got {min_rows}")
        self._horizons = horizons
        self.source = source
        """The incarnation of the actor that its batches are stamped with."""
        self._min_rows = min_rows
        self._assemblers: dict[str, Assembler] = {}
        self._by_name: dict[str, list[Assembler]] = {}

    def process(self, item: StepBatch) -> Iterator[TrajectoryBatch]:
        """Add one tick; yield at most one batch, when all state is up to date."""
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
        """Emit where `min_rows` rows or more of closed trajectories wait.

        Args:
            behavior_id: only there; None: everywhere.
        """
        if behavior_id is None:
            return _emit([each for each in self._assemblers.values() if each.waiting_rows >= self._min_rows])
        assembler = self._assemblers.get(behavior_id)
        return _emit([assembler]) if assembler is not None and assembler.waiting_rows >= self._min_rows else []

    # A decision from before a wait would make lag 0 off-policy (docs/decisions/024).
    def replace_decisions(self, item: StepBatch) -> None:
        """Replace the decisions of the agents of the last tick, before the environments act on them.

        Args:
            item: that tick's batch once more, with decisions by newer policies; observations, rewards and agents
                that were forgotten meanwhile are ignored.
        """
        assembler = self._assemblers.get(item.behavior_id)
        if assembler is not None:
            assembler.replace_decisions(item)

    def finish(self) -> list[TrajectoryBatch]:
        """Emit every completed step."""
        return self.flush()

    def renew(self, source: int) -> None:
        """Stamp all that is emitted from now on with another source, whose credits it spends."""
        self.source = source
        for assembler in self._assemblers.values():
            assembler.renew(source)

    def pending(self, behavior_name: str) -> int:
        """Learning-team steps that are completed and not yet emitted."""
        return sum(assembler.pending for assembler in self._by_name.get(behavior_name, ()))

    def emitted(self, behavior_name: str) -> int:
        """Learning-team steps emitted so far by this source: the credits spent."""
        return sum(assembler.emitted for assembler in self._by_name.get(behavior_name, ()))

    def open_agents(self, behavior_name: str) -> int:
        """Agents with an open decision."""
        return sum(assembler.open_agents for assembler in self._by_name.get(behavior_name, ()))

    def flush(self, behavior_name: str | None = None) -> list[TrajectoryBatch]:
        """Close half-made trajectories at their last completed step and emit all that waits, game results too.

        The observation of an open decision is the next observation of the trajectory cut before it, and the
        decision becomes the first step of the agent's next trajectory: nothing is lost, nothing comes twice.

        Args:
            behavior_name: only behaviour ids with this name; None: all.
        """
        chosen = self._assemblers.values() if behavior_name is None else self._by_name.get(behavior_name, ())
        for assembler in chosen:
            assembler.cut()
        return _emit(chosen)

    # Trajectories across updates would have no bound on their lag (docs/decisions/022).
    def cut_older_than(self, behavior_id: str, version: int) -> list[TrajectoryBatch]:
        """As `flush`, for one behaviour id and only for trajectories begun with this version or before."""
        assembler = self._assemblers.get(behavior_id)
        if assembler is None:
            return []
        assembler.cut(version)
        return _emit([assembler])

    def end_learning(self, behavior_id: str) -> None:
        """End learning from a behaviour id's open decisions; its agents play on.

        Their half-made trajectories are closed before those decisions, to be emitted with others: steps completed
        before have spent credits, and steps completed from now on spend none.
        """
        assembler = self._assemblers.get(behavior_id)
        if assembler is not None:
            assembler.end_learning()

    def close_all(self, truncated: bool = True) -> list[TrajectoryBatch]:
        """Close and emit half-made trajectories and forget all agents, before their environments are reset.

        Open decisions are dropped, and the episodes do not count as ended.

        Args:
            truncated: the mark of the trajectories: true, as no other trajectory continues the episode.
        """
        for assembler in self._assemblers.values():
            assembler.close(truncated=truncated)
        return _emit(self._assemblers.values())

    def close_environments(self, env_ids: ArrayLike) -> None:
        """Forget the agents of instances that have closed; as `close_all`, but all is emitted with what comes next."""
        closed = np.asarray(env_ids, np.int64)
        for assembler in self._assemblers.values():
            assembler.close(truncated=True, env_ids=closed)

    def drop_environments(self, env_ids: ArrayLike) -> int:
        """Forget the agents of crashed instances, with their half-made trajectories.

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
