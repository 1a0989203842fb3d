"""Makes the one instance of a run's environments that is shown."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.stages.environments.factory import HUMAN, EnvironmentRequest, find_factory, make_group
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import FilmedGroup, ObservationPictures, Rendering
from headrace.stages.games.scene import Drawn

PICTURES = "rgb_array"
"""The render mode of Gymnasium and PettingZoo that gives pictures."""
_REFUSED = {
    "unity": "Unity shows its games itself: start the build with its window (without --no-graphics) to watch, and play "
    "in the Editor with the behavior type 'Heuristic Only'",
    "mlagents": "environments of kind mlagents have no pictures to be shown",
}


def why_not_shown(config: RunConfig) -> str:
    """Return why a run's environments can't be shown on a page; empty if they may."""
    kind = "unity" if config.environment is None else config.environment.kind
    return _REFUSED.get(kind, "")


def make_shown_group(request: EnvironmentRequest, raw: bool = False) -> tuple[EnvironmentGroup, FilmedGroup]:
    """Make one instance that is filmed: the group to be stepped, and the film.

    Args:
        request: for the environments.
        raw: film images as they are, not as JPEG.

    Raises:
        StageError: if the environments can't be shown.
        BrokenEnvironmentError: if making it failed.
    """
    if refused := why_not_shown(request.config):
        raise StageError(refused)
    filmed: list[FilmedGroup] = []

    def film(group: EnvironmentGroup) -> EnvironmentGroup:
        if not isinstance(group, Drawn | Rendering):
            group.close()
            raise StageError(
                f"{type(group).__name__} can't be shown: expected a method render(env_id) that returns an RGB image"
            )
        filmed.append(FilmedGroup(group, raw))
        return filmed[-1]

    group = make_group(replace(request, config=for_one_screen(request.config)), film)
    if _has_a_vectorised_one(request.config):
        # Vectorised implementations draw nothing as a rule: single ones are shown, if policies can play them.
        as_it_acts = replace(request, config=RunConfig.from_plain(_with_one(request.config), request.config.path))
        trial = make_group(as_it_acts)
        unlike = _played_in(trial) != _played_in(group)
        trial.close()
        if unlike:
            group.close()
            group = make_group(as_it_acts, lambda single: film(ObservationPictures(single)))
    return group, filmed[-1]


def _played_in(group: EnvironmentGroup) -> list[tuple[Any, ...]]:
    """What policies see and do, which is known after a reset."""
    group.reset(0)
    return [(name, spec.observations, spec.actions) for name, spec in group.behavior_specs.items()]


def _has_a_vectorised_one(config: RunConfig) -> bool:
    """True if the run may act in an environment's own vectorised implementation. The id is registered already."""
    settings = config.environment
    if settings is None or settings.kind != "gymnasium" or settings.id is None:
        return False
    from gymnasium import spec

    return "vectorization_mode" not in settings.options and spec(settings.id).vector_entry_point is not None


def _with_one(config: RunConfig) -> dict[str, Any]:
    """The configuration with one instance, as plain data."""
    plain = config.to_plain()
    plain["environment"]["num_envs"] = 1
    return plain


def for_one_screen(config: RunConfig) -> RunConfig:
    """Return the configuration with one instance that renders."""
    plain = _with_one(config)
    section: dict[str, Any] = plain["environment"]
    options: dict[str, Any] = {**section.get("options", {})}
    if section["kind"] == "gymnasium" and section.get("id"):
        options.setdefault("vectorization_mode", "sync")
    if renders(config):
        options["render_mode"] = PICTURES
    section["options"] = options
    return RunConfig.from_plain(plain, config.path)


def for_one_window(config: RunConfig) -> RunConfig:
    """Return the configuration with one actor and one instance, which opens a window.

    Raises:
        StageError: if its environments have none.
    """
    kind = "unity" if config.environment is None else config.environment.kind
    if kind == "builtin":
        raise StageError(
            "the built-in games have no window: watch them in the browser with --monitor, or film them with --video DIR"
        )
    if refused := why_not_shown(config):
        raise StageError(refused)
    if not renders(config):
        raise StageError("environment.factory takes no render_mode, with which it would open a window; give it one")
    if _plays_stacked_frames(config):
        raise StageError(
            "the vectorised environments of Atari, whose frames the policy knows, have no window, and single ones are "
            "observed otherwise: film it with --video DIR"
        )
    plain = _with_one_actor(config)
    section: dict[str, Any] = plain["environment"]
    section["options"] = {**section.get("options", {}), "render_mode": HUMAN}
    if section["kind"] == "gymnasium" and section.get("id"):
        section["options"]["vectorization_mode"] = "sync"
    return RunConfig.from_plain(plain, config.path)


def _plays_stacked_frames(config: RunConfig) -> bool:
    """True for Atari as it is vectorised by itself: the one environment whose single instances are unlike it."""
    settings = config.environment
    if settings is None or not (settings.id or "").startswith("ALE/") or settings.wrappers:
        return False
    return "vectorization_mode" not in settings.options and not config.environment_parameters


def for_one_film(config: RunConfig) -> RunConfig:
    """Return the configuration with one actor and one instance, which `make_shown_group` can film.

    The folder of the films is absolute: where the actor runs, another one may be the present folder.

    Raises:
        StageError: if its environments give no pictures.
    """
    if refused := why_not_shown(config):
        raise StageError(refused)
    plain = _with_one_actor(config)
    if config.inference.video is not None:
        plain["inference"]["video"] = str(Path(config.inference.video).absolute())
    return RunConfig.from_plain(plain, config.path)


def _with_one_actor(config: RunConfig) -> dict[str, Any]:
    """The configuration with one instance in one actor, as plain data."""
    plain = _with_one(config)
    plain["pipeline"]["hosts"]["actors"]["replicas"] = 1
    return plain


def renders(config: RunConfig) -> bool:
    """True if a run's environments take a `render_mode`, as those of Gymnasium and PettingZoo do."""
    settings = config.environment
    if settings is None or settings.kind not in ("gymnasium", "pettingzoo"):
        return False
    return settings.id is not None or _takes_render_mode(config)


def _takes_render_mode(config: RunConfig) -> bool:
    factory = None if config.environment is None else config.environment.factory
    assert factory is not None, "there is no id"
    try:
        parameters = inspect.signature(find_factory(factory, config.source_folder)).parameters
    except ValueError:
        return False
    return "render_mode" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
