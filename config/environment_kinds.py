"""The table of environment kinds: for each `environment.kind` of the YAML its settings, and where its code is.

A new engine is one entry here and a folder of its own, such as `stages/environment/<engine>/`. Code is named by strings
of the form `module:name`, and imported when a run asks for it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

UNITY = "unity"
"""The kind of a run without an `environment` section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentKind:
    """One kind of environment. Functions and classes are given as `module:name`."""

    meaning: str
    """For the reference of the YAML."""
    group: str
    """Function that makes an `EnvironmentGroup` from an `EnvironmentRequest` (`stages/environment/factory.py`)."""
    made_by: tuple[str, ...] = ()
    """The keys of which one must name what to make."""
    example: str = ""
    """Such a key with a value, for messages."""
    keys: tuple[str, ...] = ()
    """The other keys of `EnvironmentSettings` that have a meaning, besides those that have one for every kind."""
    settings: str = "config.environment:EnvironmentSettings"
    """Model of the section. A kind with keys of its own derives one from this, with `kind: Literal["its name"]`."""
    check: str | None = None
    """Function that yields what contradicts other sections of a `RunConfig`, as `Finding`s."""
    references: str = "stages.environment.factory:named_in_section"
    """Function that yields, for a `RunConfig`, calls that import what the YAML names; each raises a `StageError` if
    it is not there."""
    preflight: str | None = None
    """Function that checks, for a `RunConfig`, what a run needs on the disk, before a folder is made for the run; it
    raises a `StageError`."""
    trial: str | None = None
    """Function that makes and tries environments of a `RunConfig`, in a process of its own, and yields `Remark`s about
    them (`stages/environment/trial.py`); None for those that are never started without a run."""
    description: str = "pipeline.command.description:describe_environment"
    """Function from a `RunConfig` to a line about its environments, for `--validate`."""
    takes_engine_settings: bool = False
    """True if `engine_settings` have an effect."""
    one_after_another: bool = False
    """True if an actor steps its instances one after another, so that several actors step them in less time."""
    apart: bool = False
    """True if each instance is a program of its own."""


ENVIRONMENT_KINDS: dict[str, EnvironmentKind] = {
    "builtin": EnvironmentKind(
        meaning="a game that comes with this package",
        group="stages.games.making:make_game_group",
        made_by=("id",),
        example="id: Volley",
        keys=("options", "behavior", "keys"),
        references="stages.games.making:named_game",
    ),
    "gymnasium": EnvironmentKind(
        meaning="any Gymnasium environment",
        group="stages.environment.gymnasium.making:make_gymnasium_group",
        made_by=("id", "factory"),
        example="id: CartPole-v1",
        keys=("options", "wrappers", "observations", "behavior", "info_keys", "keys"),
        check="config.section_checks:check_behavior",
        references="stages.environment.gymnasium.making:named_in_section",
        trial="stages.environment.gymnasium.trial:try_gymnasium",
        one_after_another=True,
    ),
    "pettingzoo": EnvironmentKind(
        meaning="any PettingZoo environment, of many agents",
        group="stages.environment.pettingzoo.making:make_pettingzoo_group",
        made_by=("id", "factory"),
        example="id: mpe2.simple_tag_v3",
        keys=(
            *("options", "wrappers", "observations", "behavior", "info_keys"),
            *("api", "behaviors", "outcome", "rotate_sides", "keys"),
        ),
        check="config.section_checks:check_roles",
        trial="stages.environment.pettingzoo.trial:try_pettingzoo",
        one_after_another=True,
    ),
    "mlagents": EnvironmentKind(
        meaning="any object with the interface of ML-Agents' low-level API",
        group="stages.environment.low_level.making:make_low_level_group",
        made_by=("factory",),
        example="factory: my_module:make_environment",
        keys=("options",),
        takes_engine_settings=True,
    ),
    UNITY: EnvironmentKind(
        meaning="what `env_settings` says, as without this section",
        group="stages.environment.unity.making:make_unity_group",
        check="config.section_checks:check_unity",
        references="stages.environment.unity.preflight:named_channels",
        preflight="stages.environment.unity.preflight:check_executable",
        description="pipeline.command.description:describe_unity",
        takes_engine_settings=True,
        apart=True,
    ),
}
"""By `environment.kind`."""


def load_entry(reference: str) -> Any:
    """Import the function or class that an entry names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
