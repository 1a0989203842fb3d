"""IMPALA: V-trace on unrolls, some of which are replayed, and one gradient step on all of them.

Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
with the replay and the cloning losses of Rolnick et al. (2019), "Experience Replay for Continual Learning" (CLEAR),
combined as in the learner of DeepMind's StarCraft II agents. In order: the trainer, which collects fresh unrolls and
draws past ones; the update; V-trace (section 4.1); the losses; statistics; the rows of an update, and the replay of
past unrolls.

Losses are summed over time and batch, as in the paper, or averaged (`loss_reduction`). The cloning losses are computed
only on replayed rows. By default, `headrace.stages.trainer.fast` computes the gradients of perceptrons faster.

Axis letters: N rows, of which the first F are fresh and the others replayed, in K trajectories packed end to end; C
continuous actions; H head outputs; S reward signals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import ImpalaHyperparameters
from headrace.queues.columns import Column
from headrace.queues.messages import Array, Columns
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import ACTION_HEADS, MASK_PENALTY
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import (
    Inputs,
    categorical_log_probs,
    gaussian_scores,
    on_host,
    to_device,
)
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.trainer.adam import Adam, GradientParts, NetworkUpdate, not_finite
from headrace.stages.trainer.on_policy.anchor import described, divergence
from headrace.stages.trainer.on_policy.trainer import (
    Coefficients,
    OnPolicyTrainer,
    RolloutBuffer,
    accumulated,
    gathered_sequences,
    next_values,
)
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, ReplicaSlice, TrainerContext
from headrace.stages.trainer.replay.replay_memory import LazyColumn, ReplayFileError, read_replay, write_replay
from headrace.stages.trainer.trajectories import SequenceCuts

Floats = NDArray[np.float64]
VALUES = "recorded_values"
"""Name of the row column with the critic's values when the row was first learned from."""


