"""IMPALA: V-trace on unrolls, some of which are replayed, and one gradient step on all of them.

Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
with the replay and the cloning losses of Rolnick et al. (2019), "Experience Replay for Continual Learning" (CLEAR),
combined as in the learner of DeepMind's StarCraft II agents. In order: the trainer, which collects fresh unrolls and
draws past ones; the update; V-trace (section 4.1); the losses; statistics.

Losses are summed over time and batch, as in the paper, or averaged (`loss_reduction`). The cloning losses are computed
only on replayed rows. By default, `headrace.stages.trainer.fast` computes the gradients of perceptrons faster.

Axis letters: N rows, of which the first F are fresh and the others replayed, in K trajectories packed end to end; C
continuous actions; H head outputs; S reward signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import ImpalaHyperparameters, MemorySettings
from headrace.queues.columns import Column
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import ACTION_HEADS, MASK_PENALTY
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import (
    Inputs,
    categorical_log_probs,
    gaussian_scores,
    on_host,
    split_gaussians,
    to_device,
)
from headrace.stages.policy.network.protocol import ActorCriticNetwork
from headrace.stages.trainer.adam import Adam, GradientParts, NetworkUpdate
from headrace.stages.trainer.on_policy.rollout import RolloutBuffer
from headrace.stages.trainer.on_policy.trainer import Coefficients, OnPolicyTrainer, Outcome
from headrace.stages.trainer.ppo import accumulated, next_values
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, TrainerContext
from headrace.stages.trainer.replay.replay_store import ReplayFileError, read_replay, write_replay
from headrace.stages.trainer.trajectories import Chains
from headrace.stages.trainer.unrolls import (
    RecordedRows,
    UnrollReplay,
    Unrolls,
    joined_inputs,
    pieces_of,
    sequence_inputs,
)

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
            if self._cloning is not None:
                self._clone()
        learn_signals = self._signals.learner(transitions)
        if learn_signals is not None:
            learn_signals(torch.arange(unrolls.all_rows))
        self._remember(learned.values[:fresh])
        return Outcome(rewards[:fresh], self._statistics(learned, unrolls, coefficients, pretraining))

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

    def _with_replayed(self) -> RolloutBuffer:
        """Return the fresh rows, followed by replayed rows if the replay buffer is large enough."""
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

    def _remember(self, values: Floats) -> None:
        """Add the fresh unrolls to the replay buffer, together with the critic's values [F, S]."""
        if self._replay is None:
            return
        fresh = self._buffer
        before = {} if fresh.sequences is None else fresh.sequences.columns()
        rows = {**fresh.rows.columns(), VALUES: values.astype(np.float32)}
        self._replay.add(rows, {**fresh.trajectories.columns(), **before}, self._random)

    def _unrolls(self, batch: RolloutBuffer, rewards: Floats, fresh: int) -> Unrolls:
        """Convert a batch with rewards [N, S], whose first `fresh` rows are fresh, to the update's input.

        With several replicas, each takes a part of the trajectories.
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

    def _statistics(
        self, learned: UpdateResult, unrolls: Unrolls, coefficients: Coefficients, pretraining: bool
    ) -> dict[str, float]:
        """Return an update's statistics, keyed by name; `pretraining` is true if only the critic has learned."""
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


