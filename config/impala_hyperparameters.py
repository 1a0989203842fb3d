"""IMPALA's `hyperparameters`: V-trace with a replay buffer and cloning. Sizes are given in unrolls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int
from headrace.config.hyperparameters import (
    Block,
    Hyperparameters,
    Schedule,
    reward_normalization_field,
    schedule_field,
    shared_grad_norm_field,
)


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
