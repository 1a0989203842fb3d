"""Custom stages, built from the YAML's placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.config import STAGE_GROUP, RunConfig, StagePlacement
from headrace.config.errors import KeyPath
from headrace.pipeline.roles.stages import PlacedStage
from headrace.stages.errors import LoadError, blaming
from headrace.stages.plugins import check_arguments, construct, find_class
from headrace.stages.stage import Stage


def build_stage(placement: StagePlacement, config: RunConfig) -> Stage[Any, Any]:
    """Make a custom stage.

    Raises:
        LoadError: if it can't be imported, is no Stage, does not take its arguments or raises.
    """
    made, arguments = _find(placement, config)
    with blaming(*_key(placement, config)):
        stage: Stage[Any, Any] = construct(_where(placement), placement.use, made, arguments)
    return stage


def build_stages(placements: Sequence[StagePlacement], config: RunConfig) -> list[PlacedStage]:
    """Make the custom stages of an actor's host, in order.

    Raises:
        LoadError: as `build_stage`.
    """
    return [
        PlacedStage(each.name, build_stage(each, config), None if each.behaviors is None else frozenset(each.behaviors))
        for each in placements
    ]


def check_stages(config: RunConfig) -> list[LoadError]:
    """Find the mistakes for which placed stages can't be made, as far as that is known without making them."""
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
    """Return its place in the YAML; names are unique."""
    return ("pipeline", "stages", [each.name for each in config.pipeline.stages].index(placement.name))


def _find(placement: StagePlacement, config: RunConfig) -> tuple[type[Stage[Any, Any]], dict[str, Any]]:
    where, key = _where(placement), _key(placement, config)
    with blaming(*key, "use"):
        made = find_class(where, placement.use, config.source_folder, STAGE_GROUP)
        if not issubclass(made, Stage):
            raise LoadError(f"{where}: {placement.use} is not a class derived from headrace.Stage, got {made!r}")
    with blaming(*key, "with"):
        return made, check_arguments(where, placement.use, made, placement.with_)
