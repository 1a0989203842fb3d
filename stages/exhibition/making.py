"""Makes the one environment instance that people see: in a video, on the live page, or in its own window.

A run that can't be shown is refused with a reason: by `why_not_shown` before anything is made, or by `make_shown_group`
if only the environment itself reveals the reason.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from typing import Any

from headrace.config import RunConfig
from headrace.stages.environments.factory import (
    HUMAN,
    EnvironmentRequest,
    find_factory,
    make_group,
    parameter_names,
    takes_any,
)
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.rendering import PICTURES
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import FilmedGroup, ObservationPictures, Rendering
from headrace.stages.games.scene import SupportsScenes
from headrace.startup_context import absolute


def why_not_shown(config: RunConfig) -> str:
    """Return why a run's environments can't be shown on a page or recorded; empty if they can."""
    return config.environment_kind.not_shown


def make_shown_group(request: EnvironmentRequest, raw: bool = False) -> tuple[EnvironmentGroup, FilmedGroup]:
    """Make one instance with its video: return the group to step, and the group that captures frames.

    Args:
        request: the request for the environments.
        raw: whether images stay uncompressed instead of being encoded as JPEG.

    Raises:
        StageError: if the environments can't be shown.
        BrokenEnvironmentError: if the environment fails while it is made.
    """
    if refused := why_not_shown(request.config):
        raise StageError(refused)
    filmed: list[FilmedGroup] = []

    def film(group: EnvironmentGroup) -> EnvironmentGroup:
        if not isinstance(group, SupportsScenes | Rendering):
            group.close()
            raise StageError(
                f"{type(group).__name__} can't be shown: expected a method render(env_id) that returns an RGB image"
            )
        filmed.append(FilmedGroup(group, raw))
        return filmed[-1]

    as_it_acts = replace(request, config=RunConfig.from_plain(_with_one(request.config), request.config.path))
    try:
        group = make_group(replace(request, config=for_one_screen(request.config)), film)
        if not _may_act_vectorised(request.config) or _played_in(as_it_acts) == _played_in(group):
            return group, filmed[-1]
        group.close()
    except StageError as error:
        if not _may_act_vectorised(request.config):
            if renders(request.config) and "render_mode" in str(error):  # the user did not set render_mode
                words = f"it can't be shown: images need render_mode: {PICTURES}, but with that setting, {error}"
                raise type(error)(words) from error
            raise
    # Vectorised implementations usually render nothing, and policies trained on this one can't play single
    # environments.
    return make_group(as_it_acts, lambda group: film(ObservationPictures(group))), filmed[-1]


def _played_in(made: EnvironmentRequest | EnvironmentGroup) -> list[tuple[Any, ...]]:
    """Return what policies observe and the actions they take, which are known only after a reset."""
    if isinstance(made, EnvironmentRequest):
        with closing(make_group(made)) as group:
            return _played_in(group)
    made.reset(0)
    return [(name, spec.observations, spec.actions) for name, spec in made.behavior_specs.items()]


def _may_act_vectorised(config: RunConfig) -> bool:
    """Return True if a run may use an environment's own vectorised implementation.

    The environment's id must already be registered.
    """
    settings = config.environment
    if settings is None or settings.kind != "gymnasium" or settings.id is None:
        return False
    from gymnasium import registry

    spec = registry.get(settings.id.rpartition(":")[2])
    mode = settings.options.get("vectorization_mode", "vector_entry_point")
    return spec is not None and spec.vector_entry_point is not None and mode == "vector_entry_point"


def _with_one(config: RunConfig) -> dict[str, Any]:
    """Return the configuration, changed to one instance, as plain data."""
    plain = config.to_plain()
    plain["environment"]["num_envs"] = 1
    return plain


def for_one_screen(config: RunConfig) -> RunConfig:
    """Return the configuration, changed to one instance that renders images."""
    return _drawing(config, _with_one(config), PICTURES)


def for_one_window(config: RunConfig) -> RunConfig:
    """Return the configuration, changed to one actor and one instance, which opens a window.

    Raises:
        StageError: if the run's environments have no window.
    """
    if config.builtin_game is not None:
        raise StageError(
            "the built-in games have no window: watch them in the browser with --monitor, or record them with --video "
            "DIR"
        )
    if refused := why_not_shown(config):
        raise StageError(refused)
    if not renders(config):
        raise StageError(
            f"environment.factory {_factory(config)!r} has no render_mode parameter, which would open a window; add one"
        )
    if _plays_stacked_frames(config):
        raise StageError(
            "Atari's vectorised environments, for which the policy was trained, have no window, and single "
            "environments have different observations: record a video with --video DIR"
        )
    return _drawing(config, _with_one_actor(config), HUMAN)


def _drawing(config: RunConfig, plain: dict[str, Any], render_mode: str) -> RunConfig:
    """Return the configuration, changed to single environments, with this render mode if they accept render modes."""
    section: dict[str, Any] = plain["environment"]
    options: dict[str, Any] = {**section.get("options", {})}
    if section["kind"] == "gymnasium" and section.get("id"):
        options["vectorization_mode"] = "sync"
    if renders(config):
        options["render_mode"] = render_mode
    section["options"] = options
    return RunConfig.from_plain(plain, config.path)


_STACKED = re.compile(r"ALE/.*-v\d+")
"""Ids of environments with their own vectorised implementation, which returns different observations; ids may have a
`module:` prefix, which is removed first."""
_SINGLE_ONLY = {"obs_type", "mode", "difficulty", "sound_obs"}
"""Options that only single environments accept."""


def _plays_stacked_frames(config: RunConfig) -> bool:
    """Return True if the run uses Atari's own vectorised implementation, which returns different observations."""
    settings = config.environment
    if settings is None or not _STACKED.fullmatch((settings.id or "").rpartition(":")[2]):
        return False
    singles = settings.wrappers or settings.max_episode_steps or config.environment_parameters
    mode = "sync" if singles or _SINGLE_ONLY & settings.options.keys() else "vector_entry_point"
    return bool(settings.options.get("vectorization_mode", mode) == "vector_entry_point")


def for_one_film(config: RunConfig) -> RunConfig:
    """Return the configuration, changed to one actor and one instance, which `make_shown_group` can record.

    The videos' folder is absolute, because the actor may run in a different folder.

    Raises:
        StageError: if the run's environments provide no images.
    """
    if refused := why_not_shown(config):
        raise StageError(refused)
    plain = _with_one_actor(config)
    if config.inference.video is not None:
        plain["inference"]["video"] = str(absolute(config.inference.video))
    return RunConfig.from_plain(plain, config.path)


def _with_one_actor(config: RunConfig) -> dict[str, Any]:
    """Return the configuration, changed to one actor with one instance, as plain data."""
    plain = _with_one(config)
    plain["pipeline"]["hosts"]["actors"]["replicas"] = 1
    return plain


def renders(config: RunConfig) -> bool:
    """Return True if a run's environments accept a `render_mode`, as those of Gymnasium and PettingZoo do."""
    settings = config.environment
    if settings is None or settings.kind not in ("gymnasium", "pettingzoo"):
        return False
    return settings.id is not None or _takes_render_mode(config)


def _factory(config: RunConfig) -> str:
    factory = None if config.environment is None else config.environment.factory
    assert factory is not None, "there is no id"
    return factory


def _takes_render_mode(config: RunConfig) -> bool:
    make = find_factory(_factory(config), config.source_folder)
    return "render_mode" in parameter_names(make) or takes_any(make)
