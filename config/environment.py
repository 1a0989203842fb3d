"""The `environment` section: environments other than Unity.

The models for kinds with additional keys are at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.config.environment_kinds import ENVIRONMENT_KINDS
from headrace.config.errors import Finding
from headrace.config.fields import (
    ChoosingSettings,
    Flag,
    Float,
    Int,
    PlainMap,
    Reference,
    Settings,
    Text,
    as_tuple,
    changed,
    one_of,
    to_number,
)
from headrace.config.observation_kinds import OBSERVATION_KINDS

# `keys`: the action for each key that a person presses, as in ML-Agents' player brain.


class KeySettings(Settings):
    """What a key does while it is pressed."""

    branch: Int | None = Field(None, ge=0, description="Discrete branch for which the key chooses `value`.")
    index: Int | None = Field(
        None, ge=0, description="Instead of `branch`: index of the continuous action that is set to `value`."
    )
    value: Float = Field(description="The choice, counted from 0, or the value of the continuous action, from -1 to 1.")

    def _mistakes(self) -> Iterator[Finding]:
        if (self.branch is None) == (self.index is None):
            both = "are both given" if self.branch is not None else "are both missing"
            yield Finding(
                ("index",) if self.branch is not None else (),
                f"'branch' and 'index' {both}; expected 'branch' for a discrete action or 'index' for a continuous one",
                (("branch",),),
            )
        if self.branch is not None and not (self.value >= 0 and self.value.is_integer()):
            yield Finding(
                ("value",),
                f"{self.value:g} is not a valid choice for a discrete branch; expected a non-negative whole number",
            )


class KeyMapSettings(Settings):
    """The keyboard keys that a person uses to control a behaviour's agent."""

    press: dict[Text, KeySettings] = Field(
        description="The action of each key, under the browser's name for the key: `ArrowLeft`, `Space`, `a`. If "
        "several keys for the same action are pressed, the last key in this list counts; continuous values are added "
        "up."
    )
    rest: Annotated[tuple[Int, ...], BeforeValidator(as_tuple)] = Field(
        (),
        description="Choice for each discrete branch while none of its keys is pressed; if empty, 0 for every branch.",
    )
    wait: Flag = Field(False, description="If true, the game waits until a key is pressed, as a board game does.")


# The section itself.


def _short_form(value: Any) -> Any:
    """Read `camera: image` as `camera: {kind: image}`, and `goal` as a vector with `goal: true`."""
    if not isinstance(value, str):
        return value
    if value not in (*OBSERVATION_KINDS, "goal"):
        words = ", ".join(f"'{word}'" for word in (*OBSERVATION_KINDS, "goal"))
        raise ValueError(
            f"'{value}' is not valid; expected one of {words}, or a map such as {{kind: set, goal: false}}"
        )
    return {"goal": True} if value == "goal" else {"kind": value}


def _role_in_short(value: Any) -> Any:
    """Read `agent_*: Prey` as `agent_*: {behavior: Prey}`."""
    return {"behavior": value} if isinstance(value, str) else value


def _team(value: Any) -> Any:
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    if value is None or value == "each":
        return value
    raise ValueError(f"{value!r} is not valid; expected a non-negative whole number or 'each'")


class ObservationSettings(Settings):
    """The kind of one observation. The short form is just `vector`, `image`, `set` or `goal`."""

    kind: Annotated[Text, one_of(OBSERVATION_KINDS)] | None = Field(
        None,
        description="; ".join(f"`{name}`: {kind.meaning}" for name, kind in OBSERVATION_KINDS.items())
        + "; null: derived from its space.",
    )
    goal: Flag = Field(
        False,
        description="If true, the observation is the agent's goal (see `goal_conditioning_type`). By default, only a "
        "vector `desired_goal` is a goal.",
    )
    channels: Literal["first", "last"] | None = Field(
        None,
        description="Position of an image's channel dimension; null: the dimension next to two equal ones, otherwise "
        "the smallest, or the one that differs most from the middle one if the numbers are not pixels.",
    )
    max_entities: Int | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Maximum number of elements in a set of variable size (a `Sequence` space); null: 32.",
    )


