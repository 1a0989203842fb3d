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

from headrace.config import ImpalaHyperparameters, MemorySettings
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
    split_gaussians,
    to_device,
)
from headrace.stages.trainer.adam import Adam, GradientParts, NetworkUpdate
from headrace.stages.trainer.on_policy.rollout import InputRows, RolloutBuffer, accumulated, next_values
from headrace.stages.trainer.on_policy.trainer import Coefficients, OnPolicyTrainer, Outcome
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, ReplicaSlice, TrainerContext
from headrace.stages.trainer.replay.replay_memory import Index, LazyColumn, ReusedSlots
from headrace.stages.trainer.replay.replay_store import ReplayFileError, read_replay, write_replay
from headrace.stages.trainer.trajectories import Chains

Floats = NDArray[np.float64]
VALUES = "recorded_values"
"""Name of the row column with the critic's values when the row was first learned from."""


class ImpalaTrainer(OnPolicyTrainer[ImpalaHyperparameters, "ImpalaUpdate"]):
    """Learns one behaviour from unrolls with V-trace. A group's reward is added to each member's own reward.

    Raises:
        StageError: if the behaviour can't be trained: it has no actions, an observation has no suitable encoder, or the
            demonstrations are unusable.
    """

    hyperparameters = ImpalaHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._replay: UnrollReplay | None = None
        if self._hyperparameters.batch_size_from_replay:
            self._joined = self._make_joined()
            self._replay = self._make_replay()

    def _learn(self, chains: Chains | None) -> Outcome:
        h, buffer, replay, transitions = self._hyperparameters, self._buffer, self._replay, None
        batch, fresh = buffer, len(buffer)
        if replay is not None and len(replay) >= h.batch_size_from_replay:
            batch = self._with_replayed(replay)
        if self._signals.others:
            transitions = self._signals.transitions(batch)
        rewards = self._signals.rewards(batch.rows["rewards"], transitions)
        unrolls, coefficients = self._unrolls(batch, rewards, fresh), self._coefficients()
        if self.step - fresh < h.critic_pretrain_steps:
            learned = self._update.pretrain_critic(unrolls, coefficients.learning_rate, self.step)
        else:
            learned = self._update.learn(unrolls, coefficients, self.step)
            if self._cloning is not None:
                self._clone()
        if transitions is not None:
            self._signals.learner(transitions)(torch.arange(unrolls.all_rows))
        values, statistics = learned.values, learned.statistics
        statistics |= self._signals.value_statistics({"Value Estimate": values}, values, learned.targets)
        if replay is not None:
            before = {} if buffer.sequences is None else buffer.sequences.columns()
            rows = {**buffer.rows.columns(), VALUES: values[:fresh].astype(np.float32)}
            replay.add(rows, {**buffer.trajectories.columns(), **before}, self._random)
            statistics["Policy/Replayed Share"] = 1.0 - unrolls.all_fresh / unrolls.all_rows
        return Outcome(rewards[:fresh], statistics)

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
        h = self._hyperparameters
        return RolloutBuffer(
            self._spec,
            self._intake.layout,
            h.rows_per_update,
            self._sequences(),
            follows_agents=self._signals.follows_agents,
            extra=self._asked_columns,
            unroll_length=h.unroll_length,
            squashed=self.squashed,
        )

    def _make_joined(self) -> RolloutBuffer:
        recorded = Column(VALUES, "float32", (len(self._signals.names),))
        rows, extra = self._hyperparameters.batch_rows, [*self._asked_columns, recorded]
        sizes = self._spec, self._intake.layout, rows, self._sequences()
        return RolloutBuffer(*sizes, extra=extra, squashed=self.squashed)

    def _sequences(self) -> MemorySettings | None:
        """Return the memory's settings, with one sequence per unroll; None without memory."""
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

    def _with_replayed(self, replay: UnrollReplay) -> RolloutBuffer:
        """Return the fresh rows, followed by replayed rows."""
        fresh, joined = self._buffer, self._joined
        joined.clear()
        rows, trajectories = replay.draw(self._hyperparameters.batch_size_from_replay, self._random)
        missing = np.zeros((len(fresh), len(self._signals.names)), np.float32)
        before = {} if fresh.sequences is None else fresh.sequences.columns()
        joined.extend({**fresh.rows.columns(), VALUES: missing}, fresh.trajectories.columns(), before)
        joined.extend(rows, trajectories, trajectories)
        return joined

    def _unrolls(self, batch: RolloutBuffer, rewards: Floats, fresh: int) -> Unrolls:
        """Convert a batch with rewards [N, S], whose first `fresh` rows are fresh, to the update's input.

        With several replicas, each takes a part of the trajectories.
        """
        rows, trajectories, device, h = batch.rows, batch.trajectories, self.context.device, self._hyperparameters
        before, last = batch.previous_action_features() if batch.sequences is not None else (None, None)
        inputs = self._input_rows(batch.observations(), before)
        finals = self._input_rows(batch.final_observations(), last)
        pieces, here = slice(None), ReplicaSlice(slice(0, len(batch)), 1.0)
        if self.context.replicas.size > 1:
            pieces, here = pieces_of(trajectories["lengths"], self.context.replicas)
            inputs, finals = inputs.part(here.rows), finals.part(pieces)
        own, lengths, places = here.rows, trajectories["lengths"][pieces], None
        if batch.sequences is None:
            together = joined_inputs(inputs, finals)
        else:
            memories = to_device(torch.from_numpy(batch.sequences["memories"][pieces]), device)
            together, places = sequence_inputs(inputs, finals, lengths, memories)
        continuous, choices = batch.actions()
        penalties = self._penalties(rows["action_masks"]) if self._spec.actions.masked else None
        chosen = to_device(torch.from_numpy(choices[own].astype(np.int64)), device)
        own_fresh = min(max(fresh - own.start, 0), own.stop - own.start)
        replayed = slice(own.start + own_fresh, own.stop)
        return Unrolls(
            together,
            places,
            to_device(torch.from_numpy(continuous[own]), device),
            torch.split(chosen, 1, dim=1) if choices.shape[1] else (),
            None if penalties is None else to_device(torch.from_numpy(penalties[own]), device),
            rows["log_probs"][own].sum(axis=1),
            rewards[own] if h.reward_clipping == "none" else clipped_rewards(rewards[own], h.reward_clipping),
            lengths,
            trajectories["terminated"][pieces][:, None] & ~self._signals.ignore_termination,
            own_fresh,
            self._recorded(batch, penalties, replayed) if len(batch) > fresh else None,
            len(batch),
            fresh,
            here,
        )

    def _penalties(self, masks: Array) -> NDArray[np.float32]:
        """Return penalties [N, H] to add to head outputs: `MASK_PENALTY` where masks [N, choices] forbid a choice."""
        means = np.zeros((len(masks), self._spec.actions.continuous_size), np.float32)
        return np.concatenate([means, np.where(masks, np.float32(0), np.float32(MASK_PENALTY))], axis=1)

    def _recorded(self, batch: RolloutBuffer, penalties: NDArray[np.float32] | None, replayed: slice) -> RecordedRows:
        device, heads = self.context.device, None
        if self._asked_columns:
            acted = batch.rows[ACTION_HEADS][replayed].copy()
            if penalties is not None:
                acted[:, -self._spec.actions.mask_size :] += penalties[replayed, -self._spec.actions.mask_size :]
            heads = to_device(torch.from_numpy(acted), device)
        return RecordedRows(heads, to_device(torch.from_numpy(batch.rows[VALUES][replayed]), device))


