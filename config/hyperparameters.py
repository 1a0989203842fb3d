"""A behaviour's `hyperparameters`: one settings model per trainer, assigned to trainers in `config/trainers.py`.

The models of PPO, POCA and behavioural cloning come first, then those of SAC and IMPALA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol, Self

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
            raise ValueError("; ".join(problem["msg"] for problem in error.errors())) from None

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


class HindsightSettings(Settings):
    """Hindsight experience replay, for goal environments. Including this section enables it. See docs/algorithms.md."""

    goals: Literal["future", "final", "episode"] = Field(
        "future",
        description="The new goal of a relabelled step is a goal that the same episode achieved: at that step or later "
        "(`future`), at the end (`final`), or at any step (`episode`).",
    )
    per_transition: Int = Field(
        4,
        gt=0,
        le=10**6,
        description="Number of relabelled steps for each step with its original goal: n of n + 1 steps are relabelled.",
    )


class SACHyperparameters(Hyperparameters):
    """`hyperparameters` of a behaviour whose `trainer_type` is `sac`."""

    batch_size: Int = Field(128, gt=0, le=10**9, description="Agent steps per gradient step.")
    buffer_size: Int = Field(
        50000, gt=0, le=10**9, description="Size of the replay buffer, in agent steps; it keeps the newest."
    )
    learning_rate: Float = Field(3e-4, gt=0, description="Adam's initial step size.")
    learning_rate_schedule: Schedule = schedule_field("constant")
    buffer_init_steps: Int = Field(0, ge=0, description="Agent steps to collect before the first update.")
    random_steps: Int = Field(
        0,
        ge=0,
        description="Agent steps at the start of the run with uniformly random actions, within their bounds and among "
        "the allowed choices, instead of from the untrained policy. Not in ML-Agents.",
    )
    update_at: Literal["step", "episode_end"] = Field(
        "step",
        description="When to update: as steps arrive, or at the end of an episode, for all steps since the previous "
        "updates. Not in ML-Agents.",
    )
    train_freq: Int | None = Field(
        None,
        gt=0,
        le=10**9,
        description="Agent steps (with `update_at: episode_end`: episodes) between two rounds of updates; the policy "
        "does not change in between. null: as often as actors send steps, or 1 episode. Not in ML-Agents.",
    )
    gradient_steps: Int | None = Field(
        None,
        gt=0,
        le=10**9,
        description="Updates in each round, whatever the round's length; null: one for every `steps_per_update` of "
        "its steps. Not in ML-Agents.",
    )
    tau: Float = Field(
        0.005,
        gt=0,
        le=1,
        description="Fraction by which the target networks move towards the learned networks per update.",
    )
    target_update_interval: Int = Field(
        1,
        gt=0,
        description="Number of updates between two changes of the target networks. Not in ML-Agents (which always "
        "uses 1).",
    )
    steps_per_update: Float = Field(
        1.0, gt=0, description="Agent steps per update; below 1 for several updates per step."
    )
    reward_signal_steps_per_update: Float = Field(
        1.0,
        gt=0,
        description="Agent steps per update of the reward signals' networks.",
        json_schema_extra={"default_text": "`steps_per_update`"},
    )
    save_replay_buffer: Flag = Field(False, description="Save the replay buffer in checkpoints.")
    init_entcoef: Float = Field(1.0, gt=0, description="Initial entropy coefficient.")
    entropy_coefficient: Literal["auto", "fixed"] = Field(
        "auto",
        description="`auto`: learned, so that the entropy reaches its target; `fixed`: always `init_entcoef`. Not in "
        "ML-Agents.",
    )
    target_entropy: Float | None = Field(
        None,
        description="Target entropy of all continuous actions together, in nats, that the learned coefficient aims "
        "for; null: minus the number of continuous actions. Not in ML-Agents (which always uses this default).",
    )
    reward_normalization: Flag = reward_normalization_field()
    adam_epsilon: Float = Field(1e-8, gt=0, description="Adam's ε. Not in ML-Agents (which always uses this default).")
    hindsight: HindsightSettings | None = Field(
        None,
        description="If present, enables hindsight experience replay, for goal environments. Not in ML-Agents.",
    )

    @property
    def rows_per_update(self) -> int | None:
        """Number of new steps per update, which is `train_freq`; None if `train_freq` does not count steps."""
        return self.train_freq if self.update_at == "step" else None

    def small(self, rows: int) -> Self:
        """Return a copy for a trial run, with few updates, and random actions in at most a quarter of `rows` steps."""
        seldom = max(self.steps_per_update, rows / 4)
        most = {"batch_size": rows // 2, "buffer_init_steps": rows // 2, "random_steps": rows // 4}
        return self.model_copy(
            update={
                **{name: min(getattr(self, name), value) for name, value in most.items()},
                "update_at": "step",
                "train_freq": None,
                "gradient_steps": None,
                "steps_per_update": seldom,
                "reward_signal_steps_per_update": seldom,
            }
        )

    def _mistakes(self) -> list[Finding]:
        findings = about_sizes(self.buffer_size, self.batch_size)
        if self.gradient_steps is not None and self.train_freq is None and self.update_at == "step":
            message = (
                "needs rounds of updates; add 'train_freq', the steps between two rounds, or 'update_at: episode_end'"
            )
            findings.append(Finding(("gradient_steps",), message))
        return findings

    def _derive(self) -> None:
        if not self._is_set("reward_signal_steps_per_update"):
            self._fill(reward_signal_steps_per_update=self.steps_per_update)

    def check(self, block: Block) -> Iterator[Finding]:
        """Report conflicts with a memory or hindsight, and warn about sizes that prevent nearly all learning."""
        memory = block.network_settings.memory
        if self.hindsight is not None and memory is not None:
            message = (
                "relabels single steps, but a network with a memory learns from sequences; leave one of the two out"
            )
            yield Finding(("hyperparameters", "hindsight"), message, (("network_settings", "memory"),))
        if self.hindsight is not None and "extrinsic" not in block.signals:
            message = (
                "recomputes the environment's reward, which is not among reward_signals; add extrinsic there, or "
                "leave hindsight out"
            )
            yield Finding(("hyperparameters", "hindsight"), message, (("reward_signals",),))
        if memory is not None and self.buffer_size < memory.sequence_length:
            message = (
                f"{self.buffer_size} is smaller than network_settings.memory.sequence_length "
                f"({memory.sequence_length}): it can't hold a whole sequence; raise buffer_size or lower "
                "sequence_length"
            )
            yield Finding(
                ("hyperparameters", "buffer_size"), message, (("network_settings", "memory", "sequence_length"),)
            )
        if self.buffer_init_steps > self.buffer_size:
            message = (
                f"{self.buffer_init_steps} exceeds buffer_size ({self.buffer_size}): the oldest steps are "
                "overwritten before the first update"
            )
            yield Finding(("hyperparameters", "buffer_init_steps"), message, warns=True)
        if self.random_steps >= block.max_steps:
            message = f"{self.random_steps} steps cover all of max_steps ({block.max_steps}), so no policy ever acts"
            yield Finding(("hyperparameters", "random_steps"), message, warns=True)
        first = max(1 if block.network_settings.memory else self.batch_size, self.buffer_init_steps + 1)
        if first > block.max_steps:
            message = (
                f"{block.max_steps} steps end before the first update, which comes after {first} (buffer_init_steps "
                "and batch_size): nothing is learned"
            )
            yield Finding(("max_steps",), message, warns=True)


class ImpalaHyperparameters(Hyperparameters):
    """`hyperparameters` of a behaviour whose `trainer_type` is `impala`. Sizes are given in unrolls."""

    unroll_length: Int = Field(20, gt=0, le=10**7, description="Number of steps in an unroll.")
    batch_size: Int = Field(
        12, gt=0, le=10**7, description="Unrolls per gradient step; each update is one gradient step."
    )
    batch_size_from_replay: Int = Field(
        8,
        ge=0,
        description="Number of these unrolls that are replayed; less than `batch_size`. The others are fresh.",
        json_schema_extra={"default_text": "two thirds of `batch_size`"},
    )
    replay_capacity: Int = Field(
        200,
        gt=0,
        le=10**9,
        description="Number of unrolls that the replay buffer keeps.",
        json_schema_extra={"default_text": "25 times `batch_size_from_replay`"},
    )
    replay_sampling: Literal["reservoir", "fifo"] = Field(
        "fifo",
        description="`reservoir`: the buffer is a uniform sample of the whole run; `fifo`: the newest unrolls.",
    )
    learning_rate: Float = Field(1e-3, gt=0, description="Adam's initial step size.")
    learning_rate_schedule: Schedule = schedule_field("linear")
    adam_beta1: Float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay rate of Adam's running mean of gradients; 0 disables momentum, which would mislead steps "
        "late in the run.",
    )
    adam_beta2: Float = Field(0.99, ge=0, lt=1, description="Decay rate of Adam's running mean of squared gradients.")
    adam_epsilon: Float = Field(
        0.01,
        gt=0,
        description="Adam's ε: gradients much smaller than this have less effect than large gradients.",
        json_schema_extra={"default_text": "`0.01`; `1e-05` with `loss_reduction: mean`"},
    )
    max_grad_norm: Float | None = Field(
        40.0,
        gt=0,
        description="Gradients are scaled down to this norm, separately for the actor and the critic unless they share "
        "a body; null: never.",
    )
    shared_grad_norm: Flag = shared_grad_norm_field()
    loss_reduction: Literal["sum", "mean"] = Field(
        "sum", description="Losses are summed over the steps of a batch, or averaged."
    )
    beta: Float = Field(0.01, ge=0, description="Weight of the entropy bonus.")
    beta_schedule: Schedule = Field("constant", description="Schedule of `beta` up to `max_steps`.")
    baseline_cost: Float = Field(0.5, ge=0, description="Weight of the value loss, half the squared error.")
    policy_cloning_cost: Float = Field(
        0.0, ge=0, description="Weight of the divergence from the policy that acted, for replayed steps."
    )
    value_cloning_cost: Float = Field(
        0.0, ge=0, description="Weight of the squared difference from the recorded value, for replayed steps."
    )
    rho_bar: Float = Field(1.0, gt=0, description="Limit on the importance ratio of each V-trace step.")
    c_bar: Float = Field(
        1.0, gt=0, description="Limit on each importance ratio in V-trace's products over later steps."
    )
    lambd: Float = Field(1.0, ge=0, le=1, description="λ of V-trace's targets.")
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric"] = Field(
        "none",
        description="Clipping of rewards, after multiplication by `strength`. `abs_one`: to [-1, 1]; "
        "`soft_asymmetric`: 5·tanh(r/5), with negative values multiplied by 0.3.",
    )
    clip_advantage: Flag | Annotated[Float, Field(gt=0)] | None = Field(
        None,
        description="A number: advantages are clipped to ± this number. `true`: negative advantages become 0, as "
        "in the original learner. `false` or null: no clipping.",
    )
    shared_critic: Flag = Field(
        False,
        description="Actor and critic share the network's body.",
        json_schema_extra={"default_text": "`true` with memory, otherwise `false`"},
    )
    reward_normalization: Flag = reward_normalization_field(True)
    critic_pretrain_steps: Int = Field(
        0, ge=0, description="Steps at the start of the run in which only the critic learns."
    )

    @property
    def rows_per_update(self) -> int:
        """Number of steps in the new unrolls of an update."""
        return (self.batch_size - self.batch_size_from_replay) * self.unroll_length

    @property
    def longest_piece(self) -> int:
        """Number of steps after which actors cut trajectories, which is `unroll_length`."""
        return self.unroll_length

    @property
    def batch_rows(self) -> int:
        """Number of environment steps used in one gradient step."""
        return self.batch_size * self.unroll_length

    def small(self, rows: int) -> Self:
        """Return a copy with fewer and shorter unrolls per batch."""
        length = min(self.unroll_length, max(1, rows // 8))
        batch = min(self.batch_size, max(2, rows // length))
        return self.model_copy(
            update={
                "unroll_length": length,
                "batch_size": batch,
                "batch_size_from_replay": min(self.batch_size_from_replay, batch // 2),
                "critic_pretrain_steps": min(self.critic_pretrain_steps, rows),
            }
        )

    def extra_columns(self) -> tuple[str, ...]:
        """Return `action_heads` if the acting policies are cloned, otherwise nothing."""
        return ("action_heads",) if self.batch_size_from_replay and self.policy_cloning_cost else ()

    def check(self, block: Block) -> Iterator[Finding]:
        """Report a separate critic in a network with memory, and warn if only the critic would learn."""
        if block.network_settings.memory is not None and not self._is_set("shared_critic"):
            self._fill(shared_critic=True)
        elif block.network_settings.memory is not None and not self.shared_critic:
            message = (
                "false can't be combined with network_settings.memory: an unroll stores the actor's memory, which the "
                "critic must share; leave it out"
            )
            yield Finding(("hyperparameters", "shared_critic"), message, (("network_settings", "memory"),))
        if self.critic_pretrain_steps >= block.max_steps:
            message = (
                f"{self.critic_pretrain_steps} steps cover the entire run (max_steps: {block.max_steps}): only the "
                "critic learns, and the policy never changes"
            )
            yield Finding(("hyperparameters", "critic_pretrain_steps"), message, warns=True)

    def _derive(self) -> None:
        if not self._is_set("batch_size_from_replay"):
            self._fill(batch_size_from_replay=self.batch_size * 2 // 3)
        if not self._is_set("replay_capacity") and self.batch_size_from_replay:
            self._fill(replay_capacity=25 * self.batch_size_from_replay)
        if not self._is_set("adam_epsilon") and self.loss_reduction == "mean":
            self._fill(adam_epsilon=1e-5)

    def _mistakes(self) -> Iterator[Finding]:
        self._derive()  # checked even for derived values
        replayed, capacity = self.batch_size_from_replay, self.replay_capacity
        if replayed >= self.batch_size:
            message = f"{replayed} of batch_size ({self.batch_size}) leaves no fresh unrolls; expected a smaller number"
            yield Finding(("batch_size_from_replay",), message, (("batch_size",),))
        elif replayed > capacity:
            message = f"{capacity} is less than batch_size_from_replay ({replayed}), so no update can draw that many"
            yield Finding(("replay_capacity",), message, (("batch_size_from_replay",),))
