"""The actor–learner as a `Trainer`: V-trace on unrolls, some of them replayed.

Espeholt et al. (2018), "IMPALA", with the replay and the cloning losses of Rolnick et al. (2019), CLEAR, as the
learner of the StarCraft II agents combines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import ImpalaHyperparameters, MemorySettings
from headrace.queues.columns import Column
from headrace.queues.messages import Array
from headrace.stages.policy.design import ACTION_HEADS, MASK_PENALTY
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import to_device
from headrace.stages.trainer.agent_table import Chains
from headrace.stages.trainer.gradients import say_uncaptured
from headrace.stages.trainer.impala.gradients import ImpalaByHand
from headrace.stages.trainer.impala.replay import UnrollReplay
from headrace.stages.trainer.impala.unrolls import Recorded, Unrolls, joined_inputs, pieces_of, sequence_inputs
from headrace.stages.trainer.impala.update import ImpalaUpdate, Learned, clipped_rewards
from headrace.stages.trainer.on_policy.rollout_buffer import RolloutBuffer
from headrace.stages.trainer.on_policy.trainer import OnPolicyTrainer, Outcome
from headrace.stages.trainer.on_policy.update import Coefficients
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.replay_store import ReplayFileError, read_replay, write_replay

VALUES = "recorded_values"
"""Column of rows: the critic's values when the row was first learned from."""


