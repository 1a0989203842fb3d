"""From a full buffer to what POCA learns from: values of groups, baselines, λ-returns, and the rows with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from config import POCAHyperparameters
from stages.policy.design import PolicyDesign
from stages.trainer.agent_table import Chains
from stages.trainer.intake import Intake
from stages.trainer.on_policy.advantages import advantages
from stages.trainer.on_policy.critic_memories import CriticMemories
from stages.trainer.on_policy.evaluation import Evaluation, evaluate_sequences, rows_per_pass
from stages.trainer.on_policy.experience import drawn_actions, previous_actions, taken_actions
from stages.trainer.on_policy.input_rows import InputRows
from stages.trainer.on_policy.minibatch import Rollout
from stages.trainer.on_policy.preparation import VALUES, Prepared, target_columns
from stages.trainer.on_policy.rollout_buffer import RolloutBuffer
from stages.trainer.on_policy.sequences import Cuts, SequenceRollout
from stages.trainer.on_policy.signals import Signals
from stages.trainer.poca.mates import Mates, final_mates, row_mates
from stages.trainer.poca.network import GroupActorCritic
from stages.trainer.poca.rollout import GroupMinibatch, GroupRollout
from stages.trainer.poca.team_rows import TeamRows

BASELINES = "Baseline Estimate"
Floats = NDArray[np.float64]


class GroupPreparation:
    """Prepares buffers of one behaviour.

    Attributes:
        largest: members that a group has had at most so far.

    Args:
        design: of the policy.
        hyperparameters: λ, how ratios are taken.
        network: whose critic is asked.
        intake: how observations are laid out and normalised.
        signals: how their rewards are discounted.
        device: where to learn.
    """

    def __init__(
        self,
        design: PolicyDesign,
        hyperparameters: POCAHyperparameters,
        network: GroupActorCritic,
        intake: Intake,
        signals: Signals,
        device: str,
    ) -> None:
        self.largest = 1
        self.critic_memories: CriticMemories | None = None
        self._spec = design.spec
        self._settings = hyperparameters
        self._network = network
        self._intake = intake
        self._signals = signals
        self._device = device
        self._memory = design.settings.memory
        self._block = rows_per_pass(design.spec)
        if self._memory is not None:
            self.critic_memories = CriticMemories(2 * design.memory_size)

    def received(self, buffer: RolloutBuffer) -> NDArray[np.float32]:
        """[N] what the environment gave: to the agent, to its group, and to its mates at the same moment."""
        rewards: NDArray[np.float32] = buffer.rows["rewards"]
        if not buffer.grouped:
            return rewards
        return rewards + buffer.rows["group_rewards"] + row_mates(buffer).sums(rewards)

    def prepare(
        self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains | None
    ) -> Prepared[GroupMinibatch]:
        """Ask the critic, and put advantages and returns beside the rows.

        Args:
            buffer: full.
            rewards: [N, S] times strength.
            chains: which trajectory continues which; without memory there may be none.
        """
        layout, trajectories, settings = self._intake.layout, buffer.trajectories, self._settings
        mates, mates_at_end = row_mates(buffer), final_mates(buffer)
        by_turns = not mates.present.any()
        self.largest = max(self.largest, 1 + int(mates.present.sum(1).max(initial=0)))
        observed = layout.from_columns(buffer.rows.columns())
        vectors = self._intake.normalized(observed.vectors)
        before = None if self._memory is None else previous_actions(self._spec, buffer)[0]
        inputs = InputRows.of(vectors, observed.others, before, self._device)
        actions = torch.from_numpy(taken_actions(self._spec, buffer)).to(self._device)
        teams = TeamRows(inputs, actions, mates, np.ones(len(buffer), np.bool_), self.largest)
        # Who terminated is there no more; who was interrupted, or whose trajectory was just cut, is.
        left = ~trajectories["terminated"]
        finals, nobody = self._at_end(buffer, mates_at_end, left, by_turns)
        over = nobody & ~trajectories["group_left"] if buffer.grouped else nobody
        cuts = None if self._memory is None else Cuts.of(trajectories["lengths"], self._memory.sequence_length)
        evaluation, baselines = self._evaluate(buffer, teams, finals, cuts, chains)
        # Mates who are left but of whom nothing is known: as far as is known, the group is worth what it was.
        last = np.cumsum(trajectories["lengths"]) - 1
        worth = np.where((nobody & ~over)[:, None], evaluation.values[last], evaluation.final_values)
        evaluation = replace(evaluation, final_values=worth)
        goes_on = self._signals.ignore_termination
        if goes_on.any():  # for these everybody is there still
            everyone, _ = self._at_end(buffer, mates_at_end, np.ones_like(left), by_turns)
            beyond, _ = self._judged(everyone, evaluation.memories_after)
            evaluation = replace(evaluation, final_values=np.where(goes_on, beyond, evaluation.final_values))
        # λ-returns are G = V + A, where A are the advantages of GAE with the same λ.
        returns = evaluation.values + advantages(
            rewards,
            evaluation.values,
            evaluation.final_values,
            trajectories["lengths"],
            over[:, None] & ~goes_on,
            self._signals.gammas,
            settings.lambd,
        )
        targets = target_columns(self._spec, buffer, settings.ratio_per_dimension, returns - baselines, returns)
        choices = drawn_actions(self._spec, buffer.rows)[1]
        rollout: Rollout | SequenceRollout
        if cuts is None or buffer.sequences is None:
            rollout = Rollout([vectors, *targets], choices, self._device, inputs.others)
        else:
            recorded = torch.from_numpy(buffer.sequences["memories"]).to(self._device)
            rollout = SequenceRollout(inputs, targets, choices, cuts, recorded, evaluation.memories)
        estimates = {VALUES: evaluation.values, BASELINES: baselines}
        return Prepared(GroupRollout(rollout, teams, baselines), evaluation, estimates)

    def _at_end(
        self, buffer: RolloutBuffer, mates: Mates, left: NDArray[np.bool_], by_turns: bool
    ) -> tuple[TeamRows, NDArray[np.bool_]]:
        """The teams after each of K trajectories, made of the agents that are left [K]; and where nobody is [K].

        Where nobody ever decides beside a mate, the critic has learned only of single ones, so one is asked at the end
        too: the agent itself, or if it is not left, one of its mates.
        """
        after = self._intake.layout.from_columns(buffer.trajectories.columns(), "next_")
        inputs = InputRows.of(self._intake.normalized(after.vectors), after.others, None, self._device)
        actions = self._spec.actions
        undecided = torch.zeros(len(left), actions.continuous_size + actions.mask_size, device=self._device)
        present = mates.present & left[mates.numbers]
        if by_turns:
            present &= (present.cumsum(1) == 1) & ~left[:, None]
        teams = TeamRows(inputs, undecided, Mates(mates.numbers, present), left, self.largest)
        return teams, ~(left | present.any(1))

    def _evaluate(
        self, buffer: RolloutBuffer, teams: TeamRows, finals: TeamRows, cuts: Cuts | None, chains: Chains | None
    ) -> tuple[Evaluation, Floats]:
        """What the critic says of all rows and ends: an evaluation of the values, and the rows' baselines [N, S]."""
        if cuts is None or self.critic_memories is None:
            values, baselines = self._judged(teams, None)
            return Evaluation(values, self._judged(finals, None)[0]), baselines
        assert chains is not None, "with memory they are known"
        trajectories = buffer.trajectories
        initial = torch.from_numpy(self.critic_memories.of(trajectories["agent_ids"], trajectories["episode_ids"]))
        found = evaluate_sequences(
            self._network,
            teams,
            finals,
            trajectories["lengths"],
            cuts,
            chains,
            initial.to(self._device),
            self._rows_per_pass(teams),
        )
        values, baselines = np.split(found.values, 2, axis=1)
        return replace(found, values=values, final_values=np.split(found.final_values, 2, axis=1)[0]), baselines

    def _judged(self, teams: TeamRows, memories: Tensor | None) -> tuple[Floats, Floats]:
        """Values and baselines [n, S] of all teams, each of them one step from its memories."""
        found, block, numbers = [], self._rows_per_pass(teams), np.arange(len(teams))
        with torch.no_grad():
            for at in range(0, len(teams), block):
                some = slice(at, at + block)
                before = None if memories is None else memories[some]
                found.append(self._network.evaluate(teams.teams(numbers[some], before))[0])
        values, baselines = np.split(torch.cat(found).cpu().numpy().astype(np.float64), 2, axis=1)
        return values, baselines

    def _rows_per_pass(self, teams: TeamRows) -> int:
        return max(1, self._block // teams.width)
