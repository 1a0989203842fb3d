"""One behaviour in main: its state, and the stages on its route (ghost stage, custom stages, publisher).

Several behaviours' routes may share one stage: self-play or a league.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from headrace.config import BehaviorSettings, RunConfig
from headrace.pipeline.common.graph import Route, main_stage_name, placements_after
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.roles.stages import PlacedStage, Runner, StageHost, build_stage, chain
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.queues.ends import ItemSource, Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import PUBLISHING, Timings
from headrace.stages.errors import describe_error, is_failure
from headrace.stages.loop import SAVING, StageFailure, StageHooks, StageRunner, describe_item
from headrace.stages.publisher import PolicyPublisher
from headrace.stages.stage import Stage
from headrace.stages.trainer.report import TrainerReport


class SharedState:
    """The stage's state: one part of a checkpoint, written once the barrier has passed through every behaviour's route.

    The part therefore includes the effects of all items before the barrier on each route.

    Args:
        name: name of the part.
        stages: hooks and saved states for stages in main.
        state: returns the state.
    """

    def __init__(self, name: str, stages: StageHost, state: Callable[[], Mapping[str, Any]]) -> None:
        self.name = name
        self._stages = stages
        self._state = state
        self._behaviors: list[str] = []
        self._awaited: frozenset[str] = frozenset()
        self._missing: dict[int, set[str]] = {}

    def add(self, behavior: str) -> None:
        """Add a behaviour whose route includes the stage."""
        self._behaviors.append(behavior)

    def begin_checkpoint(self) -> None:
        """Expect a barrier on the route of each behaviour known so far."""
        self._awaited = frozenset(self._behaviors)

    def hooks(self, stage: str, behavior: str) -> StageHooks:
        """Create the hooks for the stage loop that runs the stage on a behaviour's route."""

        def reach(name: str, number: int, state: Mapping[str, Any]) -> None:
            missing = self._missing.setdefault(number, set(self._awaited))
            missing.discard(behavior)
            if not missing:
                self._missing = {other: names for other, names in self._missing.items() if other > number}
                self._stages.save_part(self.name, number, self._state())

        return StageHooks(self._stages.hooks(stage).return_credits, reach)

    def save_now(self, behavior: str, save: Callable[[str, Mapping[str, Any] | None], None]) -> None:
        """Pass the state to `save` without waiting for a barrier, but only once, for the first behaviour."""
        if behavior == self._behaviors[0]:
            save(self.name, self._state())


class SharedPlay(Protocol):
    """The controller for several behaviours' games: the interface that each behaviour's route uses."""

    @property
    def shared(self) -> SharedState:
        """The state that all routes share."""

    def add(self, behavior: str) -> None:
        """Add a behaviour that is about to start training."""

    def elo(self, behavior: str) -> float | None:
        """Return the rating of a behaviour's newest policy; None if there is no rating."""

    def trajectory_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between the actors and the trainer."""

    def policy_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between the trainer and the publisher."""


log = logging.getLogger(__name__)


