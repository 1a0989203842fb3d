"""A behaviour's `network_settings`, and the table of image encoders.

To add an encoder, add an entry to `IMAGE_ENCODERS` and write the function that the entry names. A custom network needs
no entry; see `NetworkSettings.network`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int, Reference, Settings, Text, one_of, to_number
from headrace.config.tables import Table


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """One image encoder: image layers, then a linear layer as wide as the first hidden layer, and an activation.

    Functions are specified as `module:name` and are imported where they are called.
    """

    layers: str
    """Function that takes the number of channels and returns a torch module for images [B, channels, height, width]."""
    smallest_side: int
    """Minimum height and width in pixels; with fewer pixels, the last layer would have no input."""
    activation: str = "torch.nn:LeakyReLU"
    """Class of the activation module after the linear layer."""


IMAGE_ENCODERS: Table[ImageEncoder] = Table(
    simple=ImageEncoder("headrace.stages.policy.network.images:simple", 20),
    nature_cnn=ImageEncoder("headrace.stages.policy.network.images:nature_cnn", 36),
    resnet=ImageEncoder("headrace.stages.policy.network.images:resnet", 15, activation="torch.nn:ReLU"),
    match3=ImageEncoder("headrace.stages.policy.network.images:match3", 5),
    fully_connected=ImageEncoder("headrace.stages.policy.network.images:fully_connected", 1),
)
"""The encoders, keyed by the value of `vis_encode_type`."""

Activation = Literal["swish", "tanh", "relu", "elu", "gelu", "leaky_relu"]

MOST_UNITS = 16384
MOST_LAYERS = 100
DEFAULT_LAYERS = 2
LOG_STD_OF_SAC = -3.0
"""Default `initial_log_std` for SAC's `gsde`, as in Stable-Baselines3."""


def _units(value: Any) -> Any:
    """Read a single width for all hidden layers, or a list of widths, one per layer."""
    if not isinstance(value, list | tuple):
        return _width(value)
    if not 0 < len(value) <= MOST_LAYERS:
        raise ValueError(f"the list has {len(value)} widths; expected 1 to {MOST_LAYERS}, one per hidden layer")
    return tuple(map(_width, value))


def _units_or_none(value: Any) -> Any:
    return None if value is None else _units(value)


def _width(value: Any) -> int:
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not float(number).is_integer():
        raise ValueError(f"{value!r} is not valid; expected a whole number, or a list with one for each hidden layer")
    if not 0 < number <= MOST_UNITS:
        raise ValueError(f"{int(number)} is out of range; expected 1 to {MOST_UNITS} units in a layer")
    return int(number)


class MemorySettings(Settings):
    """`memory`: a recurrent layer (LSTM) on top of the hidden layers."""

    sequence_length: Int = Field(
        64,
        gt=0,
        le=100_000,
        description="Maximum number of steps to backpropagate through; trajectories are cut into sequences of this "
        "length.",
    )
    memory_size: Int = Field(
        128,
        gt=0,
        le=16384,
        description="Size of each agent's memory; must be even, because the layer outputs half of it.",
    )

    @field_validator("memory_size")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(
                f"{value} is odd; expected an even number, because the output and the cell state use half each"
            )
        return value


class StateNoiseSettings(Settings):
    """`gsde`: continuous actions explore with noise that depends on the state (Raffin et al. 2021).

    An agent keeps its noise matrix for several decisions. The last hidden layer's output is multiplied by this matrix.
    `initial_log_std` applies to the matrix.
    """

    sample_freq: Int = Field(
        -1,
        ge=-1,
        description="Number of decisions after which an agent draws a new noise matrix, in addition to the start of "
        "each episode; -1: only at the start of an episode.",
    )
    full_std: Flag = Field(
        True,
        description="The matrix has one standard deviation for each feature and action; `false`: one for each feature.",
    )
    use_expln: Flag = Field(
        False,
        description="Compute standard deviations above 1 as 1 + ln(1 + x), with the learned x = ln σ, instead of "
        "exp(x).",
    )
    squash_output: Flag = Field(
        False, description="Apply tanh to the sampled actions instead of clipping them; SAC always does."
    )
    clip_mean: Float = Field(
        2.0,
        ge=0,
        description="Limit, before the tanh, on the absolute value of the means of squashed actions; 0: no limit.",
    )

    @field_validator("sample_freq")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if not value:
            raise ValueError("0 is not valid; expected at least 1, or -1 for once per episode")
        return value