LOSSES = ("policy_gradient", "baseline", "entropy", "policy_cloning", "value_cloning", "total_loss")
"""The losses' statistics, in order. Only `total_loss`, the weighted sum of the other losses, includes loss weights."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The results of one update."""

    statistics: dict[str, float]
    """The update's statistics, keyed by name."""
    values: Floats
    """[N, S] the critic's values before the step."""
    targets: Floats
    """[N, S] V-trace's value targets."""


class ImpalaUpdate(NetworkUpdate):
    """One gradient step on all of an update's unrolls, in two passes, because V-trace needs results of the first.

    Args:
        network: the network to train.
        spec: the behaviour's spec, for its actions.
        hyperparameters: loss weights and limits.
        gammas: [S] each reward signal's discount.
        replicas: the replicas that make the same update, each on its part of the trajectories.
    """

    network: Any

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

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the actor's head outputs [B, H]."""
        heads: Tensor = self.network.heads(inputs)
        return heads

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
        values, of_critic = both[:n], both.detach().cpu().double().numpy()
        log_ratios = np.subtract(log_probs.detach().cpu().double().numpy(), unrolls.acted)
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
        if unrolls.recorded is not None:
            of_replayed, recorded = heads[unrolls.fresh :], unrolls.recorded
            value_cloning = (values[unrolls.fresh :] - recorded.values).square().sum()
            if recorded.heads is not None:
                kl = divergence(of_replayed, self.network.log_sigma, recorded.heads, self._branches)
                policy_cloning = kl.sum()
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
        *found, norm = self._step(losses.detach() * share, factors, LOSSES, coefficients.learning_rate, step)
        statistics = dict[str, float]()
        for name, loss in zip(LOSSES, found, strict=True):
            if h.batch_size_from_replay or not name.endswith("_cloning"):
                statistics[f"loss/{name}"] = loss
        statistics |= {"grad_norm": norm, "learning_rate": coefficients.learning_rate}
        statistics |= {"entropy_cost": coefficients.beta, "Policy/Entropy": -found[2] * counts[2] / rows}
        part = n * share / rows
        statistics |= ratio_statistics(log_ratios, self._limits, part, self.replicas, values.device)
        return self._learned(statistics, unrolls, of_critic[:n], targets)

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
        values, of_critic = both[:n], both.detach().cpu().double().numpy()
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
        return self._learned(statistics, unrolls, of_critic[:n], targets)

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
            raise NotFiniteError(self._complaint([*names, "grad_norm"], results, step))
        return results

    def _learned(self, statistics: dict[str, float], unrolls: Unrolls, values: Floats, targets: Floats) -> UpdateResult:
        """Return the results for all replicas' rows, given the values and targets of this replica's rows."""
        if self.replicas.size > 1:
            ours = torch.from_numpy(np.concatenate([values, targets], axis=1)).to(self.network.values.device)
            of_all = self.replicas.gathered(ours, unrolls.here, unrolls.all_rows).cpu().double().numpy()
            values, targets = np.split(of_all, 2, axis=1)
        return UpdateResult(statistics, values, targets)

    def _complaint(self, names: list[str], results: list[float], step: int) -> str:
        where = f"{self.spec.name}: update at step {step}"
        bad = next(((name, value) for name, value in zip(names, results, strict=True) if not np.isfinite(value)), None)
        if bad is None:
            return (
                f"{where}: the gradient step made some weights NaN or infinite; the weights from before the update are "
                "kept"
            )
        return (
            f"{where}: {bad[0]} is {bad[1]}; the weights from before the update are kept. A lower learning_rate, "
            "max_grad_norm, or smaller rewards (strength, reward_clipping) often help"
        )


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


