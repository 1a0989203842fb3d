"""Where each learner of a league runs: its torch device, and the resources of its hosts on Ray."""

from __future__ import annotations

from typing import Literal

from headrace.config.errors import KeyPath
from headrace.config.host_kinds import HostResources, PlacementSettings
from headrace.config.sections import Sections

Part = Literal["actors", "learners"]
"""The hosts of a learner, by their keys in `pipeline.hosts`."""


def placement_of(config: Sections, behavior: str) -> PlacementSettings:
    """Return where a behaviour's hosts run; without a league or a `placement`, every key is null."""
    settings = config.behaviors.get(behavior)
    league = None if settings is None else settings.league
    placement = None if league is None or not league.learner else league.learners[league.learner].placement
    return placement or PlacementSettings()


def placement_key(config: Sections, behavior: str) -> KeyPath:
    """Return the key of a league learner's `placement`."""
    league = config.behaviors[behavior].league
    assert league is not None, "the behaviour is a learner of a league"
    return "behaviors", league.of, "league", "learners", league.learner, "placement"


def resources_of(config: Sections, part: Part, behavior: str) -> HostResources:
    """Return the resources of a host of this part that works for a behaviour; "" for a host that works for all."""
    own: HostResources | None = getattr(placement_of(config, behavior), part)
    shared: HostResources = getattr(config.pipeline.hosts, part).resources
    return shared if own is None else own
