"""Stages in a host or in main: their contexts, hooks, checkpoint parts, and chains."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import STAGE_GROUP, RunConfig, StagePlacement
from headrace.config.errors import KeyPath
from headrace.pipeline.common.graph import part_name
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import ControlMessage, CreditsReturned, PartFailed
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.run_folder.checkpoint import Checkpoint, write_part
from headrace.pipeline.run_folder.lock import HeldFolder
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.ends import ItemSink, ItemSource
from headrace.queues.messages import Message
from headrace.stages.activity import Activity, Timings, most_silent
from headrace.stages.errors import LoadError, blaming
from headrace.stages.loading import check_arguments, construct, find_class
from headrace.stages.loop import StageHooks, StageRunner
from headrace.stages.stage import Stage, StageContext

LOCAL_BOUND = 2
"""Maximum number of batches between two stages in a host, so that one stage can produce while the next processes."""

Runner = Coroutine[Any, Any, None]


class StageHost:
    """Provides contexts, hooks and saved states for the stages that run in one host.

    Args:
        host: name of the host, or of main.
        run_folder: `results/<run-id>`.
        seed: the run's seed.
        replica: the host's replica number; None if there can be only one.
        statistics: receives the stages' statistics.
        checkpoint: the checkpoint from which the stages resume; None in a new run.
        send: receives messages for main.
        incarnation: `HostPlan.incarnation`.

    Attributes:
        folder: the run folder, in which checkpoint parts are written.
    """

    def __init__(
        self,
        host: str,
        run_folder: Path,
        seed: int,
        replica: int | None,
        statistics: StatisticsCollector,
        checkpoint: Checkpoint | None,
        send: Callable[[ControlMessage], None],
        incarnation: int = 0,
    ) -> None:
        self.statistics = statistics
        self.timings = Timings()
        self.checkpoint = checkpoint
        self._host = host
        self.folder = HeldFolder(run_folder, incarnation)
        self._seed = seed
        self._replica = () if replica is None else (replica,)
        self._send = send
        self._returned: dict[tuple[str, str, int], int] = {}
        self._saved: dict[str, int] = {}
        self._activities: list[Activity] = []

    def silent_s(self) -> float:
        """Return the seconds since the host's most silent stage last made progress; 0 if there are no stages."""
        now = time.monotonic()
        return max((activity.silent_s(now) for activity in self._activities), default=0.0)

    def most_silent(self) -> Activity | None:
        """Return the activity of the host's most silent stage; None if all stages make progress."""
        return most_silent(self._activities, time.monotonic())

    def context(self, stage: str) -> StageContext:
        """Create the context for a stage."""
        activity = Activity()
        self._activities.append(activity)
        return StageContext(
            name=stage,
            replica=sum(self._replica),
            seed=derive_seed(self._seed, stage, *self._replica),
            run_folder=self.folder.path,
            statistics=self.statistics,
            log=logging.getLogger(f"headrace.stages.{stage}"),
            activity=activity,
            timings=self.timings,
        )

    def hooks(self, stage: str) -> StageHooks:
        """Create the hooks for the loop that runs a stage."""

        def return_credits(behavior: str, source: int, amount: int) -> None:
            key = (self.part_name(stage), behavior, source)
            self._returned[key] = self._returned.get(key, 0) + amount
            self._send(CreditsReturned(*key, self._returned[key]))

        return StageHooks(return_credits, self.save_part)

    def part_name(self, stage: str) -> str:
        """Return the name of a stage's checkpoint part, which is unique across hosts and the same in every run."""
        return part_name(stage, self._host)

    def saved_state(self, stage: str) -> Mapping[str, Any] | None:
        """Read the state from which a stage resumes; return None in a new run."""
        if self.checkpoint is None:
            return None
        state: Mapping[str, Any] | None = self.checkpoint.read(self.part_name(stage))
        return state

    def has_saved(self, stage: str, number: int) -> bool:
        """Return True if a stage's part for this checkpoint, or for a later one, was written."""
        return self._saved.get(self.part_name(stage), -1) >= number

    def save_part(self, stage: str, number: int, state: Mapping[str, Any] | None) -> None:
        """Write a stage's part of a checkpoint and report it; a disk error is reported and does not end training.

        A part is written only once, because main may have committed the checkpoint before a late barrier arrives.
        """
        if self.has_saved(stage, number):
            return
        name = self.part_name(stage)
        try:
            self._send(write_part(self.folder.check() / "checkpoints", number, name, state))
        except OSError as error:
            self._send(PartFailed(number, name, str(error)))
        self._saved[name] = number


