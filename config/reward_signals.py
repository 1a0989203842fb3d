"""A behaviour's `reward_signals` and `behavioral_cloning`. `RewardSignals` is the table of built-in signals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticKnownError

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int, PathText, PlainMap, Reference, Settings, report
from headrace.config.network_settings import NetworkSettings

DEMONSTRATIONS = (
    "Demonstrations: a recording made by Unity (`.demo`), Godot's addon (`.json`) or Headrace (`.stream`), a folder "
    "of recordings, or a pattern, relative to the YAML's folder, or else to the working directory; or `minari:<data "
    "set id>`."
)
"""Description of each `demo_path`."""


class BehavioralCloningSettings(Settings):
    """Imitation of demonstrations between the updates of `ppo`, `poca` or `sac`."""

    demo_path: PathText = Field(min_length=1, description=DEMONSTRATIONS)
    steps: Int = Field(0, ge=0, description="Agent steps over which imitation fades out; 0: never.")
    strength: Float = Field(
        1.0, ge=0, description="Learning rate of the imitation, as a factor on the trainer's learning rate."
    )
    samples_per_update: Int = Field(0, ge=0, description="Maximum number of demonstrated steps per update; 0: all.")
    num_epoch: Int | None = Field(None, gt=0, description="Passes over the demonstrations per update; null: 3.")
    batch_size: Int | None = Field(
        None, gt=0, le=10**9, description="Steps per gradient step; null: the trainer's `batch_size`."
    )


class RewardSignalSettings(Settings):
    """Settings that all `reward_signals` share."""

    gamma: Float = Field(0.99, ge=0, le=1, description="Discount per agent step.")
    strength: Float = Field(1.0, description="Factor on the reward.")


class ExtrinsicSettings(RewardSignalSettings):
    """`extrinsic`: the environment's own reward."""

    network_settings: NetworkSettings | None = Field(
        None,
        description="Accepted for compatibility with ML-Agents, but has no effect: the extrinsic "
        "reward has no network.",
    )


class LearnedSignalSettings(RewardSignalSettings):
    """Settings that all signals with networks share."""

    learning_rate: Float = Field(3e-4, gt=0, description="Adam's step size.")
    encoding_size: Int | None = Field(
        None, gt=0, le=16384, description="Deprecated: sets `hidden_units` of `network_settings`, if those are missing."
    )
    network_settings: NetworkSettings = Field(
        default_factory=NetworkSettings,
        description="Settings of the signal's own networks; `memory` has no effect.",
    )

    def _derive(self) -> None:
        # Checked here rather than where networks are built, because plain data may set every key.
        if self.encoding_size is not None and not self._is_set("network_settings"):
            self._fill(network_settings=NetworkSettings(hidden_units=self.encoding_size))


class CuriositySettings(LearnedSignalSettings):
    """`curiosity`: the error in predicting the next observation (ICM)."""


class GAILSettings(LearnedSignalSettings):
    """`gail`: the similarity to demonstrations, as judged by a discriminator network."""

    demo_path: PathText = Field(min_length=1, description=DEMONSTRATIONS)
    use_actions: Flag = Field(False, description="The discriminator sees actions as well as observations.")
    use_vail: Flag = Field(False, description="The discriminator has a variational bottleneck (VAIL).")


class RNDSettings(LearnedSignalSettings):
    """`rnd`: the error in predicting a random network's output, which is larger for rare observations."""

    learning_rate: Float = Field(1e-4, gt=0, description="Adam's step size.")


class OwnSignalSettings(LearnedSignalSettings):
    """A custom signal, under a name of your choice (see extending.md). Not in ML-Agents.

    `learning_rate` and `network_settings` are for a signal with a network.
    """

    use: Reference = Field(description="`module:Class` of the signal.")
    with_: PlainMap = Field(default_factory=dict, alias="with", description="Keyword arguments for the class.")


def _used(body: Any) -> Any:
    if not isinstance(body, OwnSignalSettings) and not (isinstance(body, dict) and "use" in body):
        raise PydanticKnownError("extra_forbidden")
    return body


def _signal(signal_class: str, description: str) -> Any:
    """Return the field for a built-in signal, given its class as `module:Class` and its description for the reference.

    A signal is either present or missing; null is not allowed.
    """
    return Field(None, description=description, json_schema_extra={"absent": True, "class": signal_class})


class RewardSignals(Settings):
    """A behaviour's reward signals; at least one is required.

    Setting this key replaces the default: only the signals listed here are used, so `extrinsic` must be listed too.
    `{}` selects a signal's defaults. A behaviour also inherits the signals in `default_settings`; set a signal to null
    to drop it. Any other name defines a custom signal, whose class is specified by `use`.
    """

    # The table of reward signals: name, settings, class.
    extrinsic: ExtrinsicSettings | None = _signal(
        "headrace.stages.trainer.rewards.signal:Extrinsic", "The environment's own reward."
    )
    curiosity: CuriositySettings | None = _signal(
        "headrace.stages.trainer.rewards.curiosity:Curiosity", "Reward for observations that are hard to predict."
    )
    gail: GAILSettings | None = _signal(
        "headrace.stages.trainer.rewards.gail:GAIL", "Reward for acting like the demonstrations."
    )
    rnd: RNDSettings | None = _signal("headrace.stages.trainer.rewards.rnd:RND", "Reward for rare observations.")

    more: ClassVar[type[Settings] | None] = OwnSignalSettings
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[OwnSignalSettings, BeforeValidator(_used)]]

    @property
    def present(self) -> dict[str, RewardSignalSettings]:
        """The behaviour's signals, keyed by name: built-in signals in table order, then custom signals."""
        built_in = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: body for name, body in (built_in | self.__pydantic_extra__).items() if body is not None}

    def class_of(self, name: str) -> str:
        """Return the class of a signal, as `module:Class`."""
        if name in self.__pydantic_extra__:
            return self.__pydantic_extra__[name].use
        entry = cast("dict[str, Any]", type(self).model_fields[name].json_schema_extra)
        return str(entry["class"])

    @model_validator(mode="before")
    @classmethod
    def _bodies(cls, data: Any) -> Any:
        if isinstance(data, dict):
            message = "an empty value (null) is not valid; expected a map of keys and values ('{}' uses the defaults)"
            empty = [name for name in cls.model_fields if name in data and data[name] is None]
            report([Finding((name,), message) for name in empty])
        return data

    def _mistakes(self) -> Iterator[Finding]:
        if not self.present:
            message = (
                "is empty; list at least one signal, such as 'extrinsic: {}', or leave the key out to use that default"
            )
            yield Finding((), message, ((),))

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit signals that the behaviour does not have, because null would be reported as a mistake."""
        return {name: body for name, body in handler(self).items() if body is not None}