class WrapperSettings(Settings):
    """A wrapper around each individual environment. The short form is just its `use`."""

    use: Reference = Field(
        description="`module:callable` whose first argument is an environment, such as "
        "`gymnasium.wrappers:TimeAwareObservation`; the module may be next to the YAML or in the working directory."
    )
    with_: PlainMap = Field(default_factory=dict, alias="with", description="Keyword arguments for the wrapper.")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {"use": value} if isinstance(value, str) else value


class RoleSettings(Settings):
    """The role of a group of agents in a PettingZoo environment. The short form is just the behaviour's name."""

    behavior: Text | None = Field(
        None,
        min_length=1,
        description="The agents' behaviour name: a key of `behaviors`.",
        json_schema_extra={"default_text": "`environment.behavior`"},
    )
    team: Annotated[int | Literal["each"] | None, BeforeValidator(_team)] = Field(
        None,
        description="The agents' team: 0, 1, … without gaps; `each`: every agent is a separate team, numbered in the "
        "environment's order; null: 0. By default, the following agents are opponents instead: the only two "
        "agents of an environment, if they share a behaviour and are not a group, and the players of an "
        "OpenSpiel game with individual rewards.",
    )
    group: Flag = Field(
        False,
        description="The agents of one team form a group that shares the sum of their rewards, as `poca` expects.",
    )


def _repeat_in_short(value: Any) -> Any:
    """Read `action_repeat: 4` as `action_repeat: {steps: 4}`."""
    return value if value is None or isinstance(value, Mapping | ActionRepeatSettings) else {"steps": value}


class ActionRepeatSettings(Settings):
    """For how many steps each action is repeated. The short form is just the number of steps, for a fixed repeat."""

    steps: Int | None = Field(
        None, gt=0, le=1000, description="Number of environment steps for which each action is repeated."
    )
    max: Int | None = Field(
        None,
        gt=1,
        le=1000,
        description="Instead of `steps`: with each action, the policy chooses how many environment steps to hold it "
        "for, from 1 to this number. The choice is an additional discrete branch, `step_mul`.",
    )
    discount: Float = Field(
        1.0,
        gt=0,
        le=1,
        description="Discount per environment step when the rewards of a held action are added up; a reward signal's "
        "`gamma` discounts per decision.",
    )

    def _mistakes(self) -> Iterator[Finding]:
        if (self.steps is None) == (self.max is None):
            both = "are both given" if self.max is not None else "are both missing"
            message = f"'steps' and 'max' {both}; expected 'steps' for a fixed repeat or 'max' for a learned one"
            yield Finding(("max",) if self.max is not None else (), message, (("steps",),))


FOR_EVERY_KIND = ("kind", "num_envs", "action_repeat", "max_episode_steps")
"""Keys that apply to environments of every kind."""


