"""All sections of the YAML as one model; `headrace.config.run_config` adds the checks that span several of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, Strict, field_validator, model_validator

from headrace.config.behaviors import BehaviorSettings
from headrace.config.environment import EnvironmentSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, UNITY, EnvironmentKind, load_entry
from headrace.config.environment_parameters import CompletionCriteria, Curriculum, EnvironmentParameter
from headrace.config.errors import KeyPath
from headrace.config.fields import Flag, Int, Names, Settings, Text, as_tuple, to_number
from headrace.config.listen import Endpoint
from headrace.config.opponents import EvaluationSettings
from headrace.config.pipeline import PipelineSettings
from headrace.config.unity import EngineSettings, EnvSettings

# The `monitor` section: the live page of a run.


class MonitorSettings(Settings):
    """The live page, and its HTTP API. Presence turns it on, as `--monitor` does. See docs/monitor.md."""

    listen: Endpoint = Field(
        "localhost",
        description="HOST:PORT, HOST or PORT; HOST is `localhost`, an address of this machine, or `all`. Without PORT "
        "the first that is free from 8470 on; 0: any.",
    )
    control: Flag = Field(
        False,
        description="Whoever has the token of the printed address may pause, save, stop and change hyperparameters.",
    )


# The `record` and `replay` sections: recording a run as streams, and learning from such streams.

Edge = Literal["agent_processor", "trainer"]


def _all_or_names(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"{value!r} does not fit; expected 'all' or a list of behaviour names, such as [Tennis]")


def _speed(value: object) -> object:
    if value in ("max", "realtime"):
        return value
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < float("inf"):
        return float(number)
    raise ValueError(f"{value!r} does not fit; expected 'max', 'realtime', or a factor greater than 0, such as 2.0")


class RecordSettings(Settings):
    """Recording to `results/<run-id>/streams/`. Presence turns it on."""

    edges: Annotated[tuple[Edge, ...], BeforeValidator(as_tuple)] = Field(
        ("trainer",),
        min_length=1,
        description="`agent_processor`: trajectories as they leave it; `trainer`: as they reach the trainer.",
    )
    behaviors: Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_all_or_names)] = Field(
        "all", description="`all`, or a list of behaviour names."
    )


class ReplaySettings(Settings):
    """Recorded streams in place of environment and agent processor. Presence turns replay on."""

    streams: Names = Field(
        min_length=1, description="Stream files, folders of them, or patterns such as `results/old/streams/*.stream`."
    )
    speed: Annotated[Literal["max", "realtime"] | Annotated[float, Strict()], BeforeValidator(_speed)] = Field(
        "max",
        description="`max`: as fast as can be; `realtime`: as recorded; a number: times that.",
    )


# The `inference` section: how long trained policies are played with `--inference`, and who sees it.

USUAL_FILMED = 3
"""Episodes that are filmed where `episodes` says nothing: a film has to end."""


class InferenceSettings(Settings):
    """The `inference` section: play with trained policies; without `checkpoint_settings.inference` it has no effect."""

    episodes: Int | None = Field(
        None,
        gt=0,
        description="Episodes of each behaviour and team after which the run ends with their scores; null: Ctrl-C ends "
        f"it (with `video`: {USUAL_FILMED}).",
    )
    video: Text | None = Field(
        None, min_length=1, description="Folder for a film of each episode, of one instance; null: none is filmed."
    )
    watch: Flag = Field(False, description="Open the environment's own window (`render_mode: human`), of one instance.")

    @property
    def wanted(self) -> int | None:
        """Episodes of each behaviour and team; None for as many as there are until somebody ends it."""
        return USUAL_FILMED if self.episodes is None and self.video is not None else self.episodes


def _folder_name(value: object) -> object:
    if isinstance(value, str) and (value in ("", ".", "..") or any(sign in value for sign in '/\\:*?"<>|\0')):
        raise ValueError(f"'{value}' is no name for a folder; use letters, digits, '-', '_' and '.'")
    return value


class CheckpointSettings(Settings):
    """The run's name, its folder, and the state that it starts from."""

    run_id: Annotated[Text, BeforeValidator(_folder_name)] = Field(
        "ppo", description="Name of the run, and of its folder under `results_dir`."
    )
    initialize_from: Annotated[Text | None, BeforeValidator(_folder_name)] = Field(
        None, description="Run id whose weights to start from, at step 0."
    )
    load_model: Flag = Field(False, description="Deprecated name of `resume`; a warning says so.")
    resume: Flag = Field(False, description="Continue the run from its last checkpoint.")
    force: Flag = Field(False, description="Put an existing run of this id aside and start anew.")
    keep: Int = Field(
        2,
        ge=1,
        description="Newest whole checkpoints to keep for `resume`, which falls back to an older one if the newest is "
        "damaged. (`keep_checkpoints` of a behaviour counts exported policies.)",
    )
    train_model: Flag = Field(False, description="Deprecated, without effect; a warning says so.")
    inference: Flag = Field(False, description="Act without learning, and save nothing.")
    results_dir: Text = Field("results", min_length=1, description="Folder of all runs.")

    @model_validator(mode="after")
    def _renamed(self) -> CheckpointSettings:
        if self.load_model:
            self._fill(resume=True)
        return self