def divergence(heads: Tensor, log_sigma: Tensor | None, acted: Tensor, branches: Sequence[int]) -> Tensor:
    """Return the divergence KL(μ ‖ π) [R] between acting policy μ and learning policy π, summed over all heads.

    Args:
        heads: [R, H] head outputs of π, with mask penalties added.
        log_sigma: [C] log σ of π; None if log σ follows the means in `heads`.
        acted: [R, H + C] description of μ: means, log σ and logits, with the same penalties added.
        branches: the number of choices in each branch.
    """
    parts, logits = [], heads
    size = (acted.shape[1] - sum(branches)) // 2
    if size:
        mu, log_sigma, logits = split_gaussians(heads, log_sigma, size)
        mean, spread, acted = torch.split(acted, [size, size, acted.shape[1] - 2 * size], dim=1)
        scaled = (torch.exp(2.0 * spread) + (mean - mu).square()) * torch.exp(-2.0 * log_sigma)
        parts.append((log_sigma - spread + 0.5 * scaled - 0.5).sum(dim=1))
    sizes = list(branches)
    for ours, theirs in zip(torch.split(logits, sizes, dim=1), torch.split(acted, sizes, dim=1), strict=True):
        log_mu = torch.log_softmax(theirs, dim=1)
        parts.append((log_mu.exp() * (log_mu - torch.log_softmax(ours, dim=1))).sum(dim=1))
    return reduce(torch.add, parts)


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
        each = replicas.of_each(torch.tensor([*(share * means), least, greatest], device=device)).cpu().double().numpy()
        means, least, greatest = each[:, :4].sum(axis=0), each[:, 4].min(), each[:, 5].max()
    names = "Importance Ratio", "Clipped Ratios", "Trace Coefficient", "Approximate KL", "Ratio Min", "Ratio Max"
    statistics = dict[str, float]()
    for name, value in zip(names, (*means, least, greatest), strict=True):
        statistics[f"Policy/{name}"] = float(value)
    return statistics