class EnvironmentSettings(ChoosingSettings):
    """The environment in which the agents act. ML-Agents does not have this section, because it always runs Unity."""

    choosable: ClassVar[Mapping[str, bool]] = {"num_envs": False}

    kind: Annotated[Text, one_of(ENVIRONMENT_KINDS)] = Field(
        description="; ".join(f"`{name}`: {kind.meaning}" for name, kind in ENVIRONMENT_KINDS.items()) + "."
    )
    id: Text | None = Field(
        None,
        min_length=1,
        description="Name of the environment: `Volley`, `CartPole-v1`; PettingZoo environments are modules "
        "(`mpe2.simple_tag_v3`) or names in its registry (`classic/connect_four-v3`).",
    )
    factory: Reference | None = Field(
        None,
        description="Instead of `id`: `module:callable` that makes a Gymnasium or PettingZoo environment, or an "
        "environment of kind `mlagents`.",
    )
    game: Text | None = Field(
        None,
        min_length=1,
        description="Name of an OpenSpiel game: `leduc_poker`, `leduc_poker(players=3)`, or `my_module:my_game` for "
        "a game that a module registers.",
    )
    api: Literal["auto", "parallel", "aec"] = Field(
        "auto",
        description="For a PettingZoo environment: all agents act simultaneously (`parallel`) or in turns (`aec`); "
        "`auto`: parallel if the package has a parallel environment.",
    )
    num_envs: Int = Field(
        1,
        gt=0,
        le=100_000,
        description="Environment instances in each actor, or in all actors together if "
        "`pipeline.hosts.actors.replicas` is `auto`. `auto`: as many as make the run faster, judging by the measured "
        "time of a step; the number affects learning.",
        json_schema_extra={"default_text": "`env_settings.num_envs`"},
    )
    options: PlainMap = Field(
        default_factory=dict,
        description="Keyword arguments for the environment; the parameters of an OpenSpiel game.",
    )
    wrappers: Annotated[tuple[WrapperSettings, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Wrappers around each single environment, innermost first."
    )
    action_bounds: Literal["scale", "clip"] = Field(
        "scale",
        description="`scale`: policies choose continuous actions between -1 and 1, which are scaled to the bounds of "
        "the environment's space. `clip`: policies act in the units of that space, and actions are clipped to its "
        "bounds, as with Stable-Baselines3's PPO; can't be combined with `sac`.",
    )
    action_repeat: Annotated[ActionRepeatSettings | None, BeforeValidator(_repeat_in_short)] = Field(
        None,
        description="Environment steps for which an action is held: a number, or `{max: …}` to let the policy "
        "choose; null: 1. The rewards of these steps are added up. An agent chooses a new action when the hold or "
        "the episode ends, or when a mask forbids the held action: [algorithms](algorithms.md#action-repeat).",
    )
    max_episode_steps: Int | None = Field(
        None,
        gt=0,
        le=10**9,
        description="Steps after which an episode is truncated, which is not a termination: the critic estimates the "
        "rest of the return. Gymnasium, PettingZoo and OpenSpiel environments are then reset; other environments "
        "continue, and the next episode begins in the current state. null: only the environment's own limit, which "
        "always applies.",
    )
    observations: dict[Text, Annotated[ObservationSettings, BeforeValidator(_short_form)]] = Field(
        default_factory=dict,
        description="Kinds of observations, keyed by name: the key in a Dict, the index in a Tuple, with dots for "
        "nested observations (`state.position`); `observation` if there is only one.",
    )
    behavior: Text | None = Field(
        None,
        min_length=1,
        description="Behaviour name, for an environment with only one kind of agent.",
        json_schema_extra={"default_text": "the only key of `behaviors`"},
    )
    behaviors: dict[Text, Annotated[RoleSettings, BeforeValidator(_role_in_short)]] = Field(
        default_factory=dict,
        description="Roles of the agents of a PettingZoo environment, or of the players of an OpenSpiel game "
        "(`player_0`, `player_1`, …), by name or by a pattern such as `adversary_*`; the first match counts. By "
        "default, every agent has `behavior`.",
    )
    outcome: Literal["return", "last_reward"] = Field(
        "return",
        description="Who wins a PettingZoo or OpenSpiel game with several teams: the team with the highest sum of "
        "rewards, over the entire episode (`return`) or in the last step (`last_reward`).",
    )
    rotate_sides: Flag | None = Field(
        None,
        description="The teams of a PettingZoo or OpenSpiel game swap sides every episode, so each team learns to "
        "play every side; null: true if the sides have the same behaviours.",
    )

    info_keys: Annotated[tuple[Text, ...], BeforeValidator(as_tuple)] = Field(
        (),
        max_length=32,
        description="Keys of the `info` at the end of an episode, for Gymnasium and PettingZoo environments and for "
        "games made with Godot. Their values are reported as statistics `Environment/<key>`. `is_success` and "
        "`success` are always reported, as `Environment/Success Rate` ([statistics](statistics.md#environment)).",
    )
    keys: dict[Text, KeyMapSettings] = Field(
        default_factory=dict,
        description="Keys for a person who plays on the live page, keyed by behaviour name or id (`Volley?team=1`): "
        "[play](play.md#keys). Other behaviours use the game's own keys, or numbers and arrows.",
    )
    sides: dict[Text, Text] = Field(
        default_factory=dict,
        description="Name of each side on the live page, so that a player knows which pieces or colour to play "
        "([play](play.md#sides)); keyed by agent, behaviour name or id. If left out: the `sides` of the environment's "
        "`metadata`, or the agents' names.",
    )

    @property
    def named(self) -> str:
        """The environment's name; empty if `env_settings` names it."""
        return next((name for key in ENVIRONMENT_KINDS[self.kind].made_by if (name := getattr(self, key))), "")

    def _mistakes(self) -> Iterator[Finding]:
        kind = ENVIRONMENT_KINDS[self.kind]
        written = [name for name in kind.made_by if getattr(self, name) is not None]
        if kind.made_by and not written:
            needed = " or ".join(f"'{name}'" for name in kind.made_by)
            message = f"needs {needed}, which names the environment to create; add a line such as '{kind.example}'"
            yield Finding((), message, tuple((name,) for name in kind.made_by))
        for name in written[1:]:
            yield Finding((name,), f"can't be combined with '{written[0]}'; keep one of the two", ((written[0],),))
        fitting = {*FOR_EVERY_KIND, *kind.made_by, *kind.keys}
        for name in changed(self):
            if name in EnvironmentSettings.model_fields and name not in fitting:
                others = [f"'{key}'" for key, other in ENVIRONMENT_KINDS.items() if name in other.made_by + other.keys]
                only = f"kind {others[0]}" if len(others) == 1 else f"kinds {', '.join(others[:-1])} and {others[-1]}"
                message = f"can't be combined with kind '{self.kind}', only with {only}; leave it out"
                yield Finding((name,), message, (("kind",),))


# Kinds of environments with additional keys.

_PLACE = "{value}"


class GodotSettings(EnvironmentSettings):
    """A game made with Godot that uses the Godot RL Agents addon.

    `env_settings` determines which build is started, or whether the game runs in the editor.
    """

    kind: Literal["godot"]
    fixed_fps: Int | None = Field(
        60,
        gt=0,
        le=10_000,
        description="Frames per second of game time; a build then runs as fast as the machine allows. null: in real "
        "time, with at most eight physics frames per rendered frame.",
    )
    pictures: Literal["auto", "interleaved", "planar", "refuse"] = Field(
        "auto",
        description="Order of the bytes in an image: pixel by pixel (`interleaved`, as the addon's cameras send them) "
        "or channel by channel (`planar`); `auto`: interleaved if the game announces three or four channels. `refuse`: "
        "end the run if the game announces an image, because the addon runs no models with images.",
    )
    calls: dict[Text, Text] = Field(
        default_factory=dict,
        description="Methods of the agents that set `environment_parameters` in a running game: by parameter, a name "
        "with `{value}` for the new value (`set_lesson_{value}`; `0.5` is written `0_5`). Builds always receive the "
        "initial values as arguments.",
    )

    @field_validator("calls")
    @classmethod
    def _with_a_place_for_the_value(cls, value: dict[str, str]) -> dict[str, str]:
        for parameter, method in value.items():
            if _PLACE not in method or not method.replace(_PLACE, "").isidentifier():
                raise ValueError(
                    f"{method!r} is not valid for {parameter!r}; expected a method name that contains {_PLACE} for "
                    f"the new value, such as set_{parameter}_{_PLACE}"
                )
        return value

    @field_validator("action_repeat")
    @classmethod
    def _a_number(cls, value: ActionRepeatSettings | None) -> ActionRepeatSettings | None:
        if value is not None and (value.steps is None or value.discount != 1):
            raise ValueError(
                "must be the number of physics frames between decisions, such as 8; the addon accepts no other form"
            )
        return value


class OpenProtocolSettings(EnvironmentSettings):
    """A game from any engine that speaks the open protocol (docs/protocol.md).

    `env_settings` determines which program is started.
    """

    kind: Literal["open_protocol"]
    transport: Literal["tcp", "websocket"] = Field(
        "tcp", description="How games connect: plain TCP, or WebSockets, which browser pages use."
    )
