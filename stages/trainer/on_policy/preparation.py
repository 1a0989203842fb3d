"""From a full buffer to what the update learns from: values, advantages, returns, and the rows with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from config import PPOHyperparameters
from queues.messages import Array
from queues.specs import BehaviorSpec
from stages.policy.design import PolicyDesign
from stages.policy.layout import MASK_PENALTY
from stages.policy.network.protocol import ActorCriticNetwork
from stages.trainer.agent_table import Chains
from stages.trainer.intake import Intake
from stages.trainer.on_policy.advantages import advantages, normalized
from stages.trainer.on_policy.critic_memories import CriticMemories
from stages.trainer.on_policy.evaluation import Evaluation, evaluate_rows, evaluate_sequences, rows_per_pass
from stages.trainer.on_policy.experience import drawn_actions, previous_actions
from stages.trainer.on_policy.input_rows import InputRows
from stages.trainer.on_policy.minibatch import Epochs, Minibatch, OneMinibatch, Rollout
from stages.trainer.on_policy.rollout_buffer import RolloutBuffer
from stages.trainer.on_policy.sequences import Cuts, SequenceRollout
from stages.trainer.on_policy.signals import Signals

VALUES = "Value Estimate"


@dataclass(frozen=True)
class Prepared(Generic[OneMinibatch]):
    """What the update learns from, and what the critic said on the way."""

    rollout: Epochs[OneMinibatch]
    evaluation: Evaluation
    estimates: Mapping[str, NDArray[np.float64]]
    """[N, S] each, by the names under which their means are reported."""


class Preparation:
    """Prepares buffers of one behaviour.

    Args:
        design: of the policy.
        hyperparameters: λ, whose critic it is, how ratios are taken.
        network: whose critic is asked.
        intake: how observations are laid out and normalised.
        signals: how their rewards are discounted.
        device: where to learn.
    """

    def __init__(
        self,
        design: PolicyDesign,
        hyperparameters: PPOHyperparameters,
        network: ActorCriticNetwork,
        intake: Intake,
        signals: Signals,
        device: str,
    ) -> None:
        self._spec = design.spec
        self._settings = hyperparameters
        self._network = network
        self._intake = intake
        self._signals = signals
        self._device = device
        self._memory = design.settings.memory
        self._block = rows_per_pass(design.spec)
        self.critic_memories: CriticMemories | None = None
        """None without memory, and where the critic shares the actor's body: then it shares the actor's memories as
        well, which are recorded."""
        if self._memory is not None and not hyperparameters.shared_critic:
            self.critic_memories = CriticMemories(design.memory_size)

    def received(self, buffer: RolloutBuffer) -> NDArray[np.float32]:
        """[N] what the environment gave for each row."""
        rewards: NDArray[np.float32] = buffer.rows["rewards"]
        return rewards

    def prepare(
        self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains | None
    ) -> Prepared[Minibatch]:
        """Ask the critic, and put advantages and returns beside the rows.

        Args:
            buffer: full.
            rewards: [N, S] times strength.
            chains: which trajectory continues which; without memory there may be none.
        """
        layout = self._intake.layout
        observed = layout.from_columns(buffer.rows.columns())
        after = layout.from_columns(buffer.trajectories.columns(), "next_")
        before, last = (None, None) if self._memory is None else previous_actions(self._spec, buffer)
        vectors = self._intake.normalized(observed.vectors)
        rows = InputRows.of(vectors, observed.others, before, self._device)
        finals = InputRows.of(self._intake.normalized(after.vectors), after.others, last, self._device)
        if rows.previous_actions is None:
            evaluation = evaluate_rows(self._network, rows, finals, self._block)
            targets = self._targets(buffer, rewards, evaluation)
            rollout = Rollout([vectors, *targets], drawn_actions(self._spec, buffer.rows)[1], self._device, rows.others)
            return Prepared(rollout, evaluation, {VALUES: evaluation.values})
        assert self._memory is not None, "previous actions are taken in with memory alone"
        assert buffer.sequences is not None, "it was made with memory"
        assert chains is not None, "with memory they are known"
        lengths = buffer.trajectories["lengths"]
        cuts = Cuts.of(lengths, self._memory.sequence_length)
        recorded = torch.from_numpy(buffer.sequences["memories"]).to(self._device)
        initial, chains = self._before(buffer, recorded, cuts, chains)
        evaluation = evaluate_sequences(self._network, rows, finals, lengths, cuts, chains, initial, self._block)
        targets = self._targets(buffer, rewards, evaluation)
        critic_memories = None if self.critic_memories is None else evaluation.memories
        choices = drawn_actions(self._spec, buffer.rows)[1]
        sequences = SequenceRollout(rows, targets, choices, cuts, recorded, critic_memories)
        return Prepared(sequences, evaluation, {VALUES: evaluation.values})

    def _before(self, buffer: RolloutBuffer, recorded: Tensor, cuts: Cuts, chains: Chains) -> tuple[Tensor, Chains]:
        """What the critic remembered [K, m] before trajectories, and in which order to go through them."""
        if self.critic_memories is None:
            first = torch.from_numpy(cuts.first).to(self._device)
            return recorded.index_select(0, first), Chains.unlinked(len(cuts.first))
        found = self.critic_memories.of(buffer.trajectories["agent_ids"], buffer.trajectories["episode_ids"])
        return torch.from_numpy(found).to(self._device), chains

    def _targets(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], evaluation: Evaluation) -> list[Array]:
        """The columns of `Minibatch` from `continuous` to `returns`."""
        trajectories = buffer.trajectories
        per_signal = advantages(
            rewards,
            evaluation.values,
            evaluation.final_values,
            trajectories["lengths"],
            trajectories["terminated"][:, None] & ~self._signals.ignore_termination,
            self._signals.gammas,
            self._settings.lambd,
        )
        returns = per_signal + evaluation.values
        return target_columns(self._spec, buffer, self._settings.ratio_per_dimension, per_signal, returns)


def target_columns(
    spec: BehaviorSpec,
    buffer: RolloutBuffer,
    ratio_per_dimension: bool,
    per_signal: NDArray[np.float64],
    returns: NDArray[np.float64],
) -> list[Array]:
    """The columns of `Minibatch` from `continuous` to `returns`.

    Args:
        spec: the actions.
        buffer: the rows.
        ratio_per_dimension: whether log-probabilities stay apart, or are those of the joint action.
        per_signal: [N, S] advantages, not normalised.
        returns: [N, S] value targets.
    """
    rows = buffer.rows
    log_probs = rows["log_probs"]
    if not ratio_per_dimension:
        log_probs = log_probs.sum(axis=1, keepdims=True)
    masked = spec.actions.masked
    return [
        drawn_actions(spec, rows)[0],
        np.where(rows["action_masks"], np.float32(0), MASK_PENALTY) if masked else np.empty((len(rows), 0)),
        log_probs,
        normalized(per_signal.mean(axis=1))[:, None],
        returns,
    ]