# Unrolls are concatenated rows, with fresh ones first. Trajectories are consecutive, and none is longer than an unroll.
# Without memory, the network evaluates the rows, followed by the final observations, in one pass. With memory, each
# trajectory is a sequence, from the actor's memory at its start to the observation after its last row, and is padded to
# the longest one.


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """Data about the N - F replayed rows, recorded when the rows were created or first learned from."""

    heads: Tensor | None
    """[N - F, …] the acting policies' head outputs, including mask penalties; None without policy cloning."""
    values: Tensor
    """[N - F, S] the critic's values when the rows were first learned from."""


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
    recorded: RecordedRows | None
    """Data about the replayed rows; None if all rows are fresh."""
    all_rows: int
    """The total number of rows over all replicas."""
    all_fresh: int
    """The total number of fresh rows over all replicas."""
    here: ReplicaSlice
    """The position of this replica's rows among the rows of all replicas."""


def pieces_of(lengths: NDArray[np.int64], replicas: Replicas) -> tuple[slice, ReplicaSlice]:
    """Return a replica's part of K trajectories: their slice, and the position of their rows."""
    part, ends = replicas.part(len(lengths)), np.cumsum(lengths)
    first = int(ends[part.rows.start - 1]) if part.rows.start else 0
    return part.rows, ReplicaSlice(slice(first, int(ends[part.rows.stop - 1])), part.weight)


def joined_inputs(rows: InputRows, finals: InputRows) -> Inputs:
    """Return network inputs without memory: N rows, followed by K final observations."""
    device, others = rows.vectors.device, list[Tensor]()
    for pair in zip(rows.others, finals.others, strict=True):
        others.append(to_device(torch.cat(pair), device))
    return Inputs(torch.cat([rows.vectors, finals.vectors]), tuple(others))


def sequence_inputs(
    rows: InputRows, finals: InputRows, lengths: NDArray[np.int64], memories: Tensor
) -> tuple[Inputs, Tensor]:
    """Return network inputs for K sequences, each followed by its final observation, and the positions of the outputs.

    Args:
        rows: N rows, with previous actions.
        finals: K final observations, with previous actions.
        lengths: [K] the number of rows of each sequence.
        memories: [K, m] the memory before each sequence's first row.

    Returns:
        The inputs, and the indices [N + K] of the rows and final observations in the network's outputs.
    """
    assert rows.previous_actions is not None, "a policy with memory takes in its last action"
    assert finals.previous_actions is not None, "as it does after the last row"
    table = InputRows(
        torch.cat([rows.vectors, finals.vectors]),
        tuple(torch.cat(pair) for pair in zip(rows.others, finals.others, strict=True)),
        torch.cat([rows.previous_actions, finals.previous_actions]),
    )
    starts, width = np.cumsum(lengths) - lengths, int(lengths.max()) + 1
    steps, final = np.arange(width), len(rows) + np.arange(len(lengths))
    within = steps < lengths[:, None]
    index = np.where(within, starts[:, None] + steps, final[:, None])
    flat = np.arange(index.size).reshape(index.shape)
    places = np.concatenate([flat[within], flat[np.arange(len(lengths)), lengths]])
    return table.sequences(index, memories), to_device(torch.from_numpy(places), rows.device)


# The replay buffer holds past unrolls, some of which are drawn in addition to fresh ones. An unroll is T rows of
# consecutive trajectories; no trajectory crosses an unroll's boundaries. A trajectory's data other than rows is in a
# slot that the trajectory's last row refers to.


_ENDED = "piece"
"""Row column with the slot of the trajectory that ends with the row; -1 if no trajectory ends there."""


