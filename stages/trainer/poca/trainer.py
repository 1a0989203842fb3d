"""MA-POCA as a `Trainer`, with ML-Agents' semantics: PPO for groups of agents with a common reward.

Cohen et al. (2021), "On the Use and Misuse of Absorbing States in Multi-agent Reinforcement Learning". Each agent acts
on its own observations. The critic observes all members of a group. Returns are based on the critic's value for the
group. Advantages are returns minus the critic's counterfactual baseline, which depends on the teammates' actions but
not on the agent's. An agent that leaves before its group's episode ends learns from the rewards of the remaining
members.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import OnPolicyHyperparameters, POCAHyperparameters
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.network.protocol import Perceptrons
from headrace.stages.trainer.gradients import say_uncaptured
from headrace.stages.trainer.on_policy.rollout_buffer import SequenceCuts
from headrace.stages.trainer.on_policy.signals import BufferTransitions
from headrace.stages.trainer.on_policy.trainer import OnPolicyTrainer, Outcome, Prepared
from headrace.stages.trainer.on_policy.update import (
    Coefficients,
    OnPolicyUpdate,
    clipped_policy_loss,
    value_loss,
)
from headrace.stages.trainer.on_policy.values import CriticValues, evaluate_sequences
from headrace.stages.trainer.poca.network import GroupActorCritic
from headrace.stages.trainer.poca.teams import (
    GroupMinibatch,
    GroupRollout,
    Mates,
    TeamRows,
    final_mates,
    renumbered,
    row_mates,
)
from headrace.stages.trainer.ppo.trainer import VALUES, ActorByHand, make_rollout
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.trajectories import AgentTable, Chains

log = logging.getLogger(__name__)

BASELINES = "Baseline Estimate"
_LARGEST = "largest_group"
Floats = NDArray[np.float64]


class POCATrainer(OnPolicyTrainer[OnPolicyHyperparameters, OnPolicyUpdate[Any]]):
    """Learns with a critic that evaluates agents by the observations and actions of their entire group."""

    hyperparameters = POCAHyperparameters
    follows_groups = True

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        size = 2 * self._design.memory_size  # for the value, and for the baseline
        self._critic_memories = self._kept["critic_memories"] = AgentTable(size, "float32") if size else None
        self._largest = 1
        """Number of members of the largest group so far."""
        if not context.spec.grouped:
            log.warning(
                "%s: trainer_type poca is for groups of agents, but this environment has no groups, so each agent "
                "learns separately; ppo does the same faster",
                context.behavior,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `OnPolicyTrainer`, and the size of the largest group."""
        state = {**super().state_dict(), _LARGEST: self._largest}
        return {**state, "buffer": renumbered(state["buffer"])} if self._buffer.grouped else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; see `OnPolicyTrainer`."""
        super().load_state_dict(state)
        self._largest = int(state[_LARGEST])

    def warm_state(self) -> dict[str, Any]:
        """Return actor, critic, normaliser, and the size of the largest group."""
        return {**super().warm_state(), _LARGEST: self._largest}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`; see `OnPolicyTrainer`."""
        super().warm_start(state)
        self._largest = int(state[_LARGEST])

    def _make_update(self) -> POCAUpdate:
        context = self.context
        say_uncaptured(context, "teams differ in their number of members")
        self._critic = network = GroupActorCritic(self._design, len(self._signals.names), self._random, context.device)
        update = POCAUpdate(network, context.spec, self._hyperparameters, context.replicas)
        perceptron = self._perceptrons(network.tower, "its actor is more than a perceptron")
        if perceptron is not None:
            update.find_gradients = POCAByHand(update, perceptron, context.spec.actions)
        return update

    def _learn(self, chains: Chains | None) -> Outcome:
        transitions = self._signals.transitions(self._buffer)
        return self._learn_in_epochs(self._update, self._prepare(transitions, chains), transitions, chains)

    def _prepare(self, transitions: BufferTransitions | None, chains: Chains | None) -> Prepared:
        buffer, cuts = self._buffer, self._buffer.cuts()
        mates = row_mates(buffer)
        self._largest = max(self._largest, 1 + int(mates.present.sum(1).max(initial=0)))
        rewards = self._signals.rewards(self._extrinsic(mates), transitions)
        before = None if cuts is None else buffer.previous_action_features()[0]
        inputs = self._input_rows(buffer.observations(), before)
        actions = torch.from_numpy(buffer.action_features()).to(self.context.device)
        teams = TeamRows(inputs, actions, mates, np.ones(len(buffer), np.bool_), self._largest)
        values, baselines, over = self._evaluate_teams(teams, cuts, chains, by_turns=not mates.present.any())
        # The λ-returns are G = V + A, where A is the advantage computed by GAE with the same λ.
        lengths = self._buffer.trajectories["lengths"]
        returns = values.values + self._signals.advantages(rewards, values, lengths, over, self._hyperparameters.lambd)
        targets = returns - baselines, returns, values.memories, self._rows_per_pass
        rollout = make_rollout(self.context, self._update, buffer, inputs, *targets)
        estimates = {VALUES: values.values, BASELINES: baselines}
        return Prepared(GroupRollout(rollout, teams, baselines), rewards, values, returns, estimates)

    def _extrinsic_rewards(self) -> NDArray[np.float32]:
        return self._extrinsic(row_mates(self._buffer))

    def _extrinsic(self, mates: Mates) -> NDArray[np.float32]:
        """Return the environment's rewards [N]: those of the agent, its group, and its teammates at the same moment."""
        rewards: NDArray[np.float32] = self._buffer.rows["rewards"]
        if not self._buffer.grouped:
            return rewards
        return rewards + self._buffer.rows["group_rewards"] + mates.sums(rewards)

    def _evaluate_teams(
        self, teams: TeamRows, cuts: SequenceCuts | None, chains: Chains | None, by_turns: bool
    ) -> tuple[CriticValues, Floats, NDArray[np.bool_]]:
        """Return values, baselines [N, S], and flags [K], true if the group's episode ends with a trajectory."""
        trajectories, mates = self._buffer.trajectories, final_mates(self._buffer)
        # An agent that terminated has left. An agent that was interrupted, or whose trajectory was just cut, has not.
        left = ~trajectories["terminated"]
        finals, empty = self._teams_at_end(mates, left, by_turns)
        over = empty & ~trajectories["group_left"] if self._buffer.grouped else empty
        values, baselines = self._critic_values(teams, finals, cuts, chains)
        # If teammates remain but none of their observations is known, the group is assumed to keep its value.
        last = np.cumsum(trajectories["lengths"]) - 1
        final_values = np.where((empty & ~over)[:, None], values.values[last], values.final_values)
        goes_on = self._signals.ignore_termination
        if goes_on.any():  # for these signals, all members count as still present
            complete, _ = self._teams_at_end(mates, np.ones_like(left), by_turns)
            beyond, _ = self._one_step_values(complete, values.memories_after)
            final_values = np.where(goes_on, beyond, final_values)
        return replace(values, final_values=final_values), baselines, over

    def _teams_at_end(
        self, mates: Mates, left: NDArray[np.bool_], by_turns: bool
    ) -> tuple[TeamRows, NDArray[np.bool_]]:
        """Return the remaining agents' teams after each of K trajectories, and flags [K], true if no agent remains.

        `left` [K] is true for agents that remain. If no agent ever decides together with a teammate (`by_turns`), the
        critic has learned only about single agents. At the end, it then also evaluates a single agent: the agent itself
        or, if the agent has left, one of its teammates.
        """
        inputs = self._input_rows(self._buffer.final_observations())
        actions = self._spec.actions
        undecided = torch.zeros(len(left), actions.continuous_size + actions.mask_size, device=inputs.device)
        present = mates.present & left[mates.numbers]
        if by_turns:
            present &= (present.cumsum(1) == 1) & ~left[:, None]
        teams = TeamRows(inputs, undecided, Mates(mates.numbers, present), left, self._largest)
        return teams, ~(left | present.any(1))

    def _critic_values(
        self, teams: TeamRows, finals: TeamRows, cuts: SequenceCuts | None, chains: Chains | None
    ) -> tuple[CriticValues, Floats]:
        """Return the values of all rows and final observations, and the rows' baselines [N, S]."""
        if cuts is None or self._critic_memories is None:
            values, baselines = self._one_step_values(teams, None)
            return CriticValues(values, self._one_step_values(finals, None)[0]), baselines
        assert chains is not None, "the buffer follows agents with memory"
        initial = torch.from_numpy(self._buffer.kept(self._critic_memories)).to(teams.device)
        lengths, block = self._buffer.trajectories["lengths"], self._teams_per_pass(teams)
        found = evaluate_sequences(self._critic, teams, finals, lengths, cuts, chains, initial, block)
        values, baselines = np.split(found.values, 2, axis=1)
        return replace(found, values=values, final_values=np.split(found.final_values, 2, axis=1)[0]), baselines

    def _one_step_values(self, teams: TeamRows, memories: Tensor | None) -> tuple[Floats, Floats]:
        """Return the values and baselines [n, S] of all teams, each evaluated for one step from its memories."""
        found, block, numbers = [], self._teams_per_pass(teams), np.arange(len(teams))
        here = self.context.replicas.part(len(teams))
        with torch.no_grad():
            for at in range(here.rows.start, here.rows.stop, block):
                some = slice(at, min(at + block, here.rows.stop))
                before = None if memories is None else memories[some]
                found.append(self._critic.evaluate(teams.teams(numbers[some], before))[0])
        both = self.context.replicas.gathered(torch.cat(found), here, len(teams))
        values, baselines = np.split(both.cpu().numpy().astype(np.float64), 2, axis=1)
        return values, baselines

    def _teams_per_pass(self, teams: TeamRows) -> int:
        return max(1, self._rows_per_pass // teams.width)


# The update: PPO's losses, and the loss of the counterfactual baseline.


BASELINE_COEFFICIENT = 0.5
"""Weight of the baseline's loss relative to the value loss, as in ML-Agents."""


class POCAUpdate(OnPolicyUpdate[GroupMinibatch]):
    """Trains an actor, and a critic that evaluates groups; takes the arguments of `OnPolicyUpdate`."""

    names = ("policy loss", "value loss", "baseline loss", "entropy")
    of_value = (1.0, BASELINE_COEFFICIENT)
    network: GroupActorCritic

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the actor's head outputs [B, H]."""
        return self.network.heads(inputs)

    def losses(self, batch: GroupMinibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return policy loss, value loss, baseline loss and entropy."""
        own = batch.own
        heads = self.network.heads(own.inputs)
        if own.real is not None:  # drop padding, so plain means are masked means
            heads = heads.index_select(0, own.real)
        log_probs, entropy = self.log_probs_and_entropy(heads, own)
        log_ratios = log_probs - own.old_log_probs
        self.ratios = log_ratios.detach()
        policy = clipped_policy_loss(log_ratios, own.advantages, coefficients.epsilon)
        return policy, *self.critic_losses(batch, coefficients.epsilon), entropy

    def critic_losses(self, batch: GroupMinibatch, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return the value loss and the baseline loss."""
        own = batch.own
        values, baselines = self.network.values_and_baselines(batch.teams)
        if own.real is not None:
            values, baselines = values.index_select(0, own.real), baselines.index_select(0, own.real)
        return value_loss(values, own.returns), baseline_loss(baselines, batch.old_baselines, own.returns, epsilon)


class POCAByHand:
    """Computes a perceptron actor's gradients by hand, and the critic's by autograd, for a `POCAUpdate`.

    Args:
        update: the update, which computes the critic's losses.
        actor: the perceptron.
        actions: the behaviour's actions.
    """

    def __init__(self, update: POCAUpdate, actor: Perceptrons, actions: ActionSpec) -> None:
        self._update = update
        self._actor = ActorByHand(update, actor, actions)

    def __call__(self, batch: GroupMinibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Set the gradients; return the losses [4]."""
        self._update.network.gradients.zero_()
        of_critic = torch.stack(self._update.critic_losses(batch, coefficients.epsilon))
        torch.autograd.backward(of_critic @ weights[1:3] * batch.share)
        of_actor = self._actor(batch.own, coefficients)
        return torch.cat([of_actor[:1], of_critic.detach(), of_actor[1:]])


def baseline_loss(baselines: Tensor, old_baselines: Tensor, returns: Tensor, epsilon: float) -> Tensor:
    """Return a squared error that does not reward moving more than ε away from the old baseline, as in ML-Agents.

    Args:
        baselines: [B, S] the critic's current baselines.
        old_baselines: [B, S] the critic's baselines before the update.
        returns: [B, S] the targets.
        epsilon: the clip range.

    Returns:
        The mean over rows and signals: a scalar.
    """
    clipped = old_baselines + (baselines - old_baselines).clamp(-epsilon, epsilon)
    return torch.maximum((returns - baselines).square(), (returns - clipped).square()).mean()