class ImpalaTrainer(OnPolicyTrainer[ImpalaHyperparameters, ImpalaUpdate]):
    """Learns one behaviour from unrolls by V-trace. A group's reward counts as each member's own.

    Raises:
        StageError: if the behaviour can't be trained: no actions, an observation that no encoder accepts, unusable
            demonstrations.
    """

    hyperparameters = ImpalaHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._replay: UnrollReplay | None = None
        if self._hyperparameters.batch_size_from_replay:
            self._joined = self._make_joined()
            self._replay = self._make_replay()

    def _learn(self, chains: Chains | None) -> Outcome:
        h, fresh = self._hyperparameters, len(self._buffer)
        pretraining = self.step - fresh < h.critic_pretrain_steps
        batch = self._with_replayed()
        transitions = self._signals.transitions(batch)
        rewards = self._signals.rewards(batch.rows["rewards"], transitions)
        unrolls, coefficients = self._unrolls(batch, rewards, fresh), self._coefficients()
        if pretraining:
            learned = self._update.pretrain_critic(unrolls, coefficients.learning_rate, self.step)
        else:
            learned = self._update.learn(unrolls, coefficients, self.step)
            self._clone()
        learn_signals = self._signals.learner(transitions)
        if learn_signals is not None:
            learn_signals(torch.arange(unrolls.all_rows))
        self._remember(learned.values[:fresh])
        return Outcome(rewards[:fresh], self._statistics(learned, unrolls, coefficients, pretraining))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`, with an empty replay: `load_bulk` fills it."""
        super().load_state_dict(state)
        if self._replay is not None:
            self._replay.clear()

    def save_bulk(self, folder: Path) -> None:
        """Write the replay."""
        if self._replay is not None:
            write_replay(self._replay, self._replay_path(folder), self.step)

    def load_bulk(self, folder: Path) -> str | None:
        """Read the replay; without it, replay starts once the memory has filled again."""
        if self._replay is None:
            return None
        try:
            read_replay(self._replay, self._replay_path(folder), self.step)
        except ReplayFileError as error:
            return f"the replay buffer could not be restored, so it starts empty: {error}"
        return None

    def _make_update(self) -> ImpalaUpdate:
        shared, device = self._hyperparameters.shared_critic, self.context.device
        network = make_actor_critic(self._design, len(self._signals.names), shared, self._random, device)
        say_uncaptured(self.context, "each update is a single step, on trajectories of different lengths")
        perceptrons, h, spec = self._perceptrons(network), self._hyperparameters, self._spec
        update = ImpalaUpdate(network, spec, h, self._signals.gammas, self.context.replicas)
        if perceptrons is not None:
            update.gradients = ImpalaByHand(perceptrons, spec.actions, h.batch_size * h.unroll_length)
        return update

    def _make_buffer(self) -> RolloutBuffer:
        h = self._hyperparameters
        return RolloutBuffer(
            self._spec,
            self._intake.layout,
            h.rows_per_update,
            self._sequences(),
            follows_agents=self._signals.follows_agents,
            extra=self._design.asked_columns,
            unroll_length=h.unroll_length,
            squashed=self.squashed,
        )

    def _make_joined(self) -> RolloutBuffer:
        recorded = Column(VALUES, "float32", (len(self._signals.names),))
        rows, extra = self._hyperparameters.batch_rows, [*self._design.asked_columns, recorded]
        sizes = self._spec, self._intake.layout, rows, self._sequences()
        return RolloutBuffer(*sizes, extra=extra, squashed=self.squashed)

    def _sequences(self) -> MemorySettings | None:
        """The memory's settings, with unrolls as sequences; None without memory."""
        length = {"sequence_length": self._hyperparameters.unroll_length}
        return None if self._memory is None else self._memory.model_copy(update=length)

    def _make_replay(self) -> UnrollReplay:
        h, tables = self._hyperparameters, self._joined
        pieces = [column for column in tables.trajectories.declared if column.name != "lengths"]
        if tables.sequences is not None:
            pieces += tables.sequences.declared
        return UnrollReplay(tables.rows.declared, pieces, h.unroll_length, h.replay_capacity, h.replay_sampling)

    def _replay_path(self, folder: Path) -> Path:
        return folder / f"{self.context.behavior}-unrolls.bin"

    def _with_replayed(self) -> RolloutBuffer:
        """The fresh rows, followed by the replayed ones once the replay is large enough."""
        count = self._hyperparameters.batch_size_from_replay
        if self._replay is None or len(self._replay) < count:
            return self._buffer
        fresh, joined = self._buffer, self._joined
        joined.clear()
        rows, trajectories = self._replay.draw(count, self._random)
        missing = np.zeros((len(fresh), len(self._signals.names)), np.float32)
        before = {} if fresh.sequences is None else fresh.sequences.columns()
        joined.extend({**fresh.rows.columns(), VALUES: missing}, fresh.trajectories.columns(), before)
        joined.extend(rows, trajectories, trajectories)
        return joined

    def _remember(self, values: NDArray[np.float64]) -> None:
        """Add the fresh unrolls to the replay, with the critic's values [F, S]."""
        if self._replay is None:
            return
        fresh = self._buffer
        before = {} if fresh.sequences is None else fresh.sequences.columns()
        rows = {**fresh.rows.columns(), VALUES: values.astype(np.float32)}
        self._replay.add(rows, {**fresh.trajectories.columns(), **before}, self._random)

    def _unrolls(self, batch: RolloutBuffer, rewards: NDArray[np.float64], fresh: int) -> Unrolls:
        """The rows of a batch as the update takes them, from their rewards [N, S] and the number of fresh rows.

        Each of several replicas takes a part of the trajectories.
        """
        rows, trajectories, device = batch.rows, batch.trajectories, self.context.device
        pieces, here = pieces_of(trajectories["lengths"], self.context.replicas)
        own = here.rows
        lengths, terminated = trajectories["lengths"][pieces], trajectories["terminated"][pieces]
        before, last = batch.previous_action_features() if batch.sequences is not None else (None, None)
        inputs = self._input_rows(batch.observations(), before).part(own)
        finals = self._input_rows(batch.final_observations(), last).part(pieces)
        places = None
        if batch.sequences is None:
            together = joined_inputs(inputs, finals)
        else:
            memories = to_device(torch.from_numpy(batch.sequences["memories"][pieces]), device)
            together, places = sequence_inputs(inputs, finals, lengths, memories)
        continuous, choices = batch.actions()
        penalties = self._penalties(rows["action_masks"]) if self._spec.actions.masked else None
        chosen = to_device(torch.from_numpy(choices[own].astype(np.int64)), device)
        own_fresh = min(max(fresh - own.start, 0), here.size)
        replayed = slice(own.start + own_fresh, own.stop)
        return Unrolls(
            together,
            places,
            to_device(torch.from_numpy(continuous[own]), device),
            torch.split(chosen, 1, dim=1) if choices.shape[1] else (),
            None if penalties is None else to_device(torch.from_numpy(penalties[own]), device),
            rows["log_probs"][own].sum(axis=1),
            clipped_rewards(rewards[own], self._hyperparameters.reward_clipping),
            lengths,
            terminated[:, None] & ~self._signals.ignore_termination,
            own_fresh,
            self._recorded(batch, penalties, replayed) if len(batch) > fresh else None,
            len(batch),
            fresh,
            here,
        )

    def _penalties(self, masks: Array) -> NDArray[np.float32]:
        """[N, H] penalties for action heads, where masks [N, choices] forbid a choice."""
        means = np.zeros((len(masks), self._spec.actions.continuous_size), np.float32)
        return np.concatenate([means, np.where(masks, np.float32(0), np.float32(MASK_PENALTY))], axis=1)

    def _recorded(self, batch: RolloutBuffer, penalties: NDArray[np.float32] | None, replayed: slice) -> Recorded:
        device, heads = self.context.device, None
        if self._design.asked_columns:
            acted = batch.rows[ACTION_HEADS][replayed].copy()
            if penalties is not None:
                acted[:, -self._spec.actions.mask_size :] += penalties[replayed, -self._spec.actions.mask_size :]
            heads = to_device(torch.from_numpy(acted), device)
        return Recorded(heads, to_device(torch.from_numpy(batch.rows[VALUES][replayed]), device))

    def _statistics(
        self, learned: Learned, unrolls: Unrolls, coefficients: Coefficients, pretraining: bool
    ) -> dict[str, float]:
        """The statistics of an update, by name; `pretraining` if only the critic has learned."""
        found = self._signals.value_statistics({"Value Estimate": learned.values}, learned.values, learned.targets)
        if learned.ratios is not None:
            found |= learned.ratios.named()
        if pretraining:
            found["critic_pretrain/baseline_loss"] = learned.losses["baseline"]
            found["critic_pretrain/grad_norm"] = learned.grad_norm
            found["critic_pretrain/learning_rate"] = coefficients.learning_rate
        else:
            found |= {f"loss/{name}": loss for name, loss in learned.losses.items() if self._is_told(name)}
            found["grad_norm"] = learned.grad_norm
            found["learning_rate"] = coefficients.learning_rate
            found["entropy_cost"] = coefficients.beta
            found["Policy/Entropy"] = learned.entropy
        if self._replay is not None:
            found["Policy/Replayed Share"] = 1.0 - unrolls.all_fresh / unrolls.all_rows
        return found

    def _is_told(self, loss: str) -> bool:
        return self._replay is not None or not loss.endswith("_cloning")
