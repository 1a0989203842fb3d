"""The agent processor stage, which turns the steps of many agents into trajectories of single agents."""

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
        StageError: if `min_rows` or a behaviour's horizon is less than 1, or a horizon is unknown.
        ShapeError: if a behaviour's columns change in name, dtype or shape.
    """

    def __init__(self, horizons: Mapping[str, int] | Callable[[str], int], source: int = 0, min_rows: int = 1) -> None:
        if min_rows < 1:
            raise StageError(f"agent processor: min_rows must be at least 1, got {min_rows}")
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
        if behavior_id is None:
            return _emit([each for each in self._assemblers.values() if each.waiting_rows >= self._min_rows])
        assembler = self._assemblers.get(behavior_id)
        return _emit([assembler]) if assembler is not None and assembler.waiting_rows >= self._min_rows else []

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

    def renew(self, source: int) -> None:
        """Stamp everything emitted from now on with a new source, and spend that source's credits."""
        self.source = source
        for assembler in self._assemblers.values():
            assembler.renew(source)

    def pending(self, behavior_name: str) -> int:
        """Return the number of learning-team steps that are completed but not yet emitted."""
        return sum(assembler.pending for assembler in self._by_name.get(behavior_name, ()))

    def emitted(self, behavior_name: str) -> int:
        """Return the number of learning-team steps that this source has emitted, which are the credits spent."""
        return sum(assembler.emitted for assembler in self._by_name.get(behavior_name, ()))

    def open_agents(self, behavior_name: str) -> int:
        """Return the number of agents with an open decision."""
        return sum(assembler.open_agents for assembler in self._by_name.get(behavior_name, ()))

    def flush(self, behavior_name: str | None = None) -> list[TrajectoryBatch]:
        """Close unfinished trajectories at their last completed step and emit everything, including game results.

        The observation of an open decision is the next observation of the trajectory cut before it, and the decision
        becomes the first step of the agent's next trajectory. No step is lost or duplicated.

        Args:
            behavior_name: flush only behaviour ids with this name; None for all.
        """
        chosen = self._assemblers.values() if behavior_name is None else self._by_name.get(behavior_name, ())
        for assembler in chosen:
            assembler.cut()
        return _emit(chosen)

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

    def close_all(self, truncated: bool = True) -> list[TrajectoryBatch]:
        """Close and emit unfinished trajectories and forget all agents, before their environments are reset.

        Open decisions are dropped, and the episodes do not count as ended.

        Args:
            truncated: whether the trajectories are marked as truncated. By default they are, because no other
                trajectory continues the episode.
        """
        for assembler in self._assemblers.values():
            assembler.close(truncated=truncated)
        return _emit(self._assemblers.values())

    def close_environments(self, env_ids: ArrayLike) -> None:
        """Close the agents of closed environment instances as `close_all` does. The next batch contains their steps."""
        closed = np.asarray(env_ids, np.int64)
        for assembler in self._assemblers.values():
            assembler.close(truncated=True, env_ids=closed)

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
    batches = [assembler.emit() for assembler in assemblers]
    return [batch for batch in batches if batch is not None]
