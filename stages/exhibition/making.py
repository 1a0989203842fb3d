"""Makes the one instance of a run's environments that is shown."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from config import RunConfig
from stages.environment.factory import EnvironmentRequest, find_factory, make_group
from stages.environment.protocol import EnvironmentGroup
from stages.errors import StageError
from stages.exhibition.film import FilmedGroup, Pictured
from stages.games.scene import Drawn

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


def make_shown_group(request: EnvironmentRequest) -> tuple[EnvironmentGroup, FilmedGroup]:
    """Make one instance that is filmed: the group to be stepped, and the film.

    Raises:
        StageError: if the environments can't be shown.
        BrokenEnvironmentError: if making it failed.
    """
    if refused := why_not_shown(request.config):
        raise StageError(refused)
    filmed: list[FilmedGroup] = []

    def film(group: EnvironmentGroup) -> EnvironmentGroup:
        if not isinstance(group, Drawn | Pictured):
            group.close()
            raise StageError(
                f"{type(group).__name__} can't be shown: expected a method render(env_id) that returns an RGB image"
            )
        filmed.append(FilmedGroup(group))
        return filmed[0]

    group = make_group(replace(request, config=for_one_screen(request.config)), film)
    return group, filmed[0]


def for_one_screen(config: RunConfig) -> RunConfig:
    """Return the configuration with one instance that renders."""
    plain = config.to_plain()
    section: dict[str, Any] = plain["environment"]
    section["num_envs"] = 1
    options: dict[str, Any] = {**section.get("options", {})}
    if section["kind"] == "gymnasium":
        if section.get("id"):
            options.setdefault("vectorization_mode", "sync")
        if section.get("id") or _takes_render_mode(config):
            options["render_mode"] = PICTURES
    elif section["kind"] == "pettingzoo" and (section.get("id") or _takes_render_mode(config)):
        options["render_mode"] = PICTURES
    section["options"] = options
    return RunConfig.from_plain(plain, config.path)


def _takes_render_mode(config: RunConfig) -> bool:
    factory = None if config.environment is None else config.environment.factory
    assert factory is not None, "there is no id"
    try:
        parameters = inspect.signature(find_factory(factory, config.source_folder)).parameters
    except ValueError:
        return False
    return "render_mode" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
