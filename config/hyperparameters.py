"""A behaviour's `hyperparameters`: one settings model per trainer, assigned to trainers in `config/trainers.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, Self

from pydantic import Field, ValidationError

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int, PathText, Settings, Text
from headrace.config.network_settings import NetworkSettings
from headrace.config.reward_signals import DEMONSTRATIONS, LearnedSignalSettings, RewardSignalSettings

Schedule = Literal["linear", "constant"]
_STAYS_OR_FALLS = "`linear`: falls to almost 0 at `max_steps`; `constant`: does not change."
_AS_LEARNING_RATE = {"default_text": "`learning_rate_schedule`"}


def schedule_field(default: Schedule, description: str = _STAYS_OR_FALLS, extra: dict[str, Any] | None = None) -> Any:
    """Return the pydantic field for a value's schedule."""
    return Field(default, description=description, json_schema_extra=extra)


class Block(Protocol):
    """The other settings of a behaviour that its hyperparameters are checked against."""

    @property
    def max_steps(self) -> int: ...  # noqa: D102 - a key of the YAML
    @property
    def network_settings(self) -> NetworkSettings: ...  # noqa: D102
    @property
    def signals(self) -> Mapping[str, RewardSignalSettings]: ...  # noqa: D102
    @property
    def learned_signals(self) -> Mapping[str, LearnedSignalSettings]: ...  # noqa: D102


class Hyperparameters(Settings):
    """Base class of every trainer's `hyperparameters`."""

    @classmethod
    def scheduled(cls) -> tuple[str, ...]:
        """Return the names of scheduled hyperparameters, whose values may change during a run."""
        return tuple(name for name in cls.model_fields if f"{name}_schedule" in cls.model_fields)

    def with_value(self, name: str, value: float) -> Self:
        """Return a copy with a different value for a scheduled hyperparameter.

        Raises:
            ValueError: if the hyperparameter has no schedule, or the value is out of bounds.
        """
        if name not in self.scheduled():
            raise ValueError(
                f"{name} can't change during a run; the settings that can are: {', '.join(self.scheduled()) or 'none'}"
            )
        try:
            return type(self).model_validate({**self.model_dump(), name: value})
        except ValidationError as error:
            raise ValueError("; ".join(each["msg"] for each in error.errors())) from None

    @property
    def rows_per_update(self) -> int | None:
        """Number of new steps per update; None if updates sample from a replay buffer."""
        return None

    @property
    def longest_piece(self) -> int | None:
        """Number of steps after which actors cut trajectories; None to cut them after `time_horizon`."""
        return None

    def small(self, rows: int) -> Self:
        """Return a copy for a trial run, in which the first update comes after about `rows` steps and is quick."""
        return self

    def check(self, block: Block) -> Iterator[Finding]:
        """Find conflicts with the behaviour's other settings, and values that deserve a warning.

        The findings' paths are relative to the behaviour's block.
        """
        yield from ()

    def extra_columns(self) -> tuple[str, ...]:
        """Return the names of decision columns that these settings need, in addition to `TrainerKind.extra_columns`."""
        return ()


def shared_grad_norm_field() -> Any:
    """Return the pydantic field for a trainer's `shared_grad_norm`."""
    return Field(
        False,
        description="`max_grad_norm` limits the joint norm of the actor's and the critic's gradients, as in most "
        "implementations, instead of each norm. Not in ML-Agents.",
    )


def reward_normalization_field(default: bool = False) -> Any:
    """Return the pydantic field for a trainer's `reward_normalization`."""
    return Field(
        default,
        description="Learn from the environment's rewards divided by the running standard deviation of their "
        "discounted returns, clipped at ±10, as Stable-Baselines3's `VecNormalize` does; scores and statistics are "
        "not scaled. Not in ML-Agents.",
    )