LOSSES = ("policy_gradient", "baseline", "entropy", "policy_cloning", "value_cloning", "total_loss")
"""The losses' statistics, in order. Only `total_loss`, the weighted sum of the other losses, includes loss weights."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The results of one update."""

    losses: dict[str, float]
    """The summed or averaged losses, keyed by the names in `LOSSES`."""
    grad_norm: float
    """Norm of the full gradient before clipping."""
    entropy: float
    """The joint distribution's entropy, averaged over rows."""
    ratios: Ratios | None
    """Statistics of the probability ratios; None if only the critic has learned."""
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
        network: ActorCriticNetwork,
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
        heads, values = self._outputs(unrolls)
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
        self._backpropagate(share, total)

    def _outputs(self, unrolls: Unrolls) -> tuple[Tensor, Tensor]:
        """Return head outputs [N, H] with mask penalties added, and values [N + K, S]."""
        heads, values = self.network(unrolls.inputs)
        n = len(unrolls)
        if unrolls.places is None:
            heads = heads[:n]
        else:
            heads, values = heads.index_select(0, unrolls.places[:n]), values.index_select(0, unrolls.places)
        return (heads if unrolls.penalties is None else heads + unrolls.penalties), values

    def _backpropagate(self, share: float, total: Tensor) -> None:
        """Set the gradients of `share * total` by autograd."""
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
        h = self.settings
        n = len(unrolls)
        heads, both, log_probs, entropy = self.forward(unrolls)
        values, final_values = both[:n], both[n:]
        log_ratios = on_host(log_probs) - unrolls.acted
        found, of_critic = self._vtrace(unrolls, log_ratios, values, final_values, self._limits)
        weights = found.advantages.sum(axis=1)
        if h.clip_advantage is True:
            weights = np.maximum(weights, 0)
        elif h.clip_advantage:
            weights = np.clip(weights, -h.clip_advantage, h.clip_advantage)
        policy_gradient = -(log_probs @ torch.from_numpy(weights).to(values))
        baseline = self._baseline(values, found)
        cloning = self._cloning(unrolls, heads, values)
        losses = [policy_gradient, baseline, -n * entropy, *cloning]
        costs = [1.0, h.baseline_cost, coefficients.beta, h.policy_cloning_cost, h.value_cloning_cost]
        counts: tuple[int, ...] = (1, 1, 1, 1, 1)
        if h.loss_reduction == "mean":
            everywhere, replayed = unrolls.all_rows, max(1, unrolls.all_rows - unrolls.all_fresh)
            counts = (everywhere, everywhere, everywhere, replayed, replayed)
            losses = [loss / rows for loss, rows in zip(losses, counts, strict=True)]
        each = [cost / rows for cost, rows in zip(costs, counts, strict=True)]
        backward = partial(self.backward, unrolls, weights, found.targets, each)
        norm, reduced = self._step(losses, costs, backward, coefficients.learning_rate, step, unrolls.here.weight)
        (mean_entropy,) = self._of_all(unrolls, [float(entropy.detach())])
        of_all = partial(self._of_all, unrolls)
        ratios = ratios_of(log_ratios, self._limits, of_all, self.replicas, values.device)
        return UpdateResult(reduced, norm, mean_entropy, ratios, *self._rows_of_all(unrolls, of_critic, found.targets))

    def pretrain_critic(self, unrolls: Unrolls, learning_rate: float, step: int) -> UpdateResult:
        """Take a gradient step on the value loss only, with discounted returns; the acting part does not change.

        Args:
            unrolls: the rows.
            learning_rate: Adam's current learning rate.
            step: agent steps so far, for the error message.

        Raises:
            NotFiniteError: see `learn`.
        """
        n = len(unrolls)
        _, both = self._outputs(unrolls)
        values, final_values = both[:n], both[n:]
        # The critic learns the values of the acting policy, so all ratios are 1, and λ is 1.
        found, of_critic = self._vtrace(unrolls, np.zeros(n), values, final_values, Limits())
        baseline = self._baseline(values, found)
        if self.settings.loss_reduction == "mean":
            baseline = baseline / unrolls.all_rows
        norm, reduced = self._step(
            [baseline], [1.0], self._backpropagate, learning_rate, step, unrolls.here.weight, only_critic=True
        )
        return UpdateResult(reduced, norm, 0.0, None, *self._rows_of_all(unrolls, of_critic, found.targets))

    def _of_all(self, unrolls: Unrolls, means: list[float]) -> list[float]:
        """Convert means over this replica's rows to means over all replicas' rows."""
        if self.replicas.size == 1:
            return means
        here = unrolls.here
        sums = torch.tensor(means, device=self.network.values.device) * (here.size * here.weight / unrolls.all_rows)
        self.replicas.add_up(sums)
        found: list[float] = sums.tolist()
        return found

    def _rows_of_all(self, unrolls: Unrolls, values: Floats, targets: Floats) -> tuple[Floats, Floats]:
        """Return the values and targets [N, S] of all replicas' rows, given those of this replica's rows."""
        if self.replicas.size == 1:
            return values, targets
        ours = torch.from_numpy(np.concatenate([values, targets], axis=1)).to(self.network.values.device)
        all_values, all_targets = np.split(on_host(self.replicas.gathered(ours, unrolls.here, unrolls.all_rows)), 2, 1)
        return all_values, all_targets

    def _vtrace(
        self, unrolls: Unrolls, log_ratios: Floats, values: Tensor, final_values: Tensor, limits: Limits
    ) -> tuple[VTrace, Floats]:
        """Return V-trace's results, and the critic's values [N, S] from which they were computed."""
        of_critic = on_host(values)
        after, pieces = on_host(final_values), (unrolls.lengths, unrolls.valueless)
        return vtrace(log_ratios, unrolls.rewards, of_critic, after, *pieces, self.gammas, limits), of_critic

    def _baseline(self, values: Tensor, found: VTrace) -> Tensor:
        """Return half the sum of squared value errors."""
        return 0.5 * (values - torch.from_numpy(found.targets).to(values)).square().sum()

    def _cloning(self, unrolls: Unrolls, heads: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divergence from the acting policies, and from recorded values, each summed over replayed rows."""
        recorded, zero = unrolls.recorded, values.new_zeros(())
        if recorded is None:
            return zero, zero
        replayed = slice(unrolls.fresh, None)
        of_values = (values[replayed] - recorded.values).square().sum()
        if recorded.heads is None:
            return zero, of_values
        return divergence(heads[replayed], self.network.log_sigma, recorded.heads, self._branches).sum(), of_values

    def _step(
        self,
        losses: list[Tensor],
        costs: list[float],
        backward: Callable[[float, Tensor], None],
        learning_rate: float,
        step: int,
        weight: float,
        only_critic: bool = False,
    ) -> tuple[float, dict[str, float]]:
        """Take the gradient step; return the gradient norm, and the losses keyed by name.

        `backward` takes a factor and the total loss, and sets the gradients of the total loss times that factor.

        Raises:
            NotFiniteError: see `learn`.
        """
        names = ("baseline",) if only_critic else LOSSES[:-1]
        network = self.network
        stacked = torch.stack(losses)
        factors = torch.tensor(costs, device=stacked.device)
        total = stacked @ factors
        backward(weight, total)
        stacked = stacked.detach() * weight
        self.replicas.add_up(network.gradients, stacked)
        if only_critic:
            network.gradients.mul_(self._of_critic)
        limit = self.settings.max_grad_norm
        norms = self._parts.clip(float("inf") if limit is None else limit)
        self.adam.step(learning_rate)
        results = torch.cat([stacked, (stacked @ factors)[None], norms.square().sum().sqrt()[None]]).tolist()
        if not (np.isfinite(results).all() and bool(torch.isfinite(network.values).all())):
            raise NotFiniteError(self._complaint([*names, "total_loss", "grad_norm"], results, step))
        *found, norm = results
        return norm, dict(zip([*names, "total_loss"], found, strict=True))

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


@dataclass(frozen=True, slots=True)
class VTrace:
    """The results of V-trace for N rows."""

    targets: Floats
    """[N, S] v_t, the critic's targets."""
    advantages: Floats
    """[N, S] ρ_t (r_t + γ v_{t+1} - V_t), the weights of ∇ log π."""


def vtrace(
    log_ratios: Floats,
    rewards: Floats,
    values_t: Floats,
    final_values: Floats,
    lengths: NDArray[np.integer],
    valueless: NDArray[np.bool_],
    gammas: Floats,
    limits: Limits,
) -> VTrace:
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
    """
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))[:, None]
    c = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))[:, None]
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    targets = values_t + accumulated(rho * (rewards + gammas * values_tp1 - values_t), gammas * c, lengths)
    targets_tp1 = next_values(targets, final_values, lengths, valueless)
    return VTrace(targets, rho * (rewards + gammas * targets_tp1 - values_t))


def clipped_rewards(rewards: Floats, how: str) -> Floats:
    """Clip rewards of any shape as DeepMind's IMPALA learner does.

    Args:
        rewards: scaled rewards.
        how: `none` for no clipping; `abs_one` clips to [-1, 1]; `soft_asymmetric` computes 5·tanh(r/5), times 0.3 where
            r < 0.
    """
    if how == "abs_one":
        return np.clip(rewards, -1.0, 1.0)
    if how == "soft_asymmetric":
        squeezed: Floats = 5.0 * np.tanh(rewards / 5.0)
        return np.where(rewards < 0, 0.3 * squeezed, squeezed)
    return rewards


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


@dataclass(frozen=True, slots=True)
class Ratios:
    """Statistics of the ratios π/μ over all rows, where π is the learning policy and μ the acting policy."""

    rho: float
    """Mean of ρ = min(ρ̄, π/μ), the weight of a row's own reward."""
    clipped: float
    """Fraction of the ratios that are above ρ̄."""
    trace: float
    """Mean of c = λ min(c̄, π/μ), the weight of later rewards."""
    approximate_kl: float
    """Mean of π/μ - 1 - log π/μ: Schulman's estimator k3 of KL(μ, π)."""
    least: float
    greatest: float

    def named(self) -> dict[str, float]:
        """Return the statistics, keyed by name."""
        return {
            "Policy/Importance Ratio": self.rho,
            "Policy/Clipped Ratios": self.clipped,
            "Policy/Trace Coefficient": self.trace,
            "Policy/Approximate KL": self.approximate_kl,
            "Policy/Ratio Min": self.least,
            "Policy/Ratio Max": self.greatest,
        }


def ratios_of(
    log_ratios: Floats,
    limits: Limits,
    means_of_all: Callable[[list[float]], list[float]],
    replicas: Replicas,
    device: torch.device | str = "cpu",
) -> Ratios:
    """Compute the statistics of the ratios from their logarithms [N].

    Args:
        log_ratios: log(π/μ) of this replica's rows.
        limits: ρ̄, c̄ and λ.
        means_of_all: converts means over these rows to means over all replicas' rows.
        replicas: the replicas that have the other rows.
        device: the device used to exchange numbers between replicas.
    """
    with np.errstate(over="ignore"):  # statistics drop infinite ratios, with a warning
        beyond = np.expm1(log_ratios)
        ends = torch.tensor([1.0 + beyond.min(), 1.0 + beyond.max()], dtype=torch.float64, device=device)
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))
    trace = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))
    clipped = log_ratios > log(limits.rho_bar)
    columns = rho, clipped, trace, beyond - log_ratios
    of_rho, above, of_trace, kl = means_of_all([float(column.mean()) for column in columns])
    of_each = replicas.of_each(ends)
    return Ratios(of_rho, above, of_trace, kl, float(of_each[:, 0].min()), float(of_each[:, 1].max()))