class ImpalaTrainer(OnPolicyTrainer[ImpalaHyperparameters, "ImpalaUpdate"]):
    """Learns one behaviour from unrolls with V-trace; see `OnPolicyTrainer` for errors.

    A group's reward is added to each member's own reward.
    """

    hyperparameters = ImpalaHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._replay: UnrollReplay | None = None
        h, (rows, trajectories, sequences) = self._hyperparameters, self._buffer.declared.values()
        if h.batch_size_from_replay:
            recorded = Column(VALUES, "float32", (len(self._signals.names),))
            columns = [*rows, recorded], [*trajectories, *sequences]
            self._replay = UnrollReplay(*columns, h.unroll_length, h.replay_capacity, h.replay_sampling)

    def _learn(self) -> tuple[Floats, Mapping[str, float]]:
        h, buffer, replay, replayed = self._hyperparameters, self._buffer, self._replay, None
        batch, fresh, signals = buffer, len(buffer), self._signals
        if replay is not None and len(replay) >= h.batch_size_from_replay:
            replayed, trajectories = replay.draw(h.batch_size_from_replay, self._random)
            batch = buffer.joined(replayed, trajectories)
        rewards = signals.rewards(batch.rows["rewards"], batch, self.version + 1, fresh=buffer)
        unrolls, coefficients = self._unrolls(batch, rewards, fresh, replayed), self._coefficients()
        if self.step - fresh < h.critic_pretrain_steps:
            learned = self._update.pretrain_critic(unrolls, coefficients.learning_rate, self.step)
        else:
            learned = self._update.learn(unrolls, coefficients, self.step)
            if self._cloning is not None:
                self._report(self._cloning.update(self.step))
        if signals.others:
            signals.learn(torch.arange(unrolls.all_rows))
        statistics, values, targets = learned.statistics, learned.values, learned.targets
        if self.context.replicas.size > 1:
            ours = self._to_device(np.concatenate([values, targets], axis=1))
            both = on_host(self.context.replicas.gathered(ours, unrolls.here, unrolls.all_rows))
            values, targets = np.split(both, 2, axis=1)
        statistics |= signals.value_statistics({"Value Estimate": values}, values, targets)
        if replay is not None:
            rows = {**buffer.rows, VALUES: values[:fresh].astype(np.float32)}
            replay.add(rows, {**buffer.trajectories, **buffer.sequences}, self._random)
            statistics["Policy/Replayed Share"] = 1.0 - unrolls.all_fresh / unrolls.all_rows
        return rewards[:fresh], statistics

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`. The replay buffer is then empty; `load_bulk` fills it."""
        super().load_state_dict(state)
        if self._replay is not None:
            self._replay.clear()

    def save_bulk(self, folder: Path) -> None:
        """Write the replay buffer to a file."""
        if self._replay is not None:
            write_replay(self._replay, self._replay_path(folder), self.step)

    def load_bulk(self, folder: Path) -> str | None:
        """Read the replay buffer; if its file is missing, replay starts once the buffer has filled again."""
        if self._replay is None:
            return None
        try:
            read_replay(self._replay, self._replay_path(folder), self.step)
        except ReplayFileError as error:
            return f"the replay buffer could not be restored, so it starts empty: {error}"
        return None

    def _make_update(self) -> ImpalaUpdate:
        h, context = self._hyperparameters, self.context
        network = make_actor_critic(
            self._design, len(self._signals.names), h.shared_critic, self._random, context.device, context.accelerated
        )
        return ImpalaUpdate(network, self._spec, h, self._signals.gammas, context.replicas)

    def _make_buffer(self) -> RolloutBuffer:
        h, memory = self._hyperparameters, self._memory
        if memory is not None:  # one sequence per trajectory
            memory = memory.model_copy(update={"sequence_length": h.unroll_length})
        sizes = self._spec, self._intake.layout, h.rows_per_update, memory, self._signals.follows_agents
        return RolloutBuffer(*sizes, extra=self._asked_columns, unroll_length=h.unroll_length, squashed=self.squashed)

    def _replay_path(self, folder: Path) -> Path:
        return folder / f"{self.context.behavior}-unrolls.bin"

    def _unrolls(self, batch: RolloutBuffer, rewards: Floats, fresh: int, replayed: Columns | None) -> Unrolls:
        """Convert a batch with rewards [N, S], whose first `fresh` rows are fresh, to the update's input.

        With several replicas, each takes a part of the trajectories. The columns [N - fresh] of the replayed rows are
        None if all rows are fresh.
        """
        rows, trajectories, h = batch.rows, batch.trajectories, self._hyperparameters
        pieces, here = slice(None), ReplicaSlice(slice(0, len(batch)), 1.0)
        if self.context.replicas.size > 1:
            part, ends = self.context.replicas.part(len(trajectories["lengths"])), np.cumsum(trajectories["lengths"])
            pieces, first = part.rows, int(ends[part.rows.start - 1]) if part.rows.start else 0
            here = ReplicaSlice(slice(first, int(ends[part.rows.stop - 1])), part.weight)
        span, lengths, places = here.rows, trajectories["lengths"][pieces], None

        def joined(of_rows: Array, finals: Array) -> Array:
            return np.concatenate([of_rows[span], finals[pieces]])

        observed, finally_observed = batch.observations(), batch.observations("next_")
        others = tuple(map(joined, observed.others, finally_observed.others))
        vectors = joined(observed.vectors, finally_observed.vectors)
        previous_actions = joined(*batch.previous_action_features()) if batch.sequences else None
        inputs = self._input_rows(EncodedObservations(vectors, others), previous_actions)
        if batch.sequences:
            n, k = span.stop - span.start, len(lengths)
            in_order = np.insert(np.arange(n), np.cumsum(lengths), n + np.arange(k))
            padded, mask = SequenceCuts.of(lengths + 1, int(lengths.max()) + 1).padded(np.arange(k))
            real = np.flatnonzero(mask)
            places = self._to_device(np.concatenate([real[in_order < n], real[in_order >= n]]))
            memories = self._to_device(batch.sequences["memories"][pieces])
            inputs = gathered_sequences(inputs, in_order[padded], memories)
        else:
            inputs = inputs._replace(others=tuple(to_device(other, self.context.device) for other in inputs.others))
        penalties = None
        if self._spec.actions.masked:
            means = np.zeros((len(batch), self._spec.actions.continuous_size), np.float32)
            of_choices = np.where(rows["action_masks"], np.float32(0), np.float32(MASK_PENALTY))
            penalties = np.concatenate([means, of_choices], axis=1)
        own_fresh = min(max(fresh - span.start, 0), span.stop - span.start)
        recorded_heads = recorded_values = None
        if replayed is not None:
            some = slice(span.start + own_fresh - fresh, span.stop - fresh)
            recorded_values = self._to_device(replayed[VALUES][some])
            if self._asked_columns:
                acted = replayed[ACTION_HEADS][some].copy()
                if penalties is not None:
                    choices = self._spec.actions.mask_size
                    acted[:, -choices:] += penalties[fresh:][some, -choices:]
                recorded_heads = self._to_device(acted)
        return Unrolls(
            inputs,
            places,
            self._to_device(rows["continuous_actions"][span]),
            self._to_device(rows["discrete_actions"][span].astype(np.int64)).unsqueeze(2).unbind(1),
            None if penalties is None else self._to_device(penalties[span]),
            rows["log_probs"][span].sum(axis=1),
            rewards[span] if h.reward_clipping == "none" else clipped_rewards(rewards[span], h.reward_clipping),
            lengths,
            trajectories["terminated"][pieces][:, None] & ~self._signals.ignore_termination,
            own_fresh,
            recorded_heads,
            recorded_values,
            len(batch),
            fresh,
            here,
        )

    def _to_device(self, array: Array) -> Tensor:
        return to_device(torch.from_numpy(array), self.context.device)


LOSSES = ("policy_gradient", "baseline", "entropy", "policy_cloning", "value_cloning", "total_loss")
"""The losses' statistics, in order. Only `total_loss`, the weighted sum of the other losses, includes loss weights."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The results of one update."""

    statistics: dict[str, float]
    """The update's statistics, keyed by name."""
    values: Floats
    """[N, S] the critic's values of this replica's rows before the step."""
    targets: Floats
    """[N, S] V-trace's value targets of this replica's rows."""


class ImpalaUpdate(NetworkUpdate):
    """One gradient step on all of an update's unrolls, in two passes, because V-trace needs results of the first.

    Args:
        network: the network to train.
        spec: the behaviour's spec, for its actions.
        hyperparameters: loss weights and limits.
        gammas: [S] each reward signal's discount.
        replicas: the replicas that make the same update, each on its part of the trajectories.
    """

    def __init__(
        self,
        network: Any,
        spec: BehaviorSpec,
        hyperparameters: ImpalaHyperparameters,
        gammas: Floats,
        replicas: Replicas = SINGLE_TRAINER,
    ) -> None:
        betas = (hyperparameters.adam_beta1, hyperparameters.adam_beta2)
        adam = Adam(network.values, network.gradients, hyperparameters.adam_epsilon, betas)
        super().__init__(network, adam, replicas)
        self.settings, self.spec, self.gammas = hyperparameters, spec, gammas
        self._limits = Limits(hyperparameters.rho_bar, hyperparameters.c_bar, hyperparameters.lambd)
        self._branches = list(spec.actions.discrete_branches)
        self._parts = GradientParts(network.gradients, network.parts, hyperparameters.shared_grad_norm)
        self._of_critic = 1.0 - network.acting

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return head outputs [N, H] with mask penalties added, values [N + K, S], log π [N] and the entropy."""
        heads, values = self.network(unrolls.inputs)
        n = len(unrolls.acted)
        if unrolls.places is None:
            heads = heads[:n]
        else:
            heads, values = heads.index_select(0, unrolls.places[:n]), values.index_select(0, unrolls.places)
        if unrolls.penalties is not None:
            heads = heads + unrolls.penalties
        of_actions = unrolls.continuous, unrolls.choices, self._branches, self.network.squashed
        return heads, values, *log_probs_and_entropy(heads, self.network.log_sigma, *of_actions)

    def backward(
        self,
        unrolls: Unrolls,
        advantages: Floats,
        targets: Floats,
        weights: Sequence[float],
        share: float,
        total: Tensor,
    ) -> None:
        """Set the gradients of `share` times the weighted losses, for the rows last passed to `forward`.

        Autograd needs only the last two arguments; the others are for updates that compute the gradients manually.

        Args:
            unrolls: the same unrolls as in `forward`.
            advantages: [N] the weights of log π.
            targets: [N, S] the value targets.
            weights: the weight of each loss except the total, divided by the loss's number of rows.
            share: a factor on the gradients.
            total: the sum of the weighted losses.
        """
        self.network.gradients.zero_()
        torch.autograd.backward(total if share == 1.0 else total * share)

    def learn(self, unrolls: Unrolls, coefficients: Coefficients, step: int) -> UpdateResult:
        """Take a gradient step on all losses.

        Args:
            unrolls: the rows.
            coefficients: the current learning rate and entropy weight.
            step: agent steps so far, for the error message.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite. The caller restores weights and optimizer.
        """
        h, n, rows = self.settings, len(unrolls.acted), unrolls.all_rows
        heads, both, log_probs, entropy = self.forward(unrolls)
        values, of_critic = both[:n], on_host(both)
        log_ratios = np.subtract(on_host(log_probs), unrolls.acted)
        of_trajectories = of_critic[n:], unrolls.lengths, unrolls.valueless, self.gammas, self._limits
        targets, advantages = vtrace(log_ratios, unrolls.rewards, of_critic[:n], *of_trajectories)
        weights = advantages.sum(axis=1)
        if h.clip_advantage is True:
            weights = np.maximum(weights, 0)
        elif h.clip_advantage:
            weights = np.clip(weights, -h.clip_advantage, h.clip_advantage)
        policy_gradient = -(log_probs @ torch.from_numpy(weights).to(values))
        baseline = 0.5 * (values - torch.from_numpy(targets).to(values)).square().sum()
        policy_cloning = value_cloning = values.new_zeros(())
        if unrolls.recorded_values is not None:
            value_cloning = (values[unrolls.fresh :] - unrolls.recorded_values).square().sum()
        if unrolls.recorded_heads is not None:
            of_actions = self.spec.actions.continuous_size, self._branches
            acted = described(unrolls.recorded_heads, None, *of_actions)
            ours = described(heads[unrolls.fresh :], self.network.log_sigma, *of_actions)
            policy_cloning = divergence(acted, ours, of_actions[0]).sum()
        losses = torch.stack([policy_gradient, baseline, -n * entropy, policy_cloning, value_cloning])
        costs = [1.0, h.baseline_cost, coefficients.beta, h.policy_cloning_cost, h.value_cloning_cost]
        counts = np.ones(len(costs))
        if h.loss_reduction == "mean":
            replayed = max(1, rows - unrolls.all_fresh)
            counts = np.array([rows, rows, rows, replayed, replayed])
            losses = losses / torch.from_numpy(counts).to(losses)
        share, factors = unrolls.here.weight, torch.tensor(costs, device=losses.device)
        total = losses @ factors
        self.backward(unrolls, weights, targets, (costs / counts).tolist(), share, total)
        *results, norm = self._step(losses.detach() * share, factors, LOSSES, coefficients.learning_rate, step)
        statistics = dict[str, float]()
        for name, loss in zip(LOSSES, results, strict=True):
            if h.batch_size_from_replay or not name.endswith("_cloning"):
                statistics[f"loss/{name}"] = loss
        statistics |= {"grad_norm": norm, "learning_rate": coefficients.learning_rate}
        statistics |= {"entropy_cost": coefficients.beta, "Policy/Entropy": -results[2] * counts[2] / rows}
        part = n * share / rows
        statistics |= ratio_statistics(log_ratios, self._limits, part, self.replicas, values.device)
        return UpdateResult(statistics, of_critic[:n], targets)

    def pretrain_critic(self, unrolls: Unrolls, learning_rate: float, step: int) -> UpdateResult:
        """Take a gradient step on the value loss only, with discounted returns; the acting part does not change.

        Args:
            unrolls: the rows.
            learning_rate: Adam's current learning rate.
            step: agent steps so far, for the error message.

        Raises:
            NotFiniteError: see `learn`.
        """
        n, device = len(unrolls.acted), self.network.values.device
        _, both = self.network(unrolls.inputs)
        if unrolls.places is not None:
            both = both.index_select(0, unrolls.places)
        values, of_critic = both[:n], on_host(both)
        of_trajectories = of_critic[n:], unrolls.lengths, unrolls.valueless, self.gammas, Limits()
        # The critic learns the values of the acting policy, so all ratios are 1, and λ is 1.
        targets, _ = vtrace(np.zeros(n), unrolls.rewards, of_critic[:n], *of_trajectories)
        baseline = 0.5 * (values - torch.from_numpy(targets).to(values)).square().sum()
        if self.settings.loss_reduction == "mean":
            baseline = baseline / unrolls.all_rows
        self.network.gradients.zero_()
        torch.autograd.backward(baseline * unrolls.here.weight)
        self.network.gradients.mul_(self._of_critic)
        losses, names = baseline.detach()[None] * unrolls.here.weight, ("baseline", "total_loss")
        loss, _, norm = self._step(losses, torch.ones(1, device=device), names, learning_rate, step)
        statistics = {"critic_pretrain/baseline_loss": loss, "critic_pretrain/grad_norm": norm}
        statistics["critic_pretrain/learning_rate"] = learning_rate
        return UpdateResult(statistics, of_critic[:n], targets)

    def _step(
        self, losses: Tensor, costs: Tensor, names: Sequence[str], learning_rate: float, step: int
    ) -> list[float]:
        """Take the gradient step; return the losses [k], their weighted sum, and the gradient's norm.

        Raises:
            NotFiniteError: see `learn`.
        """
        network, limit = self.network, self.settings.max_grad_norm
        if self.replicas.size > 1:
            self.replicas.add_up(network.gradients, losses)
        norms = self._parts.clip(float("inf") if limit is None else limit)
        self.adam.step(learning_rate)
        results: list[float] = torch.cat([losses, (losses @ costs)[None], norms.square().sum().sqrt()[None]]).tolist()
        if not (np.isfinite(results).all() and bool(torch.isfinite(network.values).all())):
            words = not_finite([*names, "grad_norm"], np.array([results], np.float32), "learning_rate, max_grad_norm,")
            raise NotFiniteError(f"{self.spec.name}: update at step {step}: {words}")
        return results


# V-trace over packed trajectories, and the losses, as pure functions.


@dataclass(frozen=True, slots=True)
class Limits:
    """The constants of V-trace."""

    rho_bar: float = 1.0
    """ρ̄, the bound on ρ: a larger bound moves the targets' fixed point towards the learning policy's value."""
    c_bar: float = 1.0
    """c̄, the bound on c: a smaller bound reduces variance, because off-policy rows pass back less of later rewards."""
    lambd: float = 1.0
    """λ, a factor on each c."""


def vtrace(
    log_ratios: Floats,
    rewards: Floats,
    values_t: Floats,
    final_values: Floats,
    lengths: NDArray[np.integer],
    valueless: NDArray[np.bool_],
    gammas: Floats,
    limits: Limits,
) -> tuple[Floats, Floats]:
    """Compute targets and advantages for trajectories generated by other policies.

    With ρ_t = min(ρ̄, π/μ) and c_t = λ min(c̄, π/μ):

        v_t = V_t + ρ_t (r_t + γ V_{t+1} - V_t) + γ c_t (v_{t+1} - V_{t+1}),

    where V after the last row is 0 if the episode terminated there; otherwise it is the critic's value of the next
    observation.

    Args:
        log_ratios: [N] log(π/μ) of the joint action, where π is the learning policy and μ the acting policy.
        rewards: [N, S] rewards received after the row's action, scaled and clipped.
        values_t: [N, S] the critic's value V of the row's observation.
        final_values: [K, S] the critic's value of the observation after the last row; ignored where `valueless`.
        lengths: [K] the number of rows of each trajectory, at least 1.
        valueless: [K, S] true if no reward can follow the last row.
        gammas: [S] each signal's discount γ.
        limits: ρ̄, c̄ and λ.

    Returns:
        The critic's targets v_t [N, S], and the advantages ρ_t (r_t + γ v_{t+1} - V_t) [N, S], the weights of ∇ log π.
    """
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))[:, None]
    c = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))[:, None]
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    targets = values_t + accumulated(rho * (rewards + gammas * values_tp1 - values_t), gammas * c, lengths)
    targets_tp1 = next_values(targets, final_values, lengths, valueless)
    return targets, rho * (rewards + gammas * targets_tp1 - values_t)


def clipped_rewards(rewards: Floats, how: str) -> Floats:
    """Clip rewards of any shape as DeepMind's IMPALA learner does.

    Args:
        rewards: scaled rewards.
        how: `abs_one` clips to [-1, 1]; `soft_asymmetric` computes 5·tanh(r/5), times 0.3 where
            r < 0.
    """
    if how == "abs_one":
        return np.clip(rewards, -1.0, 1.0)
    squeezed: Floats = 5.0 * np.tanh(rewards / 5.0)
    return np.where(rewards < 0, 0.3 * squeezed, squeezed)


def log_probs_and_entropy(
    heads: Tensor,
    log_sigma: Tensor | None,
    continuous: Tensor,
    choices: Sequence[Tensor],
    branches: Sequence[int],
    squashed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return joint actions' log-probabilities [R], and the joint distribution's entropy averaged over rows, a scalar.

    Args:
        heads: [R, H] means, followed by each branch's logits with mask penalties added.
        log_sigma: [C] the Gaussian's log σ; None if log σ follows the means in `heads`.
        continuous: [R, C] raw actions.
        choices: for each branch, the choices [R, 1].
        branches: the number of choices in each branch.
        squashed: whether continuous actions are the tanh of the Gaussian.
    """
    parts, entropies, logits = [], [], heads
    if size := continuous.shape[1]:
        log_probs, entropy, logits = gaussian_scores(heads, log_sigma, continuous, squashed)
        parts.append(log_probs.sum(dim=1))
        entropies.append(entropy * size)
    for branch, chosen in zip(torch.split(logits, list(branches), dim=1), choices, strict=True):
        log_probs, entropy = categorical_log_probs(branch, chosen)
        parts.append(log_probs.squeeze(1))
        entropies.append(entropy)
    return reduce(torch.add, parts), reduce(torch.add, entropies)


# How far the learning policy is from the acting policies, measured by the probability ratios in an update.


def ratio_statistics(
    log_ratios: Floats,
    limits: Limits,
    share: float = 1.0,
    replicas: Replicas = SINGLE_TRAINER,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Return statistics of the ratios π/μ, keyed by name, from their logarithms [N].

    Args:
        log_ratios: log(π/μ) of this replica's rows.
        limits: ρ̄, c̄ and λ.
        share: the weight of means over this replica's rows, relative to all rows.
        replicas: the replicas that have the other rows.
        device: the device used to exchange numbers between replicas.
    """
    with np.errstate(over="ignore"):  # statistics drop infinite ratios, with a warning
        beyond = np.expm1(log_ratios)
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))
    trace = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))
    clipped = log_ratios > log(limits.rho_bar)
    # The last one is Schulman's estimator k3 of KL(μ, π).
    means = np.array([rho.mean(), clipped.mean(), trace.mean(), (beyond - log_ratios).mean()])
    least, greatest = 1.0 + beyond.min(), 1.0 + beyond.max()
    if replicas.size > 1:
        of_replicas = on_host(replicas.of_each(torch.tensor([*(share * means), least, greatest], device=device)))
        means, least, greatest = of_replicas[:, :4].sum(axis=0), of_replicas[:, 4].min(), of_replicas[:, 5].max()
    names = "Importance Ratio", "Clipped Ratios", "Trace Coefficient", "Approximate KL", "Ratio Min", "Ratio Max"
    statistics = dict[str, float]()
    for name, value in zip(names, (*means, least, greatest), strict=True):
        statistics[f"Policy/{name}"] = float(value)
    return statistics


# Unrolls are concatenated rows, with fresh ones first. Trajectories are consecutive, and none is longer than an unroll.
# Without memory, the network evaluates the rows, followed by the final observations, in one pass. With memory, each
# trajectory is a sequence, from the actor's memory at its start to the observation after its last row, and is padded to
# the longest one.


# Unrolls are cut from pieces of any length, so flow control may close a trajectory at any row (docs/decisions/038).
@dataclass(frozen=True, slots=True)
class Unrolls:
    """The rows of one update, fresh and replayed."""

    inputs: Inputs
    """The network's inputs: rows and final observations."""
    places: Tensor | None
    """[N + K] indices, in the network's outputs, of rows and then final observations; None if that is their order."""
    continuous: Tensor
    """[N, C] raw continuous actions."""
    choices: tuple[Tensor, ...]
    """For each branch, the choices [N, 1] int64."""
    penalties: Tensor | None
    """[N, H] penalties added to head outputs: `MASK_PENALTY` for forbidden choices, else 0; None without masks."""
    acted: NDArray[np.float32]
    """[N] the joint actions' log-probabilities under the policies that acted."""
    rewards: NDArray[np.float64]
    """[N, S] rewards, scaled and clipped."""
    lengths: NDArray[np.int64]
    """[K] the number of rows of each trajectory."""
    valueless: NDArray[np.bool_]
    """[K, S] true if no reward can follow the trajectory's last row."""
    fresh: int
    """The number of fresh rows, F."""
    recorded_heads: Tensor | None
    """[N - F, …] the head outputs of the policies that acted in replayed rows, including mask penalties; None without
    replayed rows or policy cloning."""
    recorded_values: Tensor | None
    """[N - F, S] the critic's values when the replayed rows were first learned from; None if all rows are fresh."""
    all_rows: int
    """The total number of rows over all replicas."""
    all_fresh: int
    """The total number of fresh rows over all replicas."""
    here: ReplicaSlice
    """The position of this replica's rows among the rows of all replicas."""


# The replay buffer holds past unrolls, some of which are drawn in addition to fresh ones. An unroll is T rows of
# consecutive trajectories; no trajectory crosses an unroll's boundaries.


class UnrollReplay:
    """Keeps at most `capacity` unrolls, and draws from them uniformly.

    Args:
        rows: the row columns.
        trajectories: the trajectory columns, including `lengths`.
        unroll_length: T, the number of rows per unroll.
        capacity: the maximum number of unrolls to keep.
        sampling: `fifo` keeps the newest unrolls; `reservoir` keeps a uniform sample of all unrolls ever added (Vitter
            1985, "Random Sampling with a Reservoir", algorithm R).
    """

    def __init__(
        self, rows: Sequence[Column], trajectories: Sequence[Column], unroll_length: int, capacity: int, sampling: str
    ) -> None:
        self._rows, self._trajectories = rows, trajectories
        self._length, self._capacity, self._sampling = unroll_length, capacity, sampling
        self.clear()

    def clear(self) -> None:
        """Remove all unrolls."""
        self._added = 0
        self._unrolls: dict[int, Columns] = {}
        """The row columns [T] and trajectory columns [k] of each unroll, keyed by its position from 0."""
        self._filled: list[LazyColumn] | None = None
        """The columns that a file fills, between `restore` and `restored`."""

    def __len__(self) -> int:
        """Return the number of unrolls kept."""
        return len(self._unrolls)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the buffer's shape."""
        return {"replay_capacity": self._capacity, "unroll_length": self._length}

    def add(self, rows: Columns, trajectories: Columns, random: np.random.Generator) -> None:
        """Copy n unrolls into the buffer.

        Args:
            rows: the row columns [n * T].
            trajectories: the trajectory columns, including `lengths`.
            random: the generator that, for a reservoir, decides which unrolls are kept.
        """
        ends = np.cumsum(trajectories["lengths"], dtype=np.int64)
        n = int(ends[-1]) // self._length
        numbers = self._added + np.arange(n)
        self._added += n
        if self._sampling == "fifo":
            places = numbers % self._capacity
        else:
            places = np.where(numbers < self._capacity, numbers, random.integers(0, numbers + 1))
        firsts = np.searchsorted(ends, np.arange(n + 1) * self._length, side="right").tolist()
        for number, place in enumerate(places.tolist()):  # of two unrolls with the same position, the later one stays
            if place >= self._capacity:
                continue
            span = slice(number * self._length, (number + 1) * self._length)
            pieces = slice(*firsts[number : number + 2])
            unroll = {column.name: rows[column.name][span].copy() for column in self._rows}
            unroll |= {column.name: trajectories[column.name][pieces].copy() for column in self._trajectories}
            self._unrolls[place] = unroll

    def draw(self, count: int, random: np.random.Generator) -> tuple[Columns, Columns]:
        """Return row and trajectory columns of `count` different unrolls; the buffer must hold that many."""
        drawn = [self._unrolls[at] for at in random.choice(len(self), count, replace=False).tolist()]
        rows, trajectories = (
            {column.name: np.concatenate([unroll[column.name] for unroll in drawn]) for column in columns}
            for columns in (self._rows, self._trajectories)
        )
        return rows, trajectories

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns; see `headrace.stages.trainer.replay.replay_memory`."""
        pieces = [len(self._unrolls[at]["lengths"]) for at in range(len(self))]
        return {**self.sizes, "added": self._added, "pieces": pieces}

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with its number of rows: the unrolls' joined rows, or those that a file fills."""
        if self._filled is not None:
            return [(column, len(column.rows)) for column in self._filled]
        joined = list[tuple[LazyColumn, int]]()
        for column in (*self._rows, *self._trajectories):
            saved = LazyColumn(column, self._capacity * self._length)
            if self._unrolls:
                arrays = [self._unrolls[at][column.name] for at in range(len(self))]
                saved.rows = np.concatenate(arrays, dtype=column.dtype)  # Windows' integers may be narrower
            joined.append((saved, len(saved.rows)))
        return joined

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        self.clear()
        self._added, self._pieces = int(facts["added"]), [int(count) for count in facts["pieces"]]
        self._filled = []
        for columns, rows in ((self._rows, len(self._pieces) * self._length), (self._trajectories, sum(self._pieces))):
            for column in columns:
                self._filled.append(LazyColumn(column, rows))
                self._filled[-1].reserve(rows)
                self._filled[-1].rows = self._filled[-1].rows[:rows]

    def restored(self) -> None:
        """Split the filled columns into unrolls."""
        filled, self._filled = self._filled or [], None
        ends = np.cumsum(self._pieces).tolist()
        for at, (pieces, end) in enumerate(zip(self._pieces, ends, strict=True)):
            of_rows, of_pieces = slice(at * self._length, (at + 1) * self._length), slice(end - pieces, end)
            self._unrolls[at] = {
                column.name: column.rows[of_rows if i < len(self._rows) else of_pieces]
                for i, column in enumerate(filled)
            }