class TrajectoryPath:
    """The path of one behaviour's trajectories and policies through main.

    Args:
        route: the behaviour's route.
        config: the run's configuration.
        stages: contexts, hooks and saved states for stages in main.
        publisher: receives policies.
        shared: the run's self-play or league if the behaviour takes part in it; otherwise None.
        on_policy: called with each policy from the trainer, and with None after the last one.
    """

    def __init__(
        self,
        route: Route,
        config: RunConfig,
        stages: StageHost,
        publisher: PolicyPublisher,
        shared: SharedPlay | None = None,
        on_policy: Callable[[PolicyUpdate | None], None] = lambda policy: None,
    ) -> None:
        self._route = route
        self._config = config
        self._main = stages
        self._publisher = publisher
        self.shared = shared
        self._on_policy = on_policy
        if shared is not None:
            shared.add(route.behavior)
        self.students: dict[str, Sender[Any]] = {}
        """Queues to the trainers that imitate this behaviour, keyed by the imitators' behaviour names; each receives
        everything that this behaviour's trainer receives.
        """
        self._stages = self._build()
        self._failed_saving: set[str] = set()
        """Names of stages whose state could not be read. They are not queried again, because a stage that hung would
        hang again.
        """

    def trajectories(self, receiver: Receiver[Any], sender: Sender[Any]) -> list[Runner]:
        """Create the runners that carry trajectories from the actors' queue to the learner's."""
        last: Any = _CopyingSink(sender, self.students) if self.students else sender
        if not self._stages:
            return [carry(receiver, last)]
        return [self._noting(runner) for runner in chain(self._stages, self._main, receiver, last)]

    def policies(self, updates: Receiver[Any]) -> list[Runner]:
        """Create the runners that carry policies from the trainer to the publisher."""
        behavior = self._route.behavior
        seen, publish = _ObservedQueue(updates, self._on_policy), _PublisherSink(self._publisher, self._main.timings)
        if self.shared is None:
            return [carry(seen, publish)]
        name = main_stage_name(f"{self.shared.shared.name}-policies", behavior)
        return [StageRunner(self.shared.policy_stage(behavior), seen, publish, self._main.context(name)).run()]

    def save_now(self, save: Callable[[str, Mapping[str, Any] | None], None]) -> None:
        """Pass each stage's state to `save`, without waiting for a barrier.

        This happens after a failure, possibly in one of these stages. A stage whose state can't be read is skipped,
        because the trainers' progress matters more.
        """
        for placed in self._stages:
            name = placed.name
            if name in self._failed_saving:
                save(name, None)
                continue
            try:
                if placed.hooks is not None and self.shared is not None:
                    self.shared.shared.save_now(self._route.behavior, save)
                else:
                    save(name, placed.stage.state_dict())
            except BaseException as error:
                if not is_failure(error):
                    raise
                log.warning(
                    "stage %s can't be saved (%s); a resumed run starts it from scratch",
                    name,
                    describe_error(error),
                )
                save(name, None)

    async def _noting(self, runner: Runner) -> None:
        try:
            await runner
        except StageFailure as failure:
            if failure.doing.startswith(SAVING):
                self._failed_saving.add(failure.stage)
            raise

    def _build(self) -> list[PlacedStage]:
        """Create the custom stages and the ghost or league stage, in order."""
        behavior = self._route.behavior
        stages = []
        for after, names in (("agent_processor", self._route.before_ghost), ("ghost", self._route.after_ghost)):
            if after == "ghost" and self.shared is not None:
                name = main_stage_name(self.shared.shared.name, behavior)
                hooks = self.shared.shared.hooks(name, behavior)
                stages.append(PlacedStage(name, self.shared.trajectory_stage(behavior), hooks=hooks))
            for placement in placements_after(self._config, after, in_main=True):
                if placement.name in names:
                    name = main_stage_name(placement.name, behavior)
                    stages.append(PlacedStage(name, build_stage(placement, self._config)))
        return stages


