"""The table of environment kinds: for each value of `environment.kind`, the settings it accepts and where its code is.

To add an engine, add an entry here and a folder `stages/environments/<engine>/`. Code is specified as `module:name` and
is imported when a run needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config.tables import Table

UNITY = "unity"
"""The environment kind of a run whose YAML has no `environment` section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentKind:
    """One kind of environment. Functions and classes are specified as `module:name`."""

    meaning: str
    """Description for the YAML reference."""
    group: str
    """Function that makes an `EnvironmentGroup` from an `EnvironmentRequest` (`stages/environments/factory.py`)."""
    made_by: tuple[str, ...] = ()
    """Keys of the `environment` section that can name the environment. Exactly one of them must be set."""
    example: str = ""
    """An example of one of the keys in `made_by`, for messages."""
    keys: tuple[str, ...] = ()
    """Keys of `EnvironmentSettings` that apply to this kind, in addition to those that apply to every kind."""
    settings: str = "headrace.config.environment:EnvironmentSettings"
    """Settings model for the `environment` section. A kind with additional keys needs a subclass with `kind:
    Literal["<name>"]`."""
    check: str | None = None
    """Function that takes a `RunConfig` and yields a `Finding` for each conflict between its `environment` section and
    other sections; None if there is nothing to check."""
    references: str = "headrace.stages.environments.factory:named_in_section"
    """Function that takes a `RunConfig` and yields functions, each of which imports something that the YAML names and
    raises a `StageError` if the name can't be found."""
    preflight: str | None = None
    """Function that takes a `RunConfig` and checks the files that the run needs, before the run's folder is created. It
    raises a `StageError` if a file is missing or unsuitable. None if there is nothing to check."""
    advice: str | None = None
    """Function that yields the findings of the standard environment checker for an `EnvironmentRequest`; `--validate`
    calls it after a successful trial run. None if there is no checker."""
    goal_rewards: str | None = None
    """Function that makes a `GoalRewards` from an `EnvironmentRequest` (`stages/environments/protocol.py`); None if the
    kind has no goal environments."""
    description: str = "headrace.pipeline.command.description:describe_environment"
    """Function that returns a one-line description of a `RunConfig`'s environments, for `--validate`."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Defaults for keys of other sections that differ from ML-Agents' defaults, keyed by section."""
    learning_defaults: bool = False
    """True if behaviours take the defaults of `config/learning_defaults.py` instead of ML-Agents' defaults."""
    one_after_another: bool = False
    """True if an actor steps its instances one after another, in which case several actors are faster than one."""
    apart: bool = False
    """True if each instance is a separate program, whose path is `env_settings.env_path`."""
    opens_window: bool = False
    """True if the program opens a window without `engine_settings.no_graphics`."""
    editor: str = ""
    """Name, for messages, of the editor that a run of this kind waits for if `env_path` is not set."""
    editor_port: int | None = None
    """The only port that the editor connects to; None if it connects to `env_settings.base_port`."""
    not_shown: str = ""
    """Message that says why this kind can't be recorded as video or shown on the live page, and what to do instead;
    empty if it can."""
    holds_actions: bool = False
    """True if the environment itself repeats each action for `action_repeat` steps."""


