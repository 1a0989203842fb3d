"""What an actor asks of the makers of environments, from the `environment` section alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.config import BehaviorSettings, EnvironmentSettings, RunConfig
from headrace.config.errors import nowhere
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import EnvironmentGroup


def request_of(
    settings: EnvironmentSettings, folder: Path | None = None, seed: int = 0, replica: int = 0, **sections: Any
) -> EnvironmentRequest:
    """Ask for the environments of a section, in a file of a folder, with other sections beside it."""
    config = RunConfig(environment=settings, default_settings=BehaviorSettings(), **sections)
    config.loaded(None if folder is None else folder / "run.yaml", nowhere, (), ())
    return EnvironmentRequest(config, seed, replica)


def group_of(
    settings: EnvironmentSettings, behavior: str, num_envs: int, folder: Path | None = None, **sections: Any
) -> EnvironmentGroup:
    """Make the environments of a section, for agents of this behaviour."""
    settings = settings.model_copy(update={"behavior": behavior or None, "num_envs": num_envs})
    return make_group(request_of(settings, folder, **sections))
