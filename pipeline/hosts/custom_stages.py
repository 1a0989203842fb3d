"""Custom stages: built from the YAML's placements and chained, each in a task of its own, joined by bounded queues."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from config import STAGE_GROUP, RunConfig, StagePlacement
from config.errors import KeyPath
from pipeline.hosts.runtime import HostRuntime
from queues.agent_manager_queue import AgentManagerQueue
from stages.errors import LoadError, blaming
from stages.loop import ItemSink, ItemSource, StageRunner
from stages.plugins import check_arguments, construct, find_class
from stages.stage import Stage

LOCAL_BOUND = 2
"""Batches between two stages of one host: one being made while one is worked on."""


def build_stage(placement: StagePlacement, config: RunConfig) -> Stage[Any, Any]:
    """Make a custom stage.

    Raises:
        LoadError: if it can't be imported, is no Stage, does not take its arguments or raises.
    """
    made, arguments = _find(placement, config)
    with blaming(*_key(placement, config)):
        stage: Stage[Any, Any] = construct(_where(placement), placement.use, made, arguments)
    return stage


def check_stages(config: RunConfig) -> list[LoadError]:
    """What keeps the placed stages from being made, as far as it can be told without making them."""
    mistakes = []
    for placement in config.pipeline.stages:
        try:
            _find(placement, config)
        except LoadError as error:
            mistakes.append(error)
    return mistakes


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


def _where(placement: StagePlacement) -> str:
    return f"pipeline.stages: {placement.name}"


def _key(placement: StagePlacement, config: RunConfig) -> KeyPath:
    """Where it stands in the YAML; names are unique."""
    return ("pipeline", "stages", [each.name for each in config.pipeline.stages].index(placement.name))


def _find(placement: StagePlacement, config: RunConfig) -> tuple[type[Stage[Any, Any]], dict[str, Any]]:
    where, key = _where(placement), _key(placement, config)
    with blaming(*key, "use"):
        made = find_class(where, placement.use, config.source_folder, STAGE_GROUP)
        if not issubclass(made, Stage):
            raise LoadError(f"{where}: {placement.use} is not a class derived from stages.Stage, got {made!r}")
    with blaming(*key, "with"):
        return made, check_arguments(where, placement.use, made, placement.with_)
