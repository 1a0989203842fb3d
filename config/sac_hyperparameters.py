"""Soft actor-critic's `hyperparameters`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int, Settings
from headrace.config.hyperparameters import (
    Block,
    Hyperparameters,
    Schedule,
    about_sizes,
    reward_normalization_field,
    schedule_field,
)


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
        found = about_sizes(self.buffer_size, self.batch_size)
        if self.gradient_steps is not None and self.train_freq is None and self.update_at == "step":
            message = (
                "needs rounds of updates; add 'train_freq', the steps between two rounds, or 'update_at: episode_end'"
            )
            found.append(Finding(("gradient_steps",), message))
        return found

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
