"""All sections of the YAML as one model, and the models of the sections that are not in separate modules.

`headrace.config.run_config` adds checks across several sections.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, Strict, field_validator

from headrace.config.behaviors import BehaviorSettings
from headrace.config.environment import EnvironmentSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, UNITY, EnvironmentKind, load_entry
from headrace.config.environment_parameters import CompletionCriteria, Curriculum, EnvironmentParameter
from headrace.config.errors import KeyPath
from headrace.config.fields import (
    ChoosingSettings,
    Device,
    Flag,
    Float,
    Int,
    Names,
    PathText,
    Reference,
    Settings,
    Text,
    as_tuple,
    to_number,
)
from headrace.config.listen import LOCALHOST, Endpoint, Listen
from headrace.config.opponents import EvaluationSettings
from headrace.config.paths import why_not_on_windows
from headrace.config.pipeline import PipelineSettings

# The `env_settings` and `engine_settings` sections: ML-Agents' own, about games' executables.


class EnvSettings(ChoosingSettings):
    """How environments are started. Keys that concern only Unity are marked."""

    choosable: ClassVar[Mapping[str, bool]] = {"num_envs": False}

    env_path: PathText | None = Field(
        None, min_length=1, description="The game's executable, of Unity or Godot; null: wait for the editor."
    )
    env_args: Names | None = Field(None, description="Arguments for the executable.")
    base_port: Int = Field(
        5005,
        ge=0,
        le=65535,
        description="Port of the first executable; the others use the ports that follow. 0: any free ports. The Unity "
        "Editor always uses port 5004. Godot's editor and builds use this port, by default 11008.",
    )
    num_envs: Int = Field(
        1,
        gt=0,
        le=100_000,
        description="Number of environments; `environment.num_envs` takes precedence, and describes `auto`. For Unity "
        "executables, `auto` is the number of cores that the learners leave free.",
    )
    num_areas: Int = Field(1, gt=0, le=100_000, description="Number of training areas in each Unity environment.")
    timeout_wait: Int = Field(
        60, gt=0, le=1_000_000, description="Seconds that an environment may take to start, and to answer each request."
    )
    seed: Int = Field(-1, ge=-1, description="Seed of the run; -1: a random seed.")
    max_lifetime_restarts: Int = Field(
        10, ge=-1, description="Maximum number of restarts of each crashed environment, actor or learner; -1: no limit."
    )
    restarts_rate_limit_n: Int = Field(
        1, ge=-1, description="Maximum number of restarts within `restarts_rate_limit_period_s`; -1: no limit."
    )
    restarts_rate_limit_period_s: Int = Field(
        60, gt=0, description="Period to which `restarts_rate_limit_n` applies, in seconds."
    )
    on_close: Literal["end", "restart"] = Field(
        "end",
        description="What to do when a game closes normally (a build quits, or Stop in the Unity Editor). `end`: the "
        "others continue, and the run ends with the last game; `restart`: restart a build, within the limits above, "
        "or wait for the Editor. Not in ML-Agents.",
    )
    listen: Listen = Field(
        LOCALHOST,
        description="Where to wait for Unity: `localhost` (only this machine), an address of this machine (in "
        "addition to localhost) or `all` (every address; other machines can then end the run). Not in "
        "ML-Agents, which listens on all addresses.",
    )
    max_message_mib: Int = Field(
        512, gt=0, le=2047, description="Maximum size of a message from or to a game, in MiB. Not in ML-Agents."
    )
    side_channels: Annotated[tuple[Reference, ...], BeforeValidator(as_tuple)] = Field(
        (),
        description="Your own side channels to Unity, each as `module:Class`; the module may be next to the YAML or "
        "in the working directory.",
    )


class EngineSettings(Settings):
    """The engine's graphics and time. Godot uses only `time_scale` and `no_graphics`; other kinds use none of these."""

    width: Int = Field(84, gt=0, le=16384, description="Width of the window, in pixels.")
    height: Int = Field(84, gt=0, le=16384, description="Height of the window, in pixels.")
    quality_level: Int = Field(5, ge=0, le=1000, description="Quality level of the Unity project.")
    time_scale: Float = Field(20.0, gt=0, description="Speed of the game; 1 is real time (Godot's default).")
    target_frame_rate: Int = Field(
        -1, ge=-1, le=1_000_000, description="Target frame rate in frames per second; -1: no limit."
    )
    capture_frame_rate: Int = Field(60, ge=0, le=1_000_000, description="Frames per second of game time.")
    no_graphics: Flag = Field(False, description="Run without a window; true by default with Godot.")
    no_graphics_monitor: Flag = Field(False, description="Run all environments except the first without a window.")


# The `monitor` section: a run's live page.


class MonitorSettings(Settings):
    """The live page and its HTTP API. Including this section enables them, as `--monitor` does. See docs/monitor.md."""

    listen: Endpoint = Field(
        "localhost",
        description="HOST:PORT, HOST or PORT; HOST is `localhost`, an address of this machine, or `all`. Without "
        "PORT: the first free port, starting at 8470; 0: any free port.",
    )
    control: Flag = Field(
        False,
        description="Anyone with the token in the printed address can pause, save, stop and change hyperparameters.",
    )


