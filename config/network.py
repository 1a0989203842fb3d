"""The `network_settings` of a behaviour: the shape of its policy and value network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.fields import LATER, Flag, Int, PlainMap, Settings, absent_until_later

Activation = Literal["swish", "tanh", "relu", "elu"]


class NetworkSettings(Settings):
    """The network of one behaviour."""

    normalize: Flag = Field(False, description="Normalise vector observations by their running mean and variance.")
    hidden_units: Int = Field(128, gt=0, description="Units in each hidden layer.")
    num_layers: Int = Field(2, gt=0, description="Hidden layers.")
    vis_encode_type: Literal["simple", "nature_cnn", "resnet", "match3", "fully_connected"] = Field(
        "simple", description="Encoder of visual observations; without them it has no meaning."
    )
    memory: Annotated[PlainMap | None, absent_until_later("memory (a recurrent network)")] = Field(
        None, description=f"Recurrent memory: {LATER}."
    )
    goal_conditioning_type: Literal["hyper", "none"] = Field(
        "hyper", description="How goal signals steer the network; without them it has no meaning."
    )
    deterministic: Flag = Field(False, description="Act by the mean or the most likely action instead of drawing one.")
    activation: Activation = Field("swish", description="Activation of the hidden layers. Not in ML-Agents.")
