"""The `env_settings` and `engine_settings` sections: ML-Agents' own, about executables of games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from headrace.config.fields import ChoosingSettings, Flag, Float, Int, Names, Reference, Settings, Text, as_tuple
from headrace.config.listen import LOCALHOST, Listen


class EnvSettings(ChoosingSettings):
    """Start of environments. Keys that concern Unity alone say so."""

    choosable: ClassVar[Mapping[str, bool]] = {"num_envs": False}

    env_path: Text | None = Field(
        None, min_length=1, description="The game's executable, of Unity or Godot; null: wait for the engine's editor."
    )
    env_args: Names | None = Field(None, description="Arguments for the executable.")
    base_port: Int = Field(
        5005,
        ge=0,
        le=65535,
        description="Port of the first executable; the others take those that follow. 0: any that are free. The Unity "
        "Editor always uses port 5004; Godot's uses this one, by default 11008, as its builds do.",
    )
    num_envs: Int = Field(
        1,
        gt=0,
        le=100_000,
        description="Environments to run; `environment.num_envs` takes precedence, and says what `auto` means; of "
        "Unity executables it is as many as there are cores beside the learners'.",
    )
    num_areas: Int = Field(1, gt=0, le=100_000, description="Training areas in each Unity environment.")
    timeout_wait: Int = Field(
        60, gt=0, le=1_000_000, description="Seconds that an environment may take to start, and for each exchange."
    )
    seed: Int = Field(-1, ge=-1, description="Seed of the run; -1: a random one.")
    max_lifetime_restarts: Int = Field(
        10, ge=-1, description="Restarts of each crashed environment, actor or learner in all; -1: without limit."
    )
    restarts_rate_limit_n: Int = Field(
        1, ge=-1, description="Restarts within `restarts_rate_limit_period_s`; -1: without limit."
    )
    restarts_rate_limit_period_s: Int = Field(60, gt=0, description="Period of that limit, in seconds.")
    on_close: Literal["end", "restart"] = Field(
        "end",
        description="What follows when a game closes in order (a build that quits, the Unity Editor's Stop): `end`: "
        "the others go on, and the run ends with the last; `restart`: a build is started again, within the limits "
        "above, and the Editor is waited for. Not in ML-Agents.",
    )
    listen: Listen = Field(
        LOCALHOST,
        description="Where to wait for Unity: `localhost` (this machine alone), an address of this machine (besides "
        "localhost) or `all` (every address), which lets others end the run. Not in ML-Agents, which waits at all.",
    )
    max_message_mib: Int = Field(
        512, gt=0, le=2047, description="Largest message from or to a game, in MiB. Not in ML-Agents."
    )
    side_channels: Annotated[tuple[Reference, ...], BeforeValidator(as_tuple)] = Field(
        (),
        description="Side channels of your own towards Unity: `module:Class` each; modules beside the YAML and in the "
        "working directory are found.",
    )


class EngineSettings(Settings):
    """Drawing and time of the engine. Godot takes `time_scale` and `no_graphics` alone, other environments none."""

    width: Int = Field(84, gt=0, le=16384, description="Width of the window, in pixels.")
    height: Int = Field(84, gt=0, le=16384, description="Height of the window, in pixels.")
    quality_level: Int = Field(5, ge=0, le=1000, description="Quality level of the Unity project.")
    time_scale: Float = Field(20.0, gt=0, description="Speed of the game: 1 is real time, and Godot's default.")
    target_frame_rate: Int = Field(
        -1, ge=-1, le=1_000_000, description="Frames per second to aim at; -1: as many as can be."
    )
    capture_frame_rate: Int = Field(60, ge=0, le=1_000_000, description="Frames per second of game time.")
    no_graphics: Flag = Field(False, description="Run without a window; true by default with Godot.")
    no_graphics_monitor: Flag = Field(False, description="Run all but the first without a window.")
