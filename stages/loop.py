"""The loop that runs a stage: it handles all waiting, closing, credits and checkpoint barriers for the stage.

A stage has an input queue (receiver) and an output queue (sender), but has no reference to either. `StageRunner`
passes items from the receiver to `process` and puts the results into the sender. Backpressure is the wait in
`await sender.put`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic

from headrace.config import ConfigError
from headrace.queues.ends import ItemSink, ItemSource
from headrace.queues.errors import QueueClosed, SpecError
from headrace.queues.messages import Barrier, PolicyUpdate, StepBatch, TrajectoryBatch
from headrace.queues.specs import behavior_name
from headrace.stages.activity import BLOCKED, WORKING
from headrace.stages.errors import StageError, describe_error, is_failure, type_of
from headrace.stages.stage import In, Out, Source, Stage, StageContext, Yielded

log = logging.getLogger(__name__)

BLOCKING_S = 0.25
"""Seconds for which a stage may block its event loop before a warning is logged. The time is measured only for a plain
`process()`: an async one shares its time with other tasks, and asyncio's debug mode reports what blocks there."""


class NoSender:
    """The output queue of a stage whose results have no consumer."""

    async def put(self, item: Any) -> None:
        """Drop the item."""

    def close(self) -> None:
        """Do nothing."""


SAVING = "saving its part of checkpoint"
"""Description of a stage's work during the call to its `state_dict`."""


class StageFailure(StageError):
    """A stage raised an exception. The message names the stage and the item; the original exception is the cause."""

    def __init__(self, stage: str, doing: str, cause: BaseException) -> None:
        self.stage = stage
        self.doing = doing
        self.cause = cause
        # Headrace's errors describe the problem in words; for other errors, the class is half of the description.
        what = f"{cause}" if isinstance(cause, StageError | ConfigError | SpecError) else describe_error(cause)
        super().__init__(f"stage {stage} failed {doing}: {what}")


@dataclass(frozen=True)
class StageHooks:
    """The loop's callbacks to its host, to return credits and to save the stage's part of a checkpoint."""

    return_credits: Callable[[str, int, int], None] | None = None
    """Called with (behaviour name, source, amount) for learning-team steps received but not passed on; None for a
    trainer, which reports its credits itself."""
    save_part: Callable[[str, int, Mapping[str, Any]], None] = lambda name, number, state: None
    """Called with (stage name, checkpoint number, state) when a barrier reaches the stage."""


class StageRunner(Generic[In, Out]):
    """Runs one stage between its input and output queues until the input ends.

    Args:
        stage: the stage, which runs once.
        receiver: the input queue.
        sender: the output queue, which the runner closes at the end, even after a failure.
        context: passed to the stage when it starts.
        hooks: called for returned credits and checkpoint parts.
        behaviors: names of the behaviours that the stage handles; items of other behaviours bypass it. None for all.
        state: in a resumed run, the state to restore before the first item.
        ends_barriers: true for the last stage that a checkpoint reaches, which does not pass barriers on.
    """

    def __init__(
        self,
        stage: Stage[In, Out],
        receiver: ItemSource[In | Barrier],
        sender: ItemSink[Out | In | Barrier],
        context: StageContext,
        hooks: StageHooks | None = None,
        behaviors: frozenset[str] | None = None,
        state: Mapping[str, Any] | None = None,
        ends_barriers: bool = False,
    ) -> None:
        self.stage = stage
        self.context = context
        self._receiver = receiver
        self._sender = sender
        self._hooks = hooks or StageHooks()
        self._behaviors = behaviors
        self._state = state
        self._ends_barriers = ends_barriers
        self._items = 0
        self._blocked = 0
        self._blocking_s = math.inf if stage.may_block else BLOCKING_S
        self._working = f"{WORKING}/{context.name}"
        self._barrier_seen = -1

    async def run(self) -> None:
        """Run the stage until its input ends, or until the consumer closes its output queue.

        Raises:
            StageFailure: if the stage raises; its output queue is closed and the stage is stopped in that case too.
        """
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        task.set_name(f"stage {self.context.name}")
        try:
            with self.context.activity.running(self.context.name, self.stage.progress):
                try:
                    with _naming(self.context, "while starting"):
                        await start_stage(self.stage, self.context, self._state)
                    async for item in self._receiver:
                        await self._handle(item)
                        del item  # the last reference to a batch keeps its slab in use, so release it before waiting
                    with _naming(self.context, "while finishing"):
                        await self._emit(self.stage.finish())
                finally:
                    with _naming(self.context, "while stopping"):
                        await _await_if_needed(self.stage.stop())
        except QueueClosed:
            log.debug("stage %s ends early, because its results no longer have a consumer", self.context.name)
        finally:
            self._receiver.close()
            self._sender.close()

    async def _handle(self, item: In | Barrier) -> None:
        if isinstance(item, Barrier):
            # Parts saved at the same barrier belong to the same point in the stream (docs/decisions/044). With several
            # actors, the first barrier with a number marks the cut; later barriers with that number belong to it.
            if item.number > self._barrier_seen:
                self._barrier_seen = item.number
                with _naming(self.context, f"{SAVING} {item.number}"):
                    self._hooks.save_part(self.context.name, item.number, self.stage.state_dict())
                if not self._ends_barriers:
                    await self._sender.put(item)
            return
        if self._behaviors is not None and _behavior(item) not in self._behaviors:
            await self._sender.put(item)
            return
        self._items += 1
        _count_steps(self.context, item)
        carried = item.credits if isinstance(item, TrajectoryBatch) else 0
        with _naming(self.context, "on item", self._items, item), self.context.timings.lasting(self._working):
            began = time.perf_counter()
            results = self.stage.process(item)
            if (took_s := time.perf_counter() - began) > self._blocking_s:
                self._warn_of_blocking(took_s)
            passed = await self._emit(results)
        return_credits = self._hooks.return_credits
        if carried != passed and return_credits is not None and isinstance(item, TrajectoryBatch):
            return_credits(item.behavior, item.source, carried - passed)

    async def _emit(self, results: Yielded[Out]) -> int:
        """Put all results into the output queue; return the number of credits passed on."""
        passed = 0
        if results is None:
            return passed
        activity, sender = self.context.activity, self._sender
        if isinstance(results, AsyncIterable):
            activity.results = results
            async for result in results:
                passed += await _put(sender, result, self.context)
            activity.results = None
            return passed
        if not isinstance(results, Iterable):
            raise TypeError(_not_yielded(results))
        began = time.perf_counter()
        for result in results:
            if (took_s := time.perf_counter() - began) > self._blocking_s:
                self._warn_of_blocking(took_s)
            passed += await _put(sender, result, self.context)
            began = time.perf_counter()
        if (took_s := time.perf_counter() - began) > self._blocking_s:
            self._warn_of_blocking(took_s)
        return passed

    def _warn_of_blocking(self, took_s: float) -> None:
        """Log a warning about the 1st, 2nd, 4th, 8th … time that the stage has blocked its event loop."""
        self._blocked += 1
        if self._blocked & (self._blocked - 1) == 0:
            log.warning(
                "stage %s blocked its event loop for %.2f s on item %d (%d times so far); the host's other stages "
                "could not run. Make process() faster, or make it async and await in it.",
                self.context.name,
                took_s,
                self._items,
                self._blocked,
            )


