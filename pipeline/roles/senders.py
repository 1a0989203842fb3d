"""An actor's output queues and a trainer's input queue: routing, recording and filtering of steps."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from headrace.config import RunConfig
from headrace.pipeline.common.graph import TRAINER, teacher_of
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.policies.inference import policy_file
from headrace.pipeline.policies.model_files import is_onnx
from headrace.pipeline.roles.sizes import squashes_actions
from headrace.queues.columns import Column
from headrace.queues.ends import ItemSink, ItemSource, Sender
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import StreamHeader, StreamWriter, next_stream_path
from headrace.stages.activity import RECORDING, Timings
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.replay import GuardedRecorder, Recorder

AGENT_PROCESSOR = "agent_processor"


def recorded_here(config: RunConfig, edge: str, behavior: str | None = None) -> bool:
    """Return True if an edge is recorded or, given a behaviour, if that behaviour is recorded at the edge."""
    record = config.record
    if record is None or edge not in record.edges:
        return False
    return behavior is None or record.behaviors == "all" or behavior in record.behaviors


class SenderTap:
    """Records the agent processor's output in one file per actor, which is created with the first batch."""

    def __init__(self, plan: HostPlan, config: RunConfig, timings: Timings) -> None:
        self._plan = plan
        self._timings = timings
        self._config = config
        self._specs: list[BehaviorSpec] = []
        self._recorder: GuardedRecorder | None = None
        self._sink: ItemSink[Any]

    def expect(self, spec: BehaviorSpec) -> None:
        """Add a behaviour spec to the file's header, or to the file itself if the header is already written."""
        self._specs.append(spec)
        if self._recorder is not None:
            self._recorder.announce(_header(self._plan, AGENT_PROCESSOR, [spec], self._config, {}))

    def before(self, sink: ItemSink[Any]) -> SenderTap:
        """Record the items that go to `sink`, and return self."""
        self._sink = sink
        return self

    async def put(self, item: TrajectoryBatch | Barrier) -> None:
        """Record an item and forward it."""
        if isinstance(item, Barrier) or recorded_here(self._config, AGENT_PROCESSOR, item.behavior):
            if self._recorder is None:
                self._recorder = GuardedRecorder(self._make_recorder)
            with self._timings.lasting(RECORDING):
                self._recorder.tap(item)
        await self._sink.put(item)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def finish(self) -> None:
        """Write the file's index."""
        if self._recorder is not None:
            self._recorder.finish()

    def _make_recorder(self) -> Recorder:
        header = _header(self._plan, AGENT_PROCESSOR, self._specs, self._config, self._plan.config)
        return _recorder(self._plan, self._plan.name, header)


class ReceiverTap:
    """Records a trainer's input in exactly the order in which the trainer takes items."""

    def __init__(
        self, receiver: ItemSource[Any], plan: HostPlan, config: RunConfig, spec: BehaviorSpec, timings: Timings
    ) -> None:
        self._receiver = receiver
        self._timings = timings
        # A replay takes the actual seed from here, because the configuration may leave it random.
        env_settings = {**plan.config["env_settings"], "seed": plan.seed}
        plain = {**plan.config, "env_settings": env_settings}
        self._recorder = GuardedRecorder(
            lambda: _recorder(plan, plan.behavior, _header(plan, TRAINER, [spec], config, plain))
        )

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._receiver:
            with self._timings.lasting(RECORDING):
                self._recorder.tap(item)
            yield item
            del item

    def close(self) -> None:
        """Close the input queue, because its consumer is gone."""
        self._receiver.close()

    def finish(self) -> None:
        """Write the file's index."""
        self._recorder.finish()


def _recorder(plan: HostPlan, name: str, header: StreamHeader) -> Recorder:
    (edge,) = header.edges
    return Recorder(StreamWriter(next_stream_path(plan.folder / "streams", name, edge), header), edge)


def _header(
    plan: HostPlan, edge: str, specs: Sequence[BehaviorSpec], config: RunConfig, plain: Mapping[str, Any]
) -> StreamHeader:
    """Return the header of a recording whose configuration is `plain`."""
    # An imitator learns from steps that its teacher's policy has chosen.
    actors = {spec.name: teacher_of(config, spec.name) or spec.name for spec in specs}
    columns = {spec.name: _added_columns(plan, config, spec, actors[spec.name]) for spec in specs}
    squashed = [name for name, actor in actors.items() if squashes_actions(config, actor)]
    return StreamHeader.of(plan.run_id, time.time(), (edge,), specs, plain, columns, squashed)


