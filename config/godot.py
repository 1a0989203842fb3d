"""The `environment` section of games made with Godot."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from headrace.config.environment import ActionRepeatSettings, EnvironmentSettings
from headrace.config.fields import Int, Text

_PLACE = "{value}"


class GodotSettings(EnvironmentSettings):
    """A game made with Godot, with the addon of Godot RL Agents. `env_settings` says which build, or the editor."""

    kind: Literal["godot"]
    fixed_fps: Int | None = Field(
        60,
        gt=0,
        le=10_000,
        description="Frames per second of game time of a build, which then runs as fast as the machine can; null: in "
        "real time, and at most eight physics frames a drawn one.",
    )
    pictures: Literal["auto", "interleaved", "planar"] = Field(
        "auto",
        description="Order of pictures' bytes: pixel by pixel (`interleaved`, as the addon's cameras send them) or "
        "channel by channel (`planar`); `auto`: interleaved where three or four channels are announced.",
    )
    calls: dict[Text, Text] = Field(
        default_factory=dict,
        description="Methods of the agents that tell a running game of `environment_parameters`: by parameter, a name "
        "with `{value}` for its new value (`set_lesson_{value}`; `0.5` is written `0_5`). Builds get the values at "
        "their start in any case, as arguments.",
    )

    @field_validator("calls")
    @classmethod
    def _with_a_place_for_the_value(cls, value: dict[str, str]) -> dict[str, str]:
        for parameter, method in value.items():
            if _PLACE not in method or not method.replace(_PLACE, "").isidentifier():
                raise ValueError(
                    f"has {method!r} for {parameter!r}: expected the name of a method with {_PLACE} for the new value, "
                    f"such as set_{parameter}_{_PLACE}"
                )
        return value

    @field_validator("action_repeat")
    @classmethod
    def _a_number(cls, value: ActionRepeatSettings | None) -> ActionRepeatSettings | None:
        if value is not None and (value.steps is None or value.discount != 1):
            raise ValueError(
                "is the number of physics frames between decisions, such as 8; the addon takes no other form"
            )
        return value
