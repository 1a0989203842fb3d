"""Viewers of a run with `--inference`: a window or films of it, for which its environments are arranged anew."""

from __future__ import annotations

import logging

from headrace.config import RunConfig
from headrace.config.section_checks import persons_in
from headrace.pipeline.common.errors import RunError
from headrace.stages.environments.factory import no_screen
from headrace.stages.errors import StageError

log = logging.getLogger(__name__)


def for_viewers(config: RunConfig) -> RunConfig:
    """Return the configuration in which what is played can be seen as `inference.watch` or `.video` ask for it.

    Raises:
        RunError: if it can't be seen so.
    """
    settings = config.inference
    if not config.checkpoint_settings.inference or not (settings.watch or settings.video):
        return config
    asked = "--watch" if settings.watch else "--video"
    if settings.watch and settings.video:
        raise RunError("--watch and --video: an environment either opens a window or gives pictures; keep one of them")
    if persons_in(config):
        raise RunError(
            f"{asked}: brain 'player' plays on the live page, which shows the game; leave one of the two out"
        )
    from headrace.stages.exhibition.making import for_one_film, for_one_window

    try:
        arranged = for_one_window(config) if settings.watch else for_one_film(config)
    except StageError as error:
        raise RunError(f"{asked}: {error}") from error
    if settings.watch and no_screen():
        raise RunError(f"--watch opens a window, but {no_screen()}")
    _tell(config, arranged, asked)
    return arranged


def _tell(before: RunConfig, after: RunConfig, asked: str) -> None:
    assert before.environment is not None, "it can be seen"
    assert after.environment is not None, "as before"
    actors, num_envs = before.pipeline.hosts.actors.replicas, before.environment.num_envs
    changes = []
    if actors * num_envs > 1:
        changes.append(f"one instance is played (instead of {actors * num_envs})")
    given, options = before.environment.options, after.environment.options
    changes += [f"{key}: {value}" for key, value in options.items() if given.get(key) != value]
    if changes:
        log.info("For %s: %s.", asked, ", ".join(changes))