async def run_source(source: Source[Out], sender: ItemSink[Out], context: StageContext) -> None:
    """Run a source until it is exhausted, is requested to stop, or its output queue is closed; then close that queue.

    Raises:
        StageFailure: if the source raises.
    """
    activity = context.activity
    try:
        with activity.running(context.name, source.progress):
            try:
                with _naming(context, "while starting"):
                    await start_stage(source, context, None)
                with _naming(context, "while producing"), context.timings.lasting(f"{WORKING}/{context.name}"):
                    async with aclosing(source.produce()) as items:  # type: ignore[type-var]
                        activity.results = items
                        async for item in items:
                            _count_steps(context, item)
                            await _put(sender, item, context)
                            del item
            finally:
                activity.results = None
                with _naming(context, "while stopping"):
                    await _await_if_needed(source.stop())
    except QueueClosed:
        log.debug("source %s ends early, because its items no longer have a consumer", context.name)
    finally:
        sender.close()


async def _put(sender: ItemSink[Out], item: Out, context: StageContext) -> int:
    """Put an item into the output queue, and return its credits."""
    activity = context.activity
    activity.waiting = True
    try:
        with context.timings.lasting(f"{BLOCKED}/{context.name}"):
            await sender.put(item)
    finally:
        activity.waiting = False
    activity.passed += 1
    return item.credits if isinstance(item, TrajectoryBatch) else 0


async def start_stage(stage: Stage[Any, Any], context: StageContext, state: Mapping[str, Any] | None) -> None:
    """Start a stage; in a resumed run, restore its state."""
    stage.keep_context(context)
    await _await_if_needed(stage.start(context))
    if state is not None:
        stage.load_state_dict(state)


def describe_item(item: object) -> str:
    """Describe an item in a few words, for a message."""
    match item:
        case TrajectoryBatch():
            return (
                f"TrajectoryBatch of {item.behavior_id} ({item.num_trajectories} trajectories, {item.num_rows} steps, "
                f"from actor {item.source})"
            )
        case PolicyUpdate():
            return f"PolicyUpdate of {item.behavior_id} (version {item.version})"
        case StepBatch():
            return f"StepBatch of {item.behavior_id} ({len(item.agent_ids)} agents)"
        case _:
            return type(item).__name__


@contextmanager
def _naming(context: StageContext, doing: str, number: int = 0, item: object = None) -> Iterator[None]:
    """Mark a stage's current work, and turn an exception into a StageFailure that names the stage and its work."""

    def describe() -> str:
        return doing if item is None else f"{doing} {number}: {describe_item(item)}"

    activity = context.activity
    activity.operation = describe
    activity.operations += 1
    try:
        yield
    except BaseException as error:
        # If the consumer closes the output queue, the stage ends without a failure; the loop handles this.
        if is_failure(error) and not isinstance(error, StageFailure | QueueClosed):
            raise StageFailure(context.name, describe(), error) from error
        raise
    finally:
        activity.operation = None


def _not_yielded(results: object) -> str:
    if inspect.iscoroutine(results):
        results.close()  # without this, Python would also warn that it was never awaited
        return "process() is async but yields nothing: use `yield` for each result (or a plain `def` that returns None)"
    return f"process() returned {type_of(results)}: use `yield` for each result, or return None for no results"


async def _await_if_needed(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def _count_steps(context: StageContext, item: object) -> None:
    """Report the item's steps, which main converts to each stage's agent steps per second."""
    if isinstance(item, TrajectoryBatch) and item.num_trajectories:
        context.statistics.add("Pipeline", f"Steps/{context.name}", item.num_rows, "sum")


def _behavior(item: object) -> str:
    return behavior_name(getattr(item, "behavior_id", ""))