ENVIRONMENT_KINDS: Table[EnvironmentKind] = Table(
    builtin=EnvironmentKind(
        meaning="a game that comes with this package",
        group="headrace.stages.games.making:make_game_group",
        made_by=("id",),
        example="id: Volley",
        keys=("options", "behavior", "keys", "sides"),
        references="headrace.stages.games.making:named_game",
    ),
    gymnasium=EnvironmentKind(
        meaning="any Gymnasium environment",
        group="headrace.stages.environments.gymnasium.making:make_gymnasium_group",
        made_by=("id", "factory"),
        example="id: CartPole-v1",
        keys=("options", "wrappers", "observations", "behavior", "info_keys", "keys", "sides", "action_bounds"),
        check="headrace.config.section_checks:check_behavior",
        references="headrace.stages.environments.gymnasium.making:named_in_section",
        advice="headrace.stages.environments.gymnasium.making:of_gymnasium",
        goal_rewards="headrace.stages.environments.gymnasium.making:GymnasiumGoalRewards",
        learning_defaults=True,
        one_after_another=True,
    ),
    pettingzoo=EnvironmentKind(
        meaning="any PettingZoo environment, with many agents",
        group="headrace.stages.environments.pettingzoo.making:make_pettingzoo_group",
        made_by=("id", "factory"),
        example="id: mpe2.simple_tag_v3",
        keys=(
            *("options", "wrappers", "observations", "behavior", "info_keys"),
            *("api", "behaviors", "outcome", "rotate_sides", "keys", "sides", "action_bounds"),
        ),
        check="headrace.config.section_checks:check_roles",
        advice="headrace.stages.environments.pettingzoo.making:of_pettingzoo",
        learning_defaults=True,
        one_after_another=True,
    ),
    open_spiel=EnvironmentKind(
        meaning="any OpenSpiel game, whose players act in turns",
        group="headrace.stages.environments.open_spiel:make_open_spiel_group",
        made_by=("game",),
        example="game: leduc_poker",
        keys=("options", "observations", "behavior", "behaviors", "outcome", "rotate_sides"),
        check="headrace.config.section_checks:check_roles",
        references="headrace.stages.environments.open_spiel:named_in_openspiel",
        learning_defaults=True,
        one_after_another=True,
        not_shown="OpenSpiel's games have no images to show",
    ),
    mlagents=EnvironmentKind(
        meaning="any object with the interface of ML-Agents' low-level API",
        group="headrace.stages.environments.low_level:make_low_level_group",
        made_by=("factory",),
        example="factory: my_module:make_environment",
        keys=("options",),
        not_shown="environments of kind mlagents have no images to show",
    ),
    unity=EnvironmentKind(
        meaning="the environment in `env_settings`, as if this section were missing",
        group="headrace.stages.environments.engines.unity.game:make_unity_group",
        check="headrace.config.section_checks:check_programs",
        references="headrace.stages.environments.engines.unity.game:named_channels",
        preflight="headrace.stages.environments.engines.process:check_executable",
        description="headrace.pipeline.command.description:describe_programs",
        opens_window=True,
        apart=True,
        editor="the Unity Editor",
        editor_port=5004,
        not_shown="Unity shows its games itself: start the build with its window (without --no-graphics) to watch, and "
        "play in the Editor with the behavior type 'Heuristic Only'",
    ),
    godot=EnvironmentKind(
        meaning="a game made with Godot, with the Godot RL Agents addon; `env_settings` names the build",
        group="headrace.stages.environments.engines.godot.game:make_godot_group",
        keys=("behavior", "behaviors", "info_keys"),
        settings="headrace.config.environment:GodotSettings",
        check="headrace.config.section_checks:check_programs",
        preflight="headrace.stages.environments.engines.process:check_executable",
        description="headrace.pipeline.command.description:describe_programs",
        opens_window=True,
        defaults={"env_settings": {"base_port": 11008}, "engine_settings": {"time_scale": 1.0, "no_graphics": True}},
        apart=True,
        editor="Godot's editor",
        not_shown="Godot shows its games itself: start the build with its window (engine_settings: {no_graphics: "
        "false}), or play in its editor",
        holds_actions=True,
    ),
    open_protocol=EnvironmentKind(
        meaning="a game made with any engine that uses the open protocol (docs/protocol.md); `env_settings` names the "
        "program",
        group="headrace.stages.environments.engines.open_protocol.game:make_open_group",
        settings="headrace.config.environment:OpenProtocolSettings",
        check="headrace.config.section_checks:check_programs",
        preflight="headrace.stages.environments.engines.process:check_executable",
        description="headrace.pipeline.command.description:describe_programs",
        defaults={"env_settings": {"base_port": 12008}},
        learning_defaults=True,
        apart=True,
        editor="the game",
        not_shown="a game that uses the open protocol opens its own window: watch it there",
    ),
)
"""The environment kinds, keyed by the value of `environment.kind`."""


def load_entry(reference: str) -> Any:
    """Import the function or class that an entry refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
