"""The `behaviors` section: how each behaviour learns. ML-Agents' schema and defaults, plus keys of ours."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from config.errors import Finding
from config.fields import (
    LATER,
    Flag,
    Float,
    Int,
    PlainMap,
    Settings,
    Text,
    absent_until_later,
    is_reference,
    report,
)
from config.network import NetworkSettings

Schedule = Literal["linear", "constant"]

PPO = "ppo"
_LATER_TRAINERS = ("sac", "poca")
_LATER_SIGNALS = ("curiosity", "gail", "rnd")


class PPOHyperparameters(Settings):
    """`hyperparameters` of a behaviour whose `trainer_type` is `ppo`."""

    batch_size: Int = Field(1024, gt=0, description="Agent steps in one gradient step.")
    buffer_size: Int = Field(
        10240, gt=0, description="Agent steps collected before each update; at least `batch_size`."
    )
    learning_rate: Float = Field(3e-4, gt=0, description="Adam's step size at the start of the run.")
    learning_rate_schedule: Schedule = Field(
        "linear", description="`linear`: falls to almost 0 at `max_steps`; `constant`: stays."
    )
    beta: Float = Field(5e-3, ge=0, description="Weight of the entropy bonus.")
    beta_schedule: Schedule = Field(
        "linear",
        description="How `beta` changes up to `max_steps`.",
        json_schema_extra={"default_text": "`learning_rate_schedule`"},
    )
    epsilon: Float = Field(0.2, gt=0, description="Clip range of the probability ratio.")
    epsilon_schedule: Schedule = Field(
        "linear",
        description="How `epsilon` changes up to `max_steps`.",
        json_schema_extra={"default_text": "`learning_rate_schedule`"},
    )
    lambd: Float = Field(0.95, ge=0, le=1, description="λ of generalised advantage estimation.")
    num_epoch: Int = Field(3, gt=0, description="Passes over the buffer in each update.")
    shared_critic: Flag = Field(False, description="Whether actor and critic share the network's body.")
    max_grad_norm: Float | None = Field(
        None, gt=0, description="Gradients are scaled down to this norm; null: never. Not in ML-Agents."
    )
    adam_epsilon: Float = Field(1e-8, gt=0, description="Adam's ε. Not in ML-Agents (which has this default).")
    ratio_per_dimension: Flag = Field(
        False,
        description="Clip the ratio per action dimension, as ML-Agents does, not per joint action. Not in ML-Agents.",
    )

    @model_validator(mode="after")
    def _relate(self) -> PPOHyperparameters:
        for name in ("beta_schedule", "epsilon_schedule"):
            if not self._given(name):
                self._fill(**{name: self.learning_rate_schedule})
        if self.buffer_size < self.batch_size:
            message = (
                f"{self.buffer_size} is smaller than batch_size ({self.batch_size}); "
                "raise buffer_size or lower batch_size"
            )
            report([Finding(("buffer_size",), message, (("batch_size",),))])
        return self


class RewardSignalSettings(Settings):
    """One of a behaviour's `reward_signals`. So far there is `extrinsic`, the environment's own reward."""

    gamma: Float = Field(0.99, ge=0, le=1, description="Discount per agent step.")
    strength: Float = Field(1.0, description="Factor on the reward.")
    network_settings: NetworkSettings | None = Field(
        None, description="Accepted for ML-Agents' sake: the extrinsic reward has no network."
    )


class SelfPlaySettings(Settings):
    """A behaviour's `self_play`: training one team at a time against snapshots of itself."""

    save_steps: Int = Field(20000, gt=0, description="Trainer steps between snapshots.")
    team_change: Int = Field(
        100000,
        gt=0,
        description="Trainer steps before the other team becomes the one that learns.",
        json_schema_extra={"default_text": "5 × `save_steps`"},
    )
    swap_steps: Int = Field(2000, gt=0, description="Ghost steps between swaps of the opponents.")
    window: Int = Field(10, gt=0, description="Snapshots that opponents are drawn from.")
    play_against_latest_model_ratio: Float = Field(
        0.5, ge=0, le=1, description="Probability that the opponent is the newest policy."
    )
    initial_elo: Float = Field(1200.0, description="Rating at the start, in ELO points.")
    elo_k: Float = Field(16.0, gt=0, description="Most ELO points that one match can move a rating. Not in ML-Agents.")

    @model_validator(mode="after")
    def _derive(self) -> SelfPlaySettings:
        if not self._given("team_change"):
            self._fill(team_change=5 * self.save_steps)
        return self


def _trainer_type(value: object) -> object:
    if not isinstance(value, str) or value == PPO or is_reference(value):
        return value
    if value in _LATER_TRAINERS:
        raise ValueError(f"'{value}' is not available yet in this version; use 'ppo' or your own 'module:Class'")
    hint = f"; did you mean '{PPO}'?" if get_close_matches(value.lower(), [PPO]) else ""
    raise ValueError(f"'{value}' is no trainer; expected 'ppo' or your own 'module:Class'{hint}")