# The `record` and `replay` sections: recording a run as streams, and learning from streams.

Edge = Literal["agent_processor", "trainer"]


def _all_or_names(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"{value!r} is not valid; expected 'all' or a list of behaviour names, such as [Tennis]")


def _speed(value: object) -> object:
    if value in ("max", "realtime"):
        return value
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < float("inf"):
        return float(number)
    raise ValueError(f"{value!r} is not valid; expected 'max', 'realtime', or a factor greater than 0, such as 2.0")


class RecordSettings(Settings):
    """Recording to `results/<run-id>/streams/`. Including this section enables it."""

    edges: Annotated[tuple[Edge, ...], BeforeValidator(as_tuple)] = Field(
        ("trainer",),
        min_length=1,
        description="`agent_processor`: trajectories as they leave the agent processor; `trainer`: as they reach the "
        "trainer.",
    )
    behaviors: Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_all_or_names)] = Field(
        "all", description="`all`, or a list of behaviour names."
    )


class ReplaySettings(Settings):
    """Recorded streams that replace the environment and agent processor. Including this section enables replay."""

    streams: Annotated[tuple[PathText, ...], BeforeValidator(as_tuple)] = Field(
        min_length=1,
        description="Stream files, folders of stream files, or patterns such as `results/old/streams/*.stream`.",
    )
    speed: Annotated[Literal["max", "realtime"] | Annotated[float, Strict()], BeforeValidator(_speed)] = Field(
        "max",
        description="`max`: as fast as possible; `realtime`: as recorded; a number: that many times as fast as "
        "recorded.",
    )


# The `inference` section: for how long trained policies play with `--inference`, and how people watch them.

USUAL_FILMED = 3
"""Default number of episodes when recording video, because a video must end."""


class InferenceSettings(Settings):
    """The `inference` section: play with trained policies. It has no effect without `checkpoint_settings.inference`."""

    episodes: Int | None = Field(
        None,
        gt=0,
        description="Episodes of each behaviour and team after which the run ends with their scores; null: until "
        f"Ctrl-C (with `video`: {USUAL_FILMED}).",
    )
    video: PathText | None = Field(
        None, min_length=1, description="Folder for a video of each episode of one instance; null: no videos."
    )
    watch: Flag = Field(
        False, description="Open the environment's own window (`render_mode: human`), for one instance."
    )

    @property
    def wanted(self) -> int | None:
        """Number of episodes for each behaviour and team; None to play until the run is stopped."""
        return USUAL_FILMED if self.episodes is None and self.video is not None else self.episodes


# The `checkpoint_settings` and `torch_settings` sections.


def _folder_name(value: object) -> object:
    if isinstance(value, str) and (value in ("", ".", "..") or any(sign in value for sign in '/\\:*?"<>|\0')):
        raise ValueError(f"'{value}' is not a valid folder name; use letters, digits, '-', '_' and '.'")
    if isinstance(value, str) and sys.platform == "win32" and (reason := why_not_on_windows(value)):
        raise ValueError(f"'{value}' is not a valid folder name here: {reason}; choose another name")
    return value


class CheckpointSettings(Settings):
    """The run's name, its folder, and the state that it starts from."""

    run_id: Annotated[Text, BeforeValidator(_folder_name)] = Field(
        "ppo", description="Name of the run, and of its folder under `results_dir`."
    )
    initialize_from: Annotated[Text | None, BeforeValidator(_folder_name)] = Field(
        None, description="Id of the run whose weights to start from, at step 0."
    )
    load_model: Flag = Field(False, description="Deprecated name of `resume`.")
    resume: Flag = Field(False, description="Continue the run from its last checkpoint.")
    force: Flag = Field(False, description="Archive an existing run with this id and start from scratch.")
    keep: Int = Field(
        2,
        ge=1,
        description="Number of complete checkpoints to keep, newest first, for `resume`, which falls back to an older "
        "one if the newest is damaged. (`keep_checkpoints` of a behaviour counts exported policies.)",
    )
    copy_to: Text | None = Field(
        None,
        min_length=1,
        description="URL of a folder, such as `s3://bucket/runs`, to which the newest complete checkpoint is copied, "
        "with everything that `resume` needs. Needs `headrace[storage]` and the package that fsspec uses for the URL.",
    )
    train_model: Flag = Field(False, description="Deprecated: has no effect.")
    inference: Flag = Field(False, description="Act without learning, and save nothing.")
    results_dir: PathText = Field("results", min_length=1, description="Folder of all runs.")

    def _derive(self) -> None:
        if self.load_model:
            self._fill(resume=True)