@dataclass
class BehaviorState:
    """One behaviour: its route from the actors to the trainer and back, and its trainer's progress."""

    behavior: str
    spec: BehaviorSpec
    settings: BehaviorSettings
    path: TrajectoryPath
    learns: bool = field(init=False)
    """True unless brains that do not learn play all of the behaviour's games."""
    learner: HostHandle | None = None
    ready: bool = False
    """True while the behaviour has a trainer with restored state; False while a lost trainer is being replaced."""
    was_ready: bool = False
    """True once the trainer has been ready at least once."""
    step: int = 0
    version: int = 0
    updates: int = 0
    """Number of the trainer's updates that changed weights; see `TrainerReport`."""
    sent: int = 0
    """Version of the newest policy that the trainer has sent."""
    recent_return: float | None = None
    done: bool = False
    ended_by: str = ""
    """Reason why the trainer ended before `max_steps`; empty if it did not."""
    next_checkpoint: int = 0
    exports: list[ExportEntry] = field(default_factory=list)
    not_exported: str = ""
    """Reason why the newest policy or model could not be written; empty if it was written."""

    def __post_init__(self) -> None:
        self.learns = self.settings.learns

    @property
    def elo(self) -> float | None:
        """Self-play rating of the newest policy; None without self-play."""
        return self.path.shared.elo(self.behavior) if self.path.shared is not None else None

    @property
    def export(self) -> Path | None:
        """Path of the newest exported policy, a `.pt` file; None if there is none."""
        if not self.exports:
            return None
        newest = self.exports[-1]
        return Path(newest.auxiliary_file_paths[0] if newest.auxiliary_file_paths else newest.file_path)

    def add_export(self, entry: ExportEntry) -> None:
        """Add an exported policy; a resumed run's first export may replace a file from the same step."""
        others = [e for e in self.exports if e.file_path != entry.file_path]
        self.exports, self.not_exported = [*others, entry], ""

    def start_at(self, step: int) -> None:
        """Set the step from which the trainer continues."""
        self.step = step
        self._schedule(step)

    def checkpoint_begun(self) -> None:
        """Schedule the next checkpoint at the next multiple of `checkpoint_interval`, as in ML-Agents."""
        self._schedule(self.step)

    def receive_report(self, report: TrainerReport) -> bool:
        """Store a trainer's report; return True if a checkpoint is due."""
        self.step, self.version, self.done = report.step, report.version, report.done
        self.updates = report.updates
        self.recent_return, self.ended_by = report.recent_return, report.ended_by
        return self.step >= self.next_checkpoint

    def _schedule(self, step: int) -> None:
        interval = self.settings.checkpoint_interval
        self.next_checkpoint = step + interval - step % interval


class _CopyingSink:
    """Combines several sinks into one: each receives every item, and the slowest sets the pace.

    Each imitator receives items under its own behaviour name, so that a replay can route a recording of its input to
    it. The team number is unchanged, because each team numbers its own trajectories.
    """

    def __init__(self, trainer: Sender[Any], students: Mapping[str, Sender[Any]]) -> None:
        self._trainer = trainer
        self._students = students

    async def put(self, item: Any) -> None:
        await self._trainer.put(item)
        for name, sink in self._students.items():
            if isinstance(item, TrajectoryBatch):
                await sink.put(replace(item, behavior_id=name + item.behavior_id.removeprefix(item.behavior)))
            else:
                await sink.put(item)

    def close(self) -> None:
        for sink in (self._trainer, *self._students.values()):
            sink.close()


class _ObservedQueue:
    """A policy queue that also passes each item to an observer."""

    def __init__(self, receiver: ItemSource[PolicyUpdate], show: Callable[[PolicyUpdate | None], None]) -> None:
        self._receiver = receiver
        self._show = show

    async def __aiter__(self) -> AsyncIterator[PolicyUpdate]:
        async for policy in self._receiver:
            self._show(policy)
            yield policy
            del policy

    def close(self) -> None:
        self._receiver.close()
        self._show(None)


class _PublisherSink:
    """Makes the publisher a sink: publishing never waits, so no queue is needed."""

    def __init__(self, publisher: PolicyPublisher, timings: Timings) -> None:
        self._publisher = publisher
        self._timings = timings

    async def put(self, item: Any) -> None:
        try:
            with self._timings.lasting(PUBLISHING):
                for _ in self._publisher.process(item):
                    pass
        except BaseException as error:
            if not is_failure(error):
                raise
            raise StageFailure("publisher", f"on {describe_item(item)}", error) from error

    def close(self) -> None:
        """Do nothing, because policies for other behaviours will follow."""


async def drain(receiver: Any) -> None:
    """Discard trajectories that no trainer learns from."""
    try:
        async for item in receiver:
            del item
    finally:
        receiver.close()


async def carry(receiver: Any, sender: Any, closes: bool = True) -> None:
    """Move items from one queue to another until either ends; then close both, or only the first if not `closes`."""
    try:
        async for item in receiver:
            await sender.put(item)
            del item
    except QueueClosed:
        pass  # the consumer is gone; main detects that elsewhere
    finally:
        receiver.close()
        if closes:
            sender.close()
