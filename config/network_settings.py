"""The `network_settings` of a behaviour: the shape of its policy and value network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from config.fields import Flag, Int, Reference, Settings, Text, one_of
from config.image_encoders import IMAGE_ENCODERS

Activation = Literal["swish", "tanh", "relu", "elu"]


class MemorySettings(Settings):
    """`memory`: a recurrent layer (LSTM) on top of the hidden layers."""

    sequence_length: Int = Field(
        64,
        gt=0,
        le=100_000,
        description="Most steps through which gradients go back; trajectories are cut to such sequences.",
    )
    memory_size: Int = Field(
        128,
        gt=0,
        le=16384,
        description="Numbers remembered per agent; an even number, half of them are the layer's output.",
    )

    @field_validator("memory_size")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd; expected an even number, since output and cell take half of it each")
        return value


class NetworkSettings(Settings):
    """The network of one behaviour."""

    normalize: Flag = Field(False, description="Normalise vector observations by their running mean and variance.")
    hidden_units: Int = Field(128, gt=0, le=16384, description="Units in each hidden layer.")
    num_layers: Int = Field(2, gt=0, le=100, description="Hidden layers.")
    vis_encode_type: Annotated[Text, one_of(IMAGE_ENCODERS)] = Field(
        "simple",
        description="Encoder of visual observations. The smallest sides that fit, in pixels: "
        + ", ".join(f"`{name}` {encoder.smallest_side}" for name, encoder in IMAGE_ENCODERS.items())
        + ".",
    )
    memory: MemorySettings | None = Field(
        None, description="Presence gives the policy a memory, and its previous action as input."
    )
    goal_conditioning_type: Literal["hyper", "none"] = Field(
        "hyper",
        description="`hyper`: goal signals make the weights of the last hidden layer; `none`: they are observations "
        "like others. Without goal signals it has no meaning.",
    )
    deterministic: Flag = Field(False, description="Act by the mean or the most likely action instead of drawing one.")
    network: Reference | None = Field(
        None,
        description="`module:Class` of a torch module of your own in place of encoders and hidden layers (see "
        "extending.md). Not in ML-Agents.",
    )
    activation: Activation = Field("swish", description="Activation of the hidden layers. Not in ML-Agents.")
