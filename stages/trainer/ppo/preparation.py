"""From a full buffer to what the update learns from: values, advantages, returns, and the rows with them.

The critic's memory lives here: of each agent it is carried from one trajectory to the next, as the actor's is on the
actor's side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from config import PPOHyperparameters
from queues.messages import Array
from stages.policy.design import PolicyDesign
from stages.policy.layout import MASK_PENALTY
from stages.policy.network.protocol import ActorCriticNetwork
from stages.trainer.intake import Intake
from stages.trainer.ppo.advantages import advantages, normalized
from stages.trainer.ppo.agent_table import AgentTable, Chains
from stages.trainer.ppo.evaluation import Evaluation, evaluate_rows, evaluate_sequences, rows_per_pass
from stages.trainer.ppo.experience import drawn_actions, previous_actions
from stages.trainer.ppo.input_rows import InputRows
from stages.trainer.ppo.minibatch import Rollout
from stages.trainer.ppo.rollout_buffer import RolloutBuffer
from stages.trainer.ppo.sequences import Cuts, SequenceRollout
from stages.trainer.ppo.signals import Signals


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the update learns from, and what the critic said on the way."""

    rollout: Rollout | SequenceRollout
    evaluation: Evaluation


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
        self.critic_memories: AgentTable | None = None
        """Of each agent in the middle of an episode. None without memory, and where the critic shares the actor's body:
        then it shares the actor's memories as well, which are recorded."""
        if self._memory is not None and not hyperparameters.shared_critic:
            self.critic_memories = AgentTable(design.memory_size, "float32")

    def prepare(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains | None) -> Prepared:
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
            return Prepared(Rollout([vectors, *targets], self._choices(buffer), self._device, rows.others), evaluation)
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
        rollout = SequenceRollout(rows, targets, self._choices(buffer), cuts, recorded, critic_memories)
        return Prepared(rollout, evaluation)

    def remember(self, buffer: RolloutBuffer, evaluation: Evaluation, chains: Chains | None, update: int) -> None:
        """Keep the critic's memories for the agents' next trajectories.

        Args:
            buffer: what was evaluated.
            evaluation: of it.
            chains: which trajectory continues which.
            update: number of the update, rising.
        """
        if self.critic_memories is None or chains is None or evaluation.memories_after is None:
            return
        trajectories, latest = buffer.trajectories, chains.latest
        ended = trajectories["terminated"] | trajectories["truncated"]
        self.critic_memories.keep(
            trajectories["agent_ids"][latest],
            trajectories["episode_ids"][latest],
            evaluation.memories_after.cpu().numpy()[latest],
            ended[latest],
            update,
        )

    def _before(self, buffer: RolloutBuffer, recorded: Tensor, cuts: Cuts, chains: Chains) -> tuple[Tensor, Chains]:
        """What the critic remembered [K, m] before trajectories, and in which order to go through them."""
        if self.critic_memories is None:
            first = torch.from_numpy(cuts.first).to(self._device)
            return recorded.index_select(0, first), Chains.unlinked(len(cuts.first))
        found = self.critic_memories.of(buffer.trajectories["agent_ids"], buffer.trajectories["episode_ids"])
        return torch.from_numpy(found).to(self._device), chains

    def _targets(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], evaluation: Evaluation) -> list[Array]:
        """The columns of `Minibatch` from `continuous` to `returns`."""
        rows, trajectories = buffer.rows, buffer.trajectories
        per_signal = advantages(
            rewards,
            evaluation.values,
            evaluation.final_values,
            trajectories["lengths"],
            trajectories["terminated"][:, None] & ~self._signals.ignore_termination,
            self._signals.gammas,
            self._settings.lambd,
        )
        log_probs = rows["log_probs"]
        if not self._settings.ratio_per_dimension:
            log_probs = log_probs.sum(axis=1, keepdims=True)
        masked = self._spec.actions.masked
        return [
            drawn_actions(self._spec, rows)[0],
            np.where(rows["action_masks"], np.float32(0), MASK_PENALTY) if masked else np.empty((len(rows), 0)),
            log_probs,
            normalized(per_signal.mean(axis=1))[:, None],
            per_signal + evaluation.values,
        ]

    def _choices(self, buffer: RolloutBuffer) -> Array:
        return drawn_actions(self._spec, buffer.rows)[1]