def _device(value: object) -> object:
    if isinstance(value, str):
        kind, _, index = value.partition(":")
        if kind == "gpu" or not kind.isalpha() or (":" in value and not index.isdecimal()):
            raise ValueError(f"'{value}' is no torch device; expected 'cpu', 'cuda', 'cuda:1' or the like")
    return value


class TorchSettings(Settings):
    """Settings of torch."""

    device: Annotated[Text | None, BeforeValidator(_device)] = Field(
        None,
        description="Torch device of the trainers, such as `cpu` or `cuda:1`; null: `cuda` if there is one.",
    )
    gradients: Literal["auto", "autograd"] = Field(
        "auto",
        description="How trainers find gradients: `autograd` by torch's; `auto` without it where that is built, which "
        "is for perceptrons on a CPU of PPO, IMPALA, POCA (its actor) and SAC (with continuous actions alone); takes a "
        "third to three quarters of the time, with POCA hardly less.",
    )
    cuda_graphs: Flag = Field(
        True,
        description="On a GPU capture gradient steps as CUDA graphs, which repeats them without calls of Python, where "
        "that is possible: for PPO and SAC without replicas, memory and networks of your own.",
    )
    precision: Literal["float32", "bf16", "auto"] = Field(
        "float32",
        description="Precision in which trainers compute hidden products (convolutions of images, and layers of 128 "
        "units or more): `auto` is `bf16` on devices that have it fast (AMX, AVX512-bf16, a "
        "GPU from Ampere on), `float32` elsewhere. Weights, policies and files are float32 in any case.",
    )


class Sections(Settings):
    """The sections of the YAML. Attributes are called as its keys."""

    behaviors: dict[str, BehaviorSettings] = Field(
        default_factory=dict, description="The learning of each behaviour, by name."
    )
    default_settings: BehaviorSettings | None = Field(
        None, description="Merged under every behaviour, and used for behaviours that are not listed."
    )
    environment: SerializeAsAny[EnvironmentSettings] | None = Field(
        None, description="The environment, if it is not Unity."
    )
    env_settings: EnvSettings = Field(default_factory=EnvSettings, description="Start of environments.")
    engine_settings: EngineSettings = Field(
        default_factory=EngineSettings, description="The engine: Unity's, or Godot's."
    )
    environment_parameters: dict[str, EnvironmentParameter] | None = Field(
        None, description="Parameters sent to the environment: each a number, a sampler or a curriculum."
    )
    checkpoint_settings: CheckpointSettings = Field(
        default_factory=CheckpointSettings, description="The run's name, and the state that it starts from."
    )
    torch_settings: TorchSettings = Field(default_factory=TorchSettings, description="Settings of torch.")
    debug: Flag = Field(False, description="Log in detail.")
    evaluation: EvaluationSettings | None = Field(None, description="Deterministic play beside training; null: none.")
    inference: InferenceSettings = Field(
        default_factory=InferenceSettings, description="Play with trained policies: how long, and who sees it."
    )
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings, description="Hosts, queues, stages.")
    monitor: MonitorSettings | None = Field(None, description="The live page; null: none.")
    record: RecordSettings | None = Field(None, description="Streams to write; null: none.")
    replay: ReplaySettings | None = Field(None, description="Streams to learn from; null: act instead.")

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
        """The built-in game that is played; None for other environments."""
        environment = self.environment
        return environment.id if environment is not None and environment.kind == "builtin" else None

    def blocks(self) -> Iterator[tuple[KeyPath, BehaviorSettings]]:
        """Yield each behaviour's block with its key; `default_settings` is one if no behaviour is listed."""
        for name, settings in self.behaviors.items():
            yield ("behaviors", name), settings
        if self.default_settings is not None and not self.behaviors:
            yield ("default_settings",), self.default_settings

    def completion_criteria(self) -> Iterator[tuple[KeyPath, CompletionCriteria, bool]]:
        """Yield the criteria of all lessons with their keys, and True for those of a last lesson."""
        for name, value in (self.environment_parameters or {}).items():
            lessons = value.curriculum if isinstance(value, Curriculum) else ()
            for number, lesson in enumerate(lessons):
                if lesson.completion_criteria is not None:
                    path = ("environment_parameters", name, "curriculum", number, "completion_criteria")
                    yield path, lesson.completion_criteria, number == len(lessons) - 1