class OnPolicyHyperparameters(Hyperparameters):
    """Hyperparameters that `ppo` and `poca` share."""

    batch_size: Int = Field(
        1024, gt=0, le=10**9, description="Agent steps per gradient step (the minibatch); at most the whole buffer."
    )
    buffer_size: Int = Field(10240, gt=0, le=10**9, description="Agent steps collected before each update.")
    learning_rate: Float = Field(3e-4, gt=0, description="Adam's initial step size.")
    learning_rate_schedule: Schedule = schedule_field("linear")
    beta: Float = Field(5e-3, ge=0, description="Weight of the entropy bonus.")
    beta_schedule: Schedule = schedule_field("linear", "Schedule of `beta` up to `max_steps`.", _AS_LEARNING_RATE)
    summed_entropy: Flag = Field(
        False,
        description="Sum the entropies of an agent's continuous actions, as most implementations do, instead of "
        "averaging them; can't be combined with discrete actions. Not in ML-Agents.",
    )
    epsilon: Float = Field(0.2, gt=0, description="Clip range of the probability ratio.")
    epsilon_schedule: Schedule = schedule_field("linear", "Schedule of `epsilon` up to `max_steps`.", _AS_LEARNING_RATE)
    lambd: Float = Field(0.95, ge=0, le=1, description="λ of advantages (`ppo`: GAE) and returns (`poca`: λ-returns).")
    num_epoch: Int = Field(3, gt=0, description="Passes over the buffer in each update.")
    max_grad_norm: Float | None = Field(
        None,
        gt=0,
        description="Gradients are scaled down to this norm, separately for the actor and the critic unless they share "
        "a body; null: never. Not in ML-Agents.",
    )
    shared_grad_norm: Flag = shared_grad_norm_field()
    target_kl: Float | None = Field(
        None,
        gt=0,
        description="An update ends after the first epoch in which the approximate KL divergence from the policy "
        "before the update exceeds 1.5 times this value; null: every update runs all epochs. Not in ML-Agents.",
    )
    adam_epsilon: Float = Field(1e-8, gt=0, description="Adam's ε. Not in ML-Agents (which always uses this default).")
    ratio_per_dimension: Flag = Field(
        False,
        description="Clip the ratio per action dimension, as ML-Agents does, not per joint action. Not in ML-Agents.",
    )
    decoupled: Flag = Field(
        True,
        description="Clip relative to the policy before the update, and learn less from actions that have become "
        "unlikely under it; `false`: relative to the policy that acted, as ML-Agents does. Not in ML-Agents.",
    )

    value_coefficient: Float = Field(
        0.5,
        ge=0,
        description="Weight of the value loss (c₁ of the paper's eq. 9). Not in ML-Agents (which always "
        "uses this default).",
    )
    reward_normalization: Flag = reward_normalization_field()
    advantage_normalization: Literal["buffer", "minibatch", "none"] = Field(
        "buffer",
        description="Set over which advantages are normalised: the whole buffer, or each minibatch, as in most "
        "implementations (not valid with a memory). Not in ML-Agents (which always uses the buffer).",
    )

    @property
    def rows_per_update(self) -> int:
        """Number of new steps per update, which is `buffer_size`."""
        return self.buffer_size

    @property
    def batch_rows(self) -> int:
        """Number of rows that one gradient step uses: `batch_size`, or `buffer_size` if that is smaller."""
        return min(self.batch_size, self.buffer_size)

    def small(self, rows: int) -> Self:
        """Return a copy that updates after `rows` steps, in a single pass over them."""
        return self.model_copy(update=_one_pass(self.buffer_size, self.batch_size, rows))

    def check(self, block: Block) -> Iterator[Finding]:
        """Report per-minibatch normalisation with a memory, and warn about a minibatch larger than the buffer."""
        if self.advantage_normalization == "minibatch" and block.network_settings.memory is not None:
            message = "'minibatch' can't be combined with network_settings.memory; expected 'buffer' or 'none'"
            yield Finding(("hyperparameters", "advantage_normalization"), message, (("network_settings", "memory"),))
        if self.buffer_size < self.batch_size:
            message = (
                f"{self.buffer_size} is smaller than batch_size ({self.batch_size}), so each minibatch is the whole "
                "buffer"
            )
            yield Finding(("hyperparameters", "buffer_size"), message, warns=True)

    def _derive(self) -> None:
        for name in ("beta_schedule", "epsilon_schedule"):
            if not self._is_set(name):
                self._fill(**{name: self.learning_rate_schedule})