class UnrollReplay:
    """Keeps at most `capacity` unrolls, and draws from them uniformly.

    Args:
        rows: the row columns.
        trajectories: the trajectory columns, without lengths.
        unroll_length: T, the number of rows per unroll.
        capacity: the maximum number of unrolls to keep.
        sampling: `fifo` keeps the newest unrolls; `reservoir` keeps a uniform sample of all unrolls ever added (Vitter
            1985, "Random Sampling with a Reservoir", algorithm R).
    """

    def __init__(
        self,
        rows: Sequence[Column],
        trajectories: Sequence[Column],
        unroll_length: int,
        capacity: int,
        sampling: str,
    ) -> None:
        self._length = unroll_length
        self._capacity = capacity
        self._sampling = sampling
        most = capacity * unroll_length
        self._rows = {column.name: LazyColumn(column, most) for column in rows}
        self._ended = LazyColumn(Column(_ENDED, "int64"), most)
        self._pieces = {column.name: LazyColumn(column, most) for column in trajectories}
        self._slots = ReusedSlots(most)
        self.clear()

    def clear(self) -> None:
        """Remove all unrolls."""
        self._added = 0
        self._count = 0
        self._slots.clear()

    def __len__(self) -> int:
        """Return the number of unrolls kept."""
        return self._count

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
        lengths = trajectories["lengths"].astype(np.int64)
        n = int(lengths.sum()) // self._length
        kept, places = self._places(n, random)
        if not len(kept):
            return
        replaced = places[places < self._count]
        if len(replaced):
            former = self._ended.take(self._rows_of(replaced))
            self._slots.release(former[former >= 0])
        self._count = max(self._count, int(places.max()) + 1)
        chosen = np.zeros(n, np.bool_)
        chosen[kept] = True
        last = np.cumsum(lengths) - 1
        pieces = np.flatnonzero(chosen[last // self._length])
        slots = self._slots.allocate(len(pieces))
        ended = np.full(n * self._length, -1, np.int64)
        ended[last[pieces]] = slots
        source, target = self._rows_of(kept), self._rows_of(places)
        self._ended.put(target, ended[source])
        for name, column in self._rows.items():
            column.put(target, rows[name][source])
        for name, column in self._pieces.items():
            column.put(slots, trajectories[name][pieces])

    def draw(self, count: int, random: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return row and trajectory columns of `count` different unrolls; the buffer must hold that many."""
        at = self._rows_of(random.choice(self._count, count, replace=False))
        ended = self._ended.take(at)
        last = np.flatnonzero(ended >= 0)
        rows = {name: column.take(at) for name, column in self._rows.items()}
        trajectories = {name: column.take(ended[last]) for name, column in self._pieces.items()}
        return rows, {**trajectories, "lengths": np.diff(last, prepend=-1)}

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns; see `headrace.stages.trainer.replay.replay_store`."""
        return {**self.sizes, "added": self._added, "count": self._count, "touched": self._slots.touched}

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""
        rows = self._count * self._length
        return [
            (self._ended, rows),
            *((column, rows) for column in self._rows.values()),
            *((column, self._slots.touched) for column in self._pieces.values()),
        ]

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        self.clear()
        self._added, self._count, self._slots.touched = (int(facts[name]) for name in ("added", "count", "touched"))

    def restored(self) -> None:
        """Find the slots in use. Call this once all columns are filled."""
        ended = self._ended.take(np.arange(self._count * self._length)) if self._count else np.empty(0, np.int64)
        self._slots.restore(self._slots.touched, ended[ended >= 0])

    def _places(self, n: int, random: np.random.Generator) -> tuple[Index, Index]:
        """Return the indices of those of n new unrolls that are kept, and their positions, which are all different."""
        numbers = self._added + np.arange(n)
        self._added += n
        if self._sampling == "fifo":
            places = numbers % self._capacity
        else:
            drawn = random.integers(0, numbers + 1)
            places = np.where(numbers < self._capacity, numbers, drawn)
        kept = np.flatnonzero(places < self._capacity)
        # If two unrolls get the same position, the later one is kept.
        _, first = np.unique(places[kept][::-1], return_index=True)
        kept = np.sort(kept[::-1][first])
        return kept, places[kept]

    def _rows_of(self, unrolls: Index) -> Index:
        rows: Index = (unrolls[:, None] * self._length + np.arange(self._length)).reshape(-1)
        return rows
