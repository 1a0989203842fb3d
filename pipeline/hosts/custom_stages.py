"""Custom stages: built from the YAML's placements and chained, each in a task of its own, joined by bounded queues."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from config import RunConfig, StagePlacement
from pipeline.hosts.runtime import HostRuntime
from queues.agent_manager_queue import AgentManagerQueue
from stages.errors import LoadError
from stages.loading import load_attribute, load_plugin
from stages.loop import ItemSink, ItemSource, StageRunner
from stages.stage import Stage

LOCAL_BOUND = 2
"""Batches between two stages of one host: one being made while one is worked on."""


def build_stage(placement: StagePlacement, config: RunConfig) -> Stage[Any, Any]:
    """Make a custom stage.

    Raises:
        LoadError: if it can't be imported, is no Stage, or does not take its arguments.
    """
    where = f"pipeline.stages: {placement.name}"
    found = (
        load_attribute(placement.use, config.source_folder, where)
        if ":" in placement.use
        else load_plugin("headrace.stages", placement.use)
    )
    if not (isinstance(found, type) and issubclass(found, Stage)):
        raise LoadError(f"{where}: {placement.use} is not a class derived from stages.Stage, got {found!r}")
    try:
        return found(**placement.with_)
    except TypeError as error:
        raise LoadError(f"{where}: {placement.use} does not take {dict(placement.with_)}: {error}") from error


def chain(
    placements: Sequence[StagePlacement],
    runtime: HostRuntime,
    inlet: ItemSource[Any],
    outlet: ItemSink[Any],
) -> list[Coroutine[Any, Any, None]]:
    """The runners of these stages, in order, between inlet and outlet; at least one placement."""
    runners = []
    source = inlet
    for i, placement in enumerate(placements):
        sink: Any = outlet
        if i + 1 < len(placements):
            sink = AgentManagerQueue(f"{placement.name} out", LOCAL_BOUND)
        runner = StageRunner(
            build_stage(placement, runtime.config),
            source,
            sink,
            runtime.context(placement.name),
            runtime.hooks(placement.name),
            frozenset(placement.behaviors) if placement.behaviors is not None else None,
            runtime.saved_state(placement.name),
        )
        runners.append(runner.run())
        source = sink
    return runners