class TorchSettings(Settings):
    """Torch's settings."""

    device: Device | None = Field(
        None, description="Torch device of the trainers, such as `cpu` or `cuda:1`; null: `cuda` if it is available."
    )
    acceleration: Literal["auto", "none"] = Field(
        "auto",
        description="Whether anything faster than the readable trainers computes updates. `none` uses torch's autograd "
        "for everything. `auto` uses, where they exist, manual gradients (perceptrons on a CPU with PPO, IMPALA and, "
        "with continuous actions only, SAC; a third to three quarters of the time of autograd), and on a GPU gradient "
        "steps that are captured as CUDA graphs (PPO and SAC without replicas, memory or custom networks). The numbers "
        "agree up to rounding.",
    )
    precision: Literal["float32", "bf16", "auto"] = Field(
        "auto",
        description="Precision in which trainers compute hidden layers: `bf16` rounds the factors of convolutions of "
        "images and of layers of 128 units or more; `auto` rounds those of layers of 256 units or more with `ppo` and "
        "`sac`, for which measurements show no loss of return (docs/performance.md), on devices with fast bf16 (AMX, "
        "AVX512-bf16, a GPU of the Ampere generation or later). Weights, policies and files are float32 in any case.",
    )
    products: Literal["auto", "torch", "numpy"] = Field(
        "auto",
        description="Library that multiplies the float32 matrices of a trainer's layers of 128 units or more on the "
        "CPU: torch's default, or NumPy's BLAS. `auto` measures both at the start; it is `torch` if `deterministic`, "
        "with `record` or `replay`, because the last digits differ, and with `acceleration: none`.",
    )


# All sections.


class Sections(Settings):
    """The sections of the YAML. Attributes have the names of its keys."""

    behaviors: dict[str, BehaviorSettings] = Field(
        default_factory=dict, description="How each behaviour learns, keyed by behaviour name."
    )
    default_settings: BehaviorSettings | None = Field(
        None, description="Defaults for every behaviour, and the settings of behaviours that are not listed."
    )
    environment: SerializeAsAny[EnvironmentSettings] | None = Field(
        None, description="The environment, if it is not Unity."
    )
    plugins: Names = Field(
        (),
        description="Modules to import first, which add their own kinds to Headrace's tables (docs/extending.md). They "
        "are in the YAML's folder, in the working directory, or installed. Not in ML-Agents.",
    )
    env_settings: EnvSettings = Field(default_factory=EnvSettings, description="How to start environments.")
    engine_settings: EngineSettings = Field(
        default_factory=EngineSettings, description="Settings of the engine, Unity or Godot."
    )
    environment_parameters: dict[str, EnvironmentParameter] | None = Field(
        None, description="Parameters sent to the environment: each a number, a sampler or a curriculum."
    )
    checkpoint_settings: CheckpointSettings = Field(
        default_factory=CheckpointSettings, description="The run's name and the state from which it starts."
    )
    torch_settings: TorchSettings = Field(default_factory=TorchSettings, description="torch settings.")
    debug: Flag = Field(False, description="Log details.")
    evaluation: EvaluationSettings | None = Field(None, description="Deterministic play during training; null: none.")
    inference: InferenceSettings = Field(
        default_factory=InferenceSettings, description="Play with trained policies: for how long, and how to watch."
    )
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings, description="Hosts, queues and stages.")
    monitor: MonitorSettings | None = Field(None, description="The live page; null: none.")
    record: RecordSettings | None = Field(None, description="Streams to write; null: none.")
    replay: ReplaySettings | None = Field(
        None, description="Streams to learn from; null: act in an environment instead."
    )

    @field_validator("environment", mode="wrap")
    @classmethod
    def _by_kind(cls, value: Any, handler: Any) -> Any:
        kind = ENVIRONMENT_KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
        return handler(value) if kind is None else load_entry(kind.settings).model_validate(value)

    @property
    def environment_kind(self) -> EnvironmentKind:
        """The kind of the run's environments."""
        return ENVIRONMENT_KINDS[UNITY if self.environment is None else self.environment.kind]

    @property
    def builtin_game(self) -> str | None:
        """Name of the built-in game; None for other environments."""
        environment = self.environment
        return environment.id if environment is not None and environment.kind == "builtin" else None

    @property
    def met_behaviors(self) -> list[str]:
        """Names of the listed behaviours as environments see them: all learners of a league count as one behaviour."""
        named = (name if settings.league is None else settings.league.of for name, settings in self.behaviors.items())
        return [*dict.fromkeys(named)]

    def blocks(self) -> Iterator[tuple[KeyPath, BehaviorSettings]]:
        """Yield each behaviour's block with its path; if no behaviour is listed, yield `default_settings`."""
        for name, settings in self.behaviors.items():
            yield ("behaviors", name), settings
        if self.default_settings is not None and not self.behaviors:
            yield ("default_settings",), self.default_settings

    def completion_criteria(self) -> Iterator[tuple[KeyPath, CompletionCriteria, bool]]:
        """Yield each lesson's completion criteria with their path, and True if the lesson is its curriculum's last."""
        for name, value in (self.environment_parameters or {}).items():
            lessons = value.curriculum if isinstance(value, Curriculum) else ()
            for number, lesson in enumerate(lessons):
                if lesson.completion_criteria is not None:
                    path = ("environment_parameters", name, "curriculum", number, "completion_criteria")
                    yield path, lesson.completion_criteria, number == len(lessons) - 1