class NetworkSettings(Settings):
    """One behaviour's network."""

    normalize: Flag = Field(
        False,
        description="Normalise vector observations by their running mean and variance. Observations of Gymnasium and "
        "PettingZoo in float64, or in integers of 32 bits or more, are normalised before they are rounded to "
        "float32.",
        json_schema_extra={"default_text": "`true` with `impala`, otherwise `false`"},
    )
    hidden_units: Annotated[int | tuple[int, ...], BeforeValidator(_units)] = Field(
        128,
        description="Units in each hidden layer; or a list with the units of every layer, starting at the inputs "
        "(`[256, 128]`), which also sets the number of layers. A list is not in ML-Agents.",
    )
    num_layers: Int | None = Field(
        DEFAULT_LAYERS,
        gt=0,
        le=MOST_LAYERS,
        description="Number of hidden layers, each with `hidden_units` units; can't be combined with a list.",
        json_schema_extra={"default_text": "`2`; the length of `hidden_units` if that is a list"},
    )
    vis_encode_type: Annotated[Text, one_of(IMAGE_ENCODERS)] = Field(
        "simple",
        description="Encoder for visual observations. Minimum side length of an image, in pixels: "
        + ", ".join(f"`{name}` {encoder.smallest_side}" for name, encoder in IMAGE_ENCODERS.items())
        + ".",
    )
    memory: MemorySettings | None = Field(
        None, description="If present, gives the policy a memory, and its previous action as input."
    )
    goal_conditioning_type: Literal["hyper", "none"] = Field(
        "hyper",
        description="`hyper`: goal signals generate the weights of the last hidden layer; `none`: they are ordinary "
        "observations. Without goal signals, this setting has no effect.",
    )
    deterministic: Flag = Field(False, description="Act with the mean or the most likely action instead of sampling.")
    network: Reference | None = Field(
        None,
        description="`module:Class` of your own torch module, which replaces the encoders and hidden layers (see "
        "extending.md). Not in ML-Agents.",
    )
    activation: Activation = Field(
        "swish",
        description="Activation of the hidden layers. Not in ML-Agents.",
        json_schema_extra={"default_text": "`tanh` with `impala`, otherwise `swish`"},
    )
    critic_hidden_units: Annotated[int | tuple[int, ...] | None, BeforeValidator(_units_or_none)] = Field(
        None,
        description="Units in the critic's hidden layers, if they differ from the actor's; written like "
        "`hidden_units` (a number applies to each of `num_layers`). Not in ML-Agents.",
    )
    initial_weights: Literal["default", "orthogonal", "torch"] = Field(
        "default",
        description="Initial weights. `orthogonal`: those of Stable-Baselines3's PPO, with gains of √2 for encoders "
        "and hidden layers, 0.01 for actions and 1 for values; `torch`: torch's own, uniform within ±1/√inputs; "
        "neither can be combined with SAC. `default`: ML-Agents' weights, or torch's with SAC. Not in ML-Agents.",
    )
    initial_log_std: Float = Field(
        0.0,
        ge=-20.0,
        le=2.0,
        description="Initial log standard deviation of continuous actions; with SAC, whose standard deviation depends "
        "on the state, only for `gsde`. Not in ML-Agents.",
        json_schema_extra={"default_text": "`0.0`; `-3.0` with SAC's `gsde`"},
    )
    gsde: StateNoiseSettings | None = Field(
        None,
        description="If present (`gsde: {}`), enables generalised state-dependent exploration: smooth noise, for "
        "`ppo`, `poca`, `impala` and `sac`. Not in ML-Agents.",
    )

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of units in each hidden layer, from input to output."""
        if isinstance(self.hidden_units, tuple):
            return self.hidden_units
        return (self.hidden_units,) * (self.num_layers or DEFAULT_LAYERS)

    @property
    def of_critic(self) -> NetworkSettings:
        """Settings of a critic that has a separate body.

        They equal these settings unless `critic_hidden_units` is set.
        """
        if self.critic_hidden_units is None:
            return self
        changed = {"critic_hidden_units": None, "hidden_units": self.critic_hidden_units}
        if not isinstance(self.critic_hidden_units, tuple) and self.num_layers is None:
            changed["num_layers"] = len(self.widths)
        return self.model_copy(update=changed)

    def _mistakes(self) -> Iterator[Finding]:
        if isinstance(self.hidden_units, tuple) and self._is_set("num_layers") and self.num_layers is not None:
            message = (
                f"{self.num_layers} can't be combined with a list of hidden_units, which already sets the number of "
                "layers; leave num_layers out ('num_layers: null' if default_settings has it)"
            )
            yield Finding(("num_layers",), message, (("hidden_units",),))

    def _derive(self) -> None:
        if isinstance(self.hidden_units, tuple):
            self._fill(num_layers=None)
        elif self.num_layers is None:
            self._fill(num_layers=DEFAULT_LAYERS)