@dataclass(frozen=True)
class PlacedStage:
    """A stage and its name in the host."""

    name: str
    stage: Stage[Any, Any]
    behaviors: frozenset[str] | None = None
    """The behaviour names that the stage handles; None for all."""
    hooks: StageHooks | None = None
    """Hooks for a stage whose state belongs to a shared state that is saved and restored elsewhere; None for other
    stages.
    """


@dataclass(frozen=True)
class _Messages:
    """A sink that accepts only messages, so that an error names the stage that yielded a wrong item."""

    sink: ItemSink[Any]

    async def put(self, item: Any) -> None:
        if not isinstance(item, Message):
            raise TypeError(f"not a pipeline message: {type(item).__name__}")
        await self.sink.put(item)

    def close(self) -> None:
        self.sink.close()


def chain(
    stages: Sequence[PlacedStage], host: StageHost, receiver: ItemSource[Any], sender: ItemSink[Any]
) -> list[Runner]:
    """Create runners for one or more stages, in order, connected by bounded queues."""
    runners = []
    source = receiver
    for placed in stages:
        sink: Any = sender if placed is stages[-1] else AgentManagerQueue(f"{placed.name} out", LOCAL_BOUND)
        hooks, state = placed.hooks, None
        if hooks is None:
            hooks, state = host.hooks(placed.name), host.saved_state(placed.name)
        context = host.context(placed.name)
        runners.append(
            StageRunner(placed.stage, source, _Messages(sink), context, hooks, placed.behaviors, state).run()
        )
        source = sink
    return runners


# Custom stages.


def build_stage(placement: StagePlacement, config: RunConfig) -> Stage[Any, Any]:
    """Create a custom stage.

    Raises:
        LoadError: if the class can't be imported, is not a Stage, does not accept its arguments or raises an exception.
    """
    stage_class, arguments = _find(placement, config)
    with blaming(*_key(placement, config)):
        stage: Stage[Any, Any] = construct(_where(placement), placement.use, stage_class, arguments)
    return stage


def build_stages(placements: Sequence[StagePlacement], config: RunConfig) -> list[PlacedStage]:
    """Create the custom stages in an actor's host, in order.

    Raises:
        LoadError: see `build_stage`.
    """
    return [
        PlacedStage(
            placement.name,
            build_stage(placement, config),
            None if placement.behaviors is None else frozenset(placement.behaviors),
        )
        for placement in placements
    ]


def check_stages(config: RunConfig) -> list[LoadError]:
    """Return the mistakes in custom stages that can be found without creating the stages."""
    mistakes = []
    for placement in config.pipeline.stages:
        try:
            _find(placement, config)
        except LoadError as error:
            mistakes.append(error)
    return mistakes


def _where(placement: StagePlacement) -> str:
    return f"pipeline.stages: {placement.name}"


def _key(placement: StagePlacement, config: RunConfig) -> KeyPath:
    """Return the path of the stage's YAML key, found by the stage's unique name."""
    return ("pipeline", "stages", [other.name for other in config.pipeline.stages].index(placement.name))


def _find(placement: StagePlacement, config: RunConfig) -> tuple[type[Stage[Any, Any]], dict[str, Any]]:
    where, key = _where(placement), _key(placement, config)
    with blaming(*key, "use"):
        stage_class = find_class(where, placement.use, config.source_folder, STAGE_GROUP)
        if not issubclass(stage_class, Stage):
            raise LoadError(
                f"{where}: {placement.use}: expected a class derived from headrace.Stage, got {stage_class!r}"
            )
    with blaming(*key, "with"):
        return stage_class, check_arguments(where, placement.use, stage_class, placement.with_)
