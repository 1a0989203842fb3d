"""The `reward_signals` of a behaviour: what it is rewarded for, one model per signal."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from config.behavioral_cloning import DEMONSTRATIONS
from config.errors import Finding
from config.fields import Flag, Float, Int, Settings, Text, report
from config.network_settings import NetworkSettings

_ABSENT: dict[str, Any] = {"absent": True}
"""For the documentation: a signal is there or not; null can't be written."""


class RewardSignalSettings(Settings):
    """What all of a behaviour's `reward_signals` have in common."""

    gamma: Float = Field(0.99, ge=0, le=1, description="Discount per agent step.")
    strength: Float = Field(1.0, description="Factor on the reward.")


class ExtrinsicSettings(RewardSignalSettings):
    """`extrinsic`: the environment's own reward."""

    network_settings: NetworkSettings | None = Field(
        None, description="Accepted for ML-Agents' sake: the extrinsic reward has no network. A warning says so."
    )


class LearnedSignalSettings(RewardSignalSettings):
    """What the signals that come from networks have in common."""

    learning_rate: Float = Field(3e-4, gt=0, description="Adam's step size.")
    encoding_size: Int | None = Field(
        None, gt=0, description="Deprecated: `hidden_units` of `network_settings`, where those are not given."
    )
    network_settings: NetworkSettings = Field(
        default_factory=NetworkSettings,
        description="The signal's own networks; `memory` has no effect. A warning says so.",
    )

    @model_validator(mode="after")
    def _size(self) -> LearnedSignalSettings:
        # Here rather than where networks are made: settings that came by way of plain data have every key given.
        if self.encoding_size is not None and not self._given("network_settings"):
            self._fill(network_settings=NetworkSettings(hidden_units=self.encoding_size))
        return self


class CuriositySettings(LearnedSignalSettings):
    """`curiosity`: how badly the next observation was foreseen (ICM)."""


class GAILSettings(LearnedSignalSettings):
    """`gail`: how much like the demonstrations it looks to a network that learns to tell them apart."""

    demo_path: Text = Field(min_length=1, description=DEMONSTRATIONS)
    use_actions: Flag = Field(False, description="Whether to look at the actions as well, not at observations only.")
    use_vail: Flag = Field(False, description="Whether to squeeze what is seen through a variational bottleneck.")


class RNDSettings(LearnedSignalSettings):
    """`rnd`: how badly a random network's output is foreseen, which is how seldom the like was seen."""

    learning_rate: Float = Field(1e-4, gt=0, description="Adam's step size.")


class RewardSignals(Settings):
    """What a behaviour is rewarded for; at least one.

    Giving the map replaces the default: a signal that is not listed is not there, `extrinsic` included. `{}` gives a
    signal its defaults. A behaviour also has the signals of `default_settings`; null drops one of those.
    """

    extrinsic: ExtrinsicSettings | None = Field(
        None, description="The environment's own reward.", json_schema_extra=_ABSENT
    )
    curiosity: CuriositySettings | None = Field(
        None, description="Reward for what could not be foreseen.", json_schema_extra=_ABSENT
    )
    gail: GAILSettings | None = Field(
        None, description="Reward for acting like the demonstrations.", json_schema_extra=_ABSENT
    )
    rnd: RNDSettings | None = Field(None, description="Reward for what was seldom seen.", json_schema_extra=_ABSENT)

    @model_validator(mode="before")
    @classmethod
    def _bodies(cls, data: Any) -> Any:
        if isinstance(data, dict):
            message = "nothing (null) does not fit; expected a map of keys and values; '{}' gives it its defaults"
            empty = [name for name in cls.model_fields if name in data and data[name] is None]
            report([Finding((name,), message) for name in empty])
        return data

    @model_validator(mode="after")
    def _not_empty(self) -> RewardSignals:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            message = "is empty; list at least one, such as 'extrinsic: {}', or leave the key out for that default"
            report([Finding((), message, ((),))])
        return self

    @model_serializer(mode="wrap")
    def _asked(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only those that were asked for: null would be read as a mistake."""
        return {name: body for name, body in handler(self).items() if body is not None}
