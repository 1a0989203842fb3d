"""Where each league learner runs: its torch device, and the resources for its hosts on Ray."""

from __future__ import annotations

from typing import Literal

from headrace.config.errors import KeyPath
from headrace.config.host_kinds import HostResources, PlacementSettings
from headrace.config.sections import Sections

HostSection = Literal["actors", "learners"]
"""The sections of `pipeline.hosts` for hosts that a learner uses."""


def placement_of(config: Sections, behavior: str) -> PlacementSettings:
    """Return where a behaviour's hosts run; all values are None if it has no league, or no `placement`."""
    settings = config.behaviors.get(behavior)
    league = None if settings is None else settings.league
    placement = None if league is None or not league.learner else league.learners[league.learner].placement
    return placement or PlacementSettings()


def placement_key(config: Sections, behavior: str) -> KeyPath:
    """Return the path of a league learner's `placement` key."""
    league = config.behaviors[behavior].league
    assert league is not None, "the behaviour is a learner of a league"
    return "behaviors", league.of, "league", "learners", league.learner, "placement"


def resources_of(config: Sections, section: HostSection, behavior: str) -> HostResources:
    """Return the resources for a behaviour's host in this section of `pipeline.hosts`.

    Pass "" as the behaviour for a host that serves all behaviours.
    """
    of_behavior: HostResources | None = getattr(placement_of(config, behavior), section)
    shared: HostResources = getattr(config.pipeline.hosts, section).resources
    return shared if of_behavior is None else of_behavior