class RegularizationSettings(Settings):
    """`hyperparameters.regularization` of `ppo`: magnetic mirror descent, for games between opposing players."""

    coefficient: Float = Field(
        1.0, gt=0, description="Weight of the divergence KL(policy, anchor) in the policy's loss."
    )
    anchor_steps: Int = Field(
        300_000,
        gt=0,
        description="Agent steps in which the anchor moves 63 % of the way to the policy; the number grows in "
        "inverse proportion to the learning rate.",
    )
    averaged_share: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="Exported policies have averaged weights, which cancels out cycles. The average's weights are "
        "proportional to t^(1/share - 1) at step t, so it covers about this share of the steps so far; 0: the newest "
        "weights, without an average.",
    )


class PPOHyperparameters(OnPolicyHyperparameters):
    """`hyperparameters` of a behaviour whose `trainer_type` is `ppo`."""

    shared_critic: Flag = Field(False, description="Actor and critic share the network's body.")
    regularization: RegularizationSettings | None = Field(
        None,
        description="If present, keeps the policy close to a copy of itself that follows slowly (the anchor), which "
        "reduces cycles in self-play. Not in ML-Agents.",
    )


class POCAHyperparameters(OnPolicyHyperparameters):
    """`hyperparameters` of a behaviour whose `trainer_type` is `poca`, whose critic sees the entire group."""

    def check(self, block: Block) -> Iterator[Finding]:
        """Also warn about reward signals that judge agents individually."""
        yield from super().check(block)
        for name in block.learned_signals:
            message = (
                "rewards each agent separately, while poca's critic values the whole group, so it may mislead the "
                "critic; use only the extrinsic reward with poca"
            )
            yield Finding(("reward_signals", name), message, warns=True)


class BCHyperparameters(Hyperparameters):
    """`hyperparameters` of a behaviour whose `trainer_type` is `bc`, which learns by imitation and needs no rewards."""

    demo_path: PathText | None = Field(None, min_length=1, description=f"{DEMONSTRATIONS} An alternative to `teacher`.")
    teacher: Text | None = Field(
        None,
        min_length=1,
        description="Another behaviour of this run to imitate; an alternative to `demo_path`.",
    )
    batch_size: Int = Field(256, gt=0, le=10**9, description="Steps per gradient step.")
    buffer_size: Int = Field(
        4096, gt=0, le=10**9, description="Steps collected before each update; at least `batch_size`."
    )
    learning_rate: Float = Field(3e-4, gt=0, description="Adam's initial step size.")
    learning_rate_schedule: Schedule = schedule_field("constant")
    num_epoch: Int = Field(1, gt=0, description="Passes over the collected steps in each update.")
    held_out: Float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Fraction of the episodes that is held out for validation.",
    )

    @property
    def rows_per_update(self) -> int:
        """Number of new steps per update, which is `buffer_size`."""
        return self.buffer_size

    def small(self, rows: int) -> Self:
        """Return a copy that updates after `rows` steps, in a single pass over them."""
        return self.model_copy(update=_one_pass(self.buffer_size, self.batch_size, rows))

    def check(self, block: Block) -> Iterator[Finding]:
        """Report exploration noise, which is useless for imitation."""
        if block.network_settings.gsde is not None:
            message = "can't be combined with trainer_type 'bc', which imitates and does not explore; leave it out"
            yield Finding(("network_settings", "gsde"), message, (("trainer_type",),))

    def _mistakes(self) -> Iterator[Finding]:
        if self.demo_path is None and self.teacher is None:
            message = "has nothing to imitate; add 'demo_path' (demonstrations) or 'teacher' (a behaviour of this run)"
            yield Finding((), message, (("demo_path",), ("teacher",)))
        if self.demo_path is not None and self.teacher is not None:
            yield Finding(("teacher",), "can't be combined with 'demo_path'; keep one of the two", (("demo_path",),))
        yield from about_sizes(self.buffer_size, self.batch_size)


def _one_pass(buffer_size: int, batch_size: int, rows: int) -> dict[str, int]:
    buffer = min(buffer_size, rows)
    return {"buffer_size": buffer, "batch_size": min(batch_size, buffer), "num_epoch": 1}


def about_sizes(buffer_size: int, batch_size: int) -> list[Finding]:
    """Report a buffer smaller than the minibatches drawn from it."""
    if buffer_size >= batch_size:
        return []
    message = f"{buffer_size} is smaller than batch_size ({batch_size}); raise buffer_size or lower batch_size"
    return [Finding(("buffer_size",), message, (("batch_size",),))]
