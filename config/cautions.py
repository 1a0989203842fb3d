"""Warnings: what is accepted, because ML-Agents' files hold it, but hardly does what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from config.fields import Settings
from config.parameters import Curriculum

if TYPE_CHECKING:
    from config.behaviors import BehaviorSettings
    from config.run import RunConfig

_UNITY_ALONE = ("env_path", "env_args", "base_port", "num_areas")


def cautions(config: RunConfig) -> tuple[str, ...]:
    """Give a warning, with its path, for each thing in a valid configuration that its writer should know."""
    found = [*_about_checkpoints(config), *_about_unity(config), *_about_curricula(config)]
    for name, settings in config.behaviors.items():
        found += [f"behaviors.{name}.{text}" for text in _about_behavior(settings)]
    if config.default_settings is not None and not config.behaviors:
        found += [f"default_settings.{text}" for text in _about_behavior(config.default_settings)]
    return tuple(found)


def _about_behavior(settings: BehaviorSettings) -> Iterator[str]:
    if settings.threaded:
        yield "threaded: has no meaning here, because the learner always runs apart"
    if settings.framework is not None:
        yield "framework: has no meaning; training is by torch"
    if settings.self_play is not None and settings.self_play.team_change > settings.max_steps:
        yield (
            f"self_play.team_change: {settings.self_play.team_change} steps are more than max_steps "
            f"({settings.max_steps}), so only one team will ever learn"
        )
    for name, signal in settings.reward_signals.items():
        if signal.network_settings is not None:
            yield f"reward_signals.{name}.network_settings: has no meaning; this reward has no network"


def _about_checkpoints(config: RunConfig) -> Iterator[str]:
    settings = config.checkpoint_settings
    if settings.load_model:
        yield "checkpoint_settings.load_model: is deprecated; it was taken for 'resume: true'"
    if settings.train_model:
        yield "checkpoint_settings.train_model: is deprecated and has no meaning"
    if settings.resume and settings.initialize_from is not None:
        yield "checkpoint_settings.initialize_from: has no effect, because 'resume: true' goes before it"


def _about_unity(config: RunConfig) -> Iterator[str]:
    if config.environment is None:
        return
    for name in _changed(config.env_settings):
        if name in _UNITY_ALONE:
            yield f"env_settings.{name}: has no effect, because 'environment' says what to run"
    if _changed(config.engine_settings):
        yield "engine_settings: has no effect, because only Unity takes it"
    if config.environment_parameters:
        yield "environment_parameters: has no effect, because only Unity takes them"


def _changed(settings: Settings) -> list[str]:
    return [name for name, field in type(settings).model_fields.items() if getattr(settings, name) != field.default]


def _about_curricula(config: RunConfig) -> Iterator[str]:
    for name, value in (config.environment_parameters or {}).items():
        if isinstance(value, Curriculum) and value.curriculum[-1].completion_criteria is not None:
            yield (
                f"environment_parameters.{name}.curriculum.{len(value.curriculum) - 1}.completion_criteria: "
                "has no effect on the last lesson"
            )