def _reward_signals(value: object) -> object:
    if not isinstance(value, dict):
        return value
    findings = [Finding((name,), _about_signal(str(name))) for name in value if name != "extrinsic"]
    if not value:
        findings.append(Finding((), "is empty; list at least 'extrinsic', or leave the key out for the default", ((),)))
    report(findings)
    return value


def _about_signal(name: str) -> str:
    if name in _LATER_SIGNALS:
        return f"the reward signal '{name}' {LATER}; only 'extrinsic' is available yet"
    close = get_close_matches(name.lower(), ("extrinsic", *_LATER_SIGNALS), n=1)
    return f"unknown reward signal; expected 'extrinsic'{f'; did you mean {close[0]!r}?' if close else ''}"


Hyperparameters: TypeAlias = PPOHyperparameters | PlainMap


class BehaviorSettings(Settings):
    """One behaviour's block. Steps are agent decisions as its trainer counts them, not frames."""

    trainer_type: Annotated[Text, BeforeValidator(_trainer_type)] = Field(
        PPO,
        description="`ppo`, or `module:Class` for a trainer of your own. Required with `hyperparameters`.",
    )
    hyperparameters: Hyperparameters = Field(
        default_factory=PPOHyperparameters,
        description="What the trainer learns by. For a trainer of your own: any map, handed to it as it is.",
    )
    network_settings: NetworkSettings = Field(default_factory=NetworkSettings, description="The network.")
    reward_signals: Annotated[dict[str, RewardSignalSettings], BeforeValidator(_reward_signals)] = Field(
        default_factory=lambda: {"extrinsic": RewardSignalSettings()},
        description="Rewards by name. So far `extrinsic` only.",
        json_schema_extra={"default_text": "`extrinsic`"},
    )
    checkpoint_interval: Int = Field(500000, gt=0, description="Steps between checkpoints.")
    keep_checkpoints: Int = Field(5, description="Newest checkpoints to keep; 0 or less: all.")
    even_checkpoints: Flag = Field(
        False, description="Set `checkpoint_interval` to `max_steps` / `keep_checkpoints`, whatever it says."
    )
    max_steps: Int = Field(500000, gt=0, description="Steps after which training ends.")
    time_horizon: Int = Field(
        64,
        gt=0,
        description="Longest piece of one agent's trajectory, in steps, before it goes to the trainer.",
    )
    summary_freq: Int = Field(50000, gt=0, description="Steps between summaries (console and TensorBoard).")
    threaded: Flag = Field(
        False,
        description="Accepted for ML-Agents' sake and without meaning: the learner always runs apart "
        "(see `pipeline.hosts.learners`). A warning says so.",
    )
    init_path: Text | None = Field(
        None,
        description="Weights to start from: a path, or a file name under "
        "`<results_dir>/<initialize_from>/<behaviour>/`.",
    )
    self_play: SelfPlaySettings | None = Field(None, description="Presence turns self-play on.")
    behavioral_cloning: Annotated[PlainMap | None, absent_until_later("behavioural cloning")] = Field(
        None, description=f"Imitation of a demonstration: {LATER}."
    )
    framework: Text | None = Field(
        None, description="Accepted for ML-Agents' sake and without meaning: a warning says so."
    )

    @field_validator("hyperparameters", mode="wrap")
    @classmethod
    def _by_trainer(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        trainer = info.data.get("trainer_type")
        if isinstance(value, PPOHyperparameters) or not isinstance(value, dict):
            return handler(value)
        if trainer == PPO:
            return PPOHyperparameters.model_validate(value)
        return value  # for a trainer of the user's own, or one that was refused already

    @model_validator(mode="before")
    @classmethod
    def _needs_trainer_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("hyperparameters"), dict) and "trainer_type" not in data:
            message = "needs trainer_type beside it; add 'trainer_type: ppo' (or your own 'module:Class')"
            report([Finding(("hyperparameters",), message)])
        return data

    @model_validator(mode="after")
    def _derive(self) -> BehaviorSettings:
        if self.trainer_type != PPO and not self._given("hyperparameters"):
            self._fill(hyperparameters={})
        if self.even_checkpoints:
            self._fill(checkpoint_interval=self._even_interval())
        return self

    def _even_interval(self) -> int:
        """Give ML-Agents' `int(max_steps / keep_checkpoints)`, refusing what would divide by zero there."""
        if self.keep_checkpoints <= 0:
            message = f"{self.keep_checkpoints} does not go with even_checkpoints; expected at least 1"
            report([Finding(("keep_checkpoints",), message, (("even_checkpoints",),))])
        if self.max_steps < self.keep_checkpoints:
            message = f"{self.keep_checkpoints} is more than max_steps ({self.max_steps}) has steps"
            report([Finding(("keep_checkpoints",), message, (("max_steps",),))])
        return self.max_steps // self.keep_checkpoints
