"""Persons in a run's own game: the behaviours with `brain: player`, and what these need of other sections."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config.brains import PLAYER, BrainSettings
from headrace.config.errors import Finding, KeyPath
from headrace.config.sections import Sections


def persons_in(config: Sections) -> list[tuple[KeyPath, BrainSettings]]:
    """Return the brains that are persons, each with the key of its behaviour's block; none where nobody acts."""
    blocks: list[tuple[KeyPath, object]] = [(("behaviors", name), each) for name, each in config.behaviors.items()]
    if config.default_settings is not None:
        blocks.append((("default_settings",), config.default_settings))
    if config.replay is not None:
        return []
    return [(path, brain) for path, block in blocks for brain in getattr(block, "brain", ()) if brain.use == PLAYER]


def check_persons(config: Sections) -> Iterator[Finding]:
    """Find what does not go with a person, who plays in the only instance of the environments, all its games."""
    found = persons_in(config)
    if not found:
        return
    for path, brain in found:
        if brain.weight < 1:
            message = (
                f"a person plays all games, so that {brain.weight:g} of them can't be a person's; leave weight out"
            )
            yield Finding((*path, "brain"), message)
    first: KeyPath = (*found[0][0], "brain")
    if config.environment is not None and config.environment.num_envs != 1:
        message = f"{config.environment.num_envs} instances, and with brain 'player' a person plays in one; set it to 1"
        yield Finding(("environment", "num_envs"), message, (first,))
    replicas = config.pipeline.hosts.actors.replicas
    if replicas != 1:
        message = f"{replicas} actors, and with brain 'player' a person plays in one alone; set it to 1"
        yield Finding(("pipeline", "hosts", "actors", "replicas"), message, (first,))
    if config.pipeline.deterministic:
        message = "does not go with brain 'player': what a person does can't be repeated; leave it out"
        yield Finding(("pipeline", "deterministic"), message, (first,))
    if config.evaluation is not None and not config.checkpoint_settings.inference:
        message = (
            "does not go with brain 'player': its games are played fast and apart, where nobody presses a key; leave "
            "it out, and evaluate the policy in a run against another brain"
        )
        yield Finding(("evaluation",), message, (first,))