def _added_columns(plan: HostPlan, config: RunConfig, spec: BehaviorSpec, actor: str) -> tuple[Column, ...]:
    """Return the columns that the policies of the behaviour `actor` add to decisions."""
    if config.behavior_settings(actor).demonstrations is not None:  # no Headrace policy acted
        return ()
    # An .onnx model that is played adds no columns.
    if config.checkpoint_settings.inference and is_onnx(policy_file(config, plan.folder, actor)):
        return ()
    return design_of(spec, config.behavior_settings(actor), config.source_folder).added_columns


class Router:
    """Sends trajectories to their behaviour's queue, and barriers to all queues.

    Waits for queues that have yet to open.
    """

    def __init__(self) -> None:
        self._senders: dict[str, Sender[Any]] = {}
        self._expected: set[str] = set()
        self._opened = asyncio.Event()

    def expect(self, behavior: str) -> None:
        """Announce that a queue for this behaviour name will open."""
        self._expected.add(behavior)

    def open(self, behavior: str, sender: Sender[Any]) -> None:
        """Store the queue for a behaviour name, which is now open."""
        self._expected.add(behavior)
        self._senders[behavior] = sender
        self._opened.set()

    async def put(self, item: TrajectoryBatch | Barrier) -> None:
        """Put an item into its queue, waiting until there is room.

        Raises:
            StageError: if the item's behaviour was not announced, because no queue would ever open for it.
        """
        names = [item.behavior] if isinstance(item, TrajectoryBatch) else sorted(self._expected)
        if isinstance(item, TrajectoryBatch) and item.behavior not in self._expected:
            expected = ", ".join(sorted(self._expected)) or "none"
            raise StageError(f"no trainer accepts trajectories of {item.behavior_id!r} (behaviours: {expected})")
        for name in names:
            while name not in self._senders:
                self._opened.clear()
                await self._opened.wait()
            await self._senders[name].put(item)

    def close(self) -> None:
        """Do nothing: the host closes the queues after it has reported how it ends."""


# The route for brains' steps, from which no trainer learns: they skip users' stages, unless broadcast.


class BrainSteps:
    """The agent processor's output, where brains' steps that are not broadcast skip the recorder and custom stages.

    Steps of a behaviour that never learns go straight to main, which counts them. Brains' steps of a behaviour that
    also learns are dropped.

    Args:
        sink: receives everything else.
        router: routes items to the actor's output queues.
        config: the run's configuration.
    """

    def __init__(self, sink: ItemSink[Any], router: ItemSink[Any], config: RunConfig) -> None:
        self._sink = sink
        self._router = router
        self._config = config

    async def put(self, item: TrajectoryBatch | Barrier) -> None:
        """Forward an item to the sink or the router, or drop it."""
        if isinstance(item, TrajectoryBatch):
            settings = self._config.behavior_settings(item.behavior)
            if settings.brain and not settings.broadcast:
                await (_put_learned(self._sink, item) if settings.learns else self._router.put(item))
                return
        await self._sink.put(item)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


class LearnedStepsOnly:
    """The last filter in an actor or recording: forwards only the steps that trainers learn from.

    It drops steps from games in which brains decide and, in a recording, steps of self-play opponents. In a run with
    self-play, the ghost stage removes the opponents' steps.

    Args:
        sink: the router.
        config: the run's configuration.

    Attributes:
        rows: number of steps received, keyed by behaviour name.
        left_out: number of steps dropped, keyed by behaviour name.
    """

    def __init__(self, sink: ItemSink[Any], config: RunConfig) -> None:
        self._sink = sink
        self._filters = cache(partial(_filters, config))
        self.rows: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    async def put(self, item: Any) -> None:
        """Remove the steps to drop from an item, and forward the rest."""
        if isinstance(item, TrajectoryBatch) and self._filters(item.behavior):
            learned = item.trajectories["learning"]
            self.rows[item.behavior] += item.num_rows
            if not learned.all():
                self.left_out[item.behavior] += int(item.lengths[~learned].sum())
                await _put_learned(self._sink, item)
                return
        await self._sink.put(item)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


def _filters(config: RunConfig, behavior: str) -> bool:
    """Return True if a trainer learns from a behaviour and no ghost stage removes the opponents' steps."""
    settings = config.behavior_settings(behavior)
    return settings.learns and settings.self_play is None


async def _put_learned(sink: ItemSink[Any], item: TrajectoryBatch) -> None:
    learned = item.trajectories["learning"]
    if learned.all():
        await sink.put(item)
    elif learned.any():
        await sink.put(item.select(learned))
