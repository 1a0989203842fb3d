"""Proximal policy optimisation: Schulman et al. (2017), "Proximal Policy Optimization Algorithms".

The file follows algorithm 1. `PPOTrainer` takes a full buffer of trajectories (lines 2 to 4), evaluates it with the
critic, and computes advantages (eq. 11, at the end of the file). `PPOUpdate` makes epochs of minibatches (lines 6 and
7): for each minibatch, the clipped loss (eq. 7 and 9), its gradient by autograd, and a step of Adam. This is complete,
and runs as it stands with `torch_settings.acceleration: none`. By default, `headrace.stages.trainer.fast` replaces the
update by a subclass that computes the same numbers faster.

docs/differences.md lists the differences from ML-Agents; for example, ratios are those of joint actions, and an update
learns from `buffer_size` rows.

Axis letters: N rows of K trajectories, R rows of a minibatch; P columns of log-probabilities (one for the joint action,
or one per action dimension and branch); S reward signals; H head outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import mse_loss

from headrace.config import OnPolicyHyperparameters, PPOHyperparameters
from headrace.queues.messages import Array, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.network.actor_critic import TrainedActor, make_actor_critic
from headrace.stages.policy.network.layers import Inputs, categorical_log_probs, gaussian_scores, on_host
from headrace.stages.trainer.adam import Adam, GradientParts, NetworkUpdate, not_finite
from headrace.stages.trainer.on_policy.anchor import Anchor
from headrace.stages.trainer.on_policy.rollout import Minibatch, Rollout
from headrace.stages.trainer.on_policy.trainer import (
    Coefficients,
    OnPolicyTrainer,
    accumulated,
    gathered_sequences,
    next_values,
)
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, TrainerContext
from headrace.stages.trainer.trajectories import AgentTable, Chains, SequenceCuts

Floats = NDArray[np.float64]
Gather = Callable[[NDArray[np.int64], Tensor], Any]
"""Returns a network's inputs for sequences of rows [q, L] that start with memories [q, m]."""
VALUES = "Value Estimate"
"""Suffix of the names of statistics about the critic's values."""
TOLERANCE = 1.5
"""An update ends its epochs when the approximate KL exceeds `target_kl` times this factor, as in Stable-Baselines3."""


@dataclass(frozen=True)
class PreparedBuffer:
    """A full buffer, prepared for the update."""

    rollout: Rollout
    rewards: Floats
    """[N, S] rewards of the rows, times the signals' strengths."""
    values: CriticValues
    returns: Floats
    """[N, S] value targets of the rows."""
    estimates: Mapping[str, Floats]
    """Estimates [N, S], keyed by name; their means are reported under these names."""


class PPOTrainer(OnPolicyTrainer[OnPolicyHyperparameters, "PPOUpdate"]):
    """Learns one behaviour from full buffers, in epochs of minibatches; see `OnPolicyTrainer` for errors.

    The critic evaluates each agent by its own observations.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters]] = PPOHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._critic_memories: AgentTable | None = None
        if size := self._critic_memory_size:
            self._critic_memories = self._parts["critic_memories"] = AgentTable(size, "float32")

    @property
    def _critic_memory_size(self) -> int:
        # A critic that shares the actor's body also shares the actor's memories, which the rows record.
        shared = getattr(self._hyperparameters, "shared_critic", False)
        return 0 if shared else self._design.memory_size

    def _make_update(self) -> PPOUpdate:
        context, h = self.context, cast("PPOHyperparameters", self._hyperparameters)
        signals = len(self._signals.names)
        network = make_actor_critic(
            self._design, signals, h.shared_critic, self._random, context.device, context.accelerated
        )
        self._critic: Any = network
        anchor = None
        if h.regularization is not None:
            anchor = Anchor(network, h.regularization, context.spec.actions)
        return PPOUpdate(network, context.spec, self._hyperparameters, context.replicas, anchor)

    def _learn(self) -> tuple[Floats, Mapping[str, float]]:
        coefficients, prepared, buffer, update = self._coefficients(), self._prepare(), self._buffer, self._update
        after_each = self._signals.learn if self._signals.others else None
        statistics = update.run(prepared.rollout, coefficients, self._random, self.step, after_each)
        if self._cloning is not None:
            self._report(self._cloning.update(self.step))
        memories, after = self._critic_memories, prepared.values.memories_after
        if memories is not None and after is not None:
            memories.keep(buffer.chains, after.cpu().numpy(), self.version + 1)
        if update.anchor is not None:
            pace = coefficients.learning_rate / self._hyperparameters.learning_rate
            update.anchor.follow(len(buffer) * pace)
            update.anchor.average(len(buffer), self.step)
        critic = prepared.estimates, prepared.values.values, prepared.returns
        return prepared.rewards, statistics | self._signals.value_statistics(*critic)

    def _prepare(self) -> PreparedBuffer:
        """Evaluate the full buffer, and compute advantages and value targets for its rows."""
        buffer, cuts = self._buffer, None if self._memory is None else self._buffer.cuts()
        rewards = self._signals.rewards(buffer.rows["rewards"], buffer, self.version + 1)
        before, last = (None, None) if cuts is None else buffer.previous_action_features()
        inputs = self._input_rows(buffer.observations(), before)
        values = self._evaluate(inputs, self._input_rows(buffer.observations("next_"), last), cuts)
        lengths, ended = buffer.trajectories["lengths"], buffer.trajectories["terminated"]
        valueless = ended[:, None] & ~self._signals.ignore_termination
        of_trajectories = values.final_values, lengths, valueless, self._signals.gammas, self._hyperparameters.lambd
        per_signal = advantages(rewards, values.values, *of_trajectories)
        returns = per_signal + values.values
        rollout = self._rollout(inputs, per_signal, returns, values)
        return PreparedBuffer(rollout, rewards, values, returns, {VALUES: values.values})

    def _evaluate(self, rows: Inputs, finals: Inputs, cuts: SequenceCuts | None) -> CriticValues:
        block, replicas = self._rows_per_pass, self.context.replicas
        if cuts is None:
            heads = self._hyperparameters.decoupled and replicas.size == 1
            return evaluate_rows(self._critic, rows, finals, block, replicas, heads)
        gather = partial(gathered_sequences, rows), partial(gathered_sequences, finals)
        return self._evaluate_sequences(*gather, cuts, block)

    def _evaluate_sequences(self, rows: Gather, finals: Gather, cuts: SequenceCuts, block: int) -> CriticValues:
        buffer, chains = self._buffer, self._buffer.chains
        lengths = buffer.trajectories["lengths"]
        if self._critic_memories is None:  # a critic that shares the actor's body; the rows record its memories
            initial = buffer.sequences["memories"][cuts.first]
            chains = Chains.of(np.arange(len(lengths)), chains.episodes, chains.ended)  # none continues another
        else:
            initial = self._critic_memories.values_of(chains)
        before = torch.from_numpy(initial).to(self.context.device)
        return evaluate_sequences(self._critic, rows, finals, lengths, cuts, chains, before, block)

    # Decoupled PPO: Hilton, Cobbe & Schulman (2021), "Batch size-invariance for policy optimization". PPO's old policy
    # has two purposes. The clip around the old policy bounds the size of an update, which requires the policy before
    # the update. The ratio to the old policy corrects for actions that another policy drew, which requires the policy
    # that drew them. The two policies differ if rows arrive late, or if the normaliser has changed since. With π_now
    # the policy before the update and r = π / π_now, an advantage A counts as min(π_now / π_acted, 1) · min(r A,
    # clip(r, 1 - ε, 1 + ε) A). The paper truncates the weight at 100. Here it is truncated at 1, so a few rows can't
    # outweigh the others. Rows by π_now itself have weight 1, as in plain PPO. Results therefore depend little on
    # policy lag (docs/decisions/035).
    def _rollout(
        self,
        inputs: Inputs,
        per_signal: Floats,
        returns: Floats,
        values: CriticValues,
        more: Mapping[str, Array] | None = None,
        teams: Callable[[Minibatch], Any] | None = None,
    ) -> Rollout:
        """Assemble the buffer's rows for the update. If the policy has a memory, the rows are in sequences.

        Args:
            inputs: the rows in network-input form.
            per_signal: [N, S] advantages, not normalised.
            returns: [N, S] value targets.
            values: the critic's values, with the actor's head outputs if known.
            more: further columns of minibatches, keyed by field.
            teams: see `Rollout`.
        """
        buffer, update, h, context = self._buffer, self._update, self._hyperparameters, self.context
        rows, cuts, memories = buffer.rows, None if self._memory is None else buffer.cuts(), None
        acted: Array = rows["log_probs"] if h.ratio_per_dimension else rows["log_probs"].sum(axis=1, keepdims=True)
        mean, later = per_signal.mean(axis=1), None
        normalised = mean
        if h.advantage_normalization == "minibatch":
            normalised, later = np.ones_like(mean), mean
        elif h.advantage_normalization != "none":  # over the buffer, as ML-Agents does
            normalised = (mean - mean.mean()) / (float(mean.std()) + 1e-10)
        columns = {
            "continuous": rows["continuous_actions"],
            "penalties": np.where(rows["action_masks"], np.float32(0), MASK_PENALTY),
            "old_log_probs": acted,
            "advantages": normalised[:, None],
            "returns": returns,
            **(more or {}),
        }
        if cuts is not None:
            memories = torch.from_numpy(buffer.sequences["memories"]).to(context.device)
        make = partial(
            Rollout,
            inputs,
            choices=rows["discrete_actions"],
            advantages=later,
            cuts=cuts,
            memories=memories,
            critic_memories=None if self._critic_memories is None else values.memories,
            teams=teams,
        )
        rollout = make(columns)
        if update.anchor is not None:
            columns["anchor"] = update.anchor.columns(update.heads, rollout.in_order(self._rows_per_pass))
            rollout = make(columns)
        if not h.decoupled:
            return rollout
        # Each replica computes some of the blocks, so there are at least as many blocks as replicas.
        block = min(self._rows_per_pass, -(-len(acted) // context.replicas.size))
        current = update.current_log_probs(rollout, block, values.heads)
        weights = np.exp(np.minimum(current - acted, 0.0))
        context.statistics.add(context.behavior, "Policy/Importance Weight", float(weights.mean()))
        return make({**columns, "old_log_probs": current, "advantages": weights * columns["advantages"]})

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all on-policy trainers have, and the anchor of a regularised policy."""
        state, anchor = super().state_dict(), self._update.anchor
        return state if anchor is None else {**state, **anchor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; see `OnPolicyTrainer`."""
        super().load_state_dict(state)
        anchor = self._update.anchor
        self._warn_of_switch("hyperparameters.regularization", now=anchor is not None, then="anchor" in state)
        if anchor is not None:
            with self.context.naming_behavior():
                anchor.load_state_dict(state)

    def exported_policy(self) -> PolicyUpdate:
        """Return the policy with averaged weights, if `regularization.averaged_share` is set."""
        if self._update.anchor is None:
            return self.policy()
        with self._update.anchor.averaged():
            return self.policy()


class GradientStep(NamedTuple):
    """The results of one minibatch's gradient step, on the device."""

    losses: Tensor
    """[k] the losses in the order of `PPOUpdate.names`, followed by the `measures`, all from before the step."""
    log_ratios: Tensor | None
    """[R, P] log(π / π_old) from before the step; None if the step was not to be measured."""
    norms: Tensor | None
    """[1] or [2] norms of the gradient's parts before clipping; None if the step was not to be measured."""


class PPOUpdate(NetworkUpdate):
    """Epochs of minibatches over one rollout: lines 6 and 7 of algorithm 1.

    An update is a function of parameters, optimizer state and one rollout. It reads no tensor's value, so nothing waits
    for a device (except for `target_kl`, once per epoch), and the inner step has fixed shapes.

    Args:
        network: the network to train.
        spec: the behaviour's spec, for its actions.
        hyperparameters: epochs, batch size and so on.
        replicas: the replicas that make the same update, each with its part of every minibatch.
        anchor: the anchor of a regularised policy; None for other policies.
    """

    names: ClassVar[tuple[str, ...]] = ("policy loss", "value loss", "entropy")
    """Names, for messages, of the results of `losses`: first the policy loss, then the value loss, and last the
    entropy."""
    value_weights: ClassVar[tuple[float, ...]] = (1.0,)
    """Weights of the losses between policy loss and entropy, times `value_coefficient`."""

    def __init__(
        self,
        network: TrainedActor,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = SINGLE_TRAINER,
        anchor: Anchor | None = None,
    ) -> None:
        adam = Adam(network.values, network.gradients, hyperparameters.adam_epsilon)
        super().__init__(network, adam, replicas)
        self.settings, self.spec, self.anchor = hyperparameters, spec, anchor
        self.measures = () if anchor is None else ("Anchor KL",)
        """Names of additional results of `losses`, after the entropy, that are only reported, as `Policy/<name>`."""
        self._continuous = spec.actions.continuous_size
        self._branches = list(spec.actions.discrete_branches)
        self._batch_rows = hyperparameters.batch_rows
        self._parts: GradientParts | None = None
        if hyperparameters.max_grad_norm is not None:
            self._parts = GradientParts(network.gradients, network.parts, hyperparameters.shared_grad_norm)

    def run(
        self,
        rollout: Rollout,
        coefficients: Coefficients,
        random: np.random.Generator,
        step: int,
        after_each: Callable[[Tensor], None] | None = None,
    ) -> dict[str, float]:
        """Learn from a rollout of at least `batch_rows` rows; return the update's statistics, keyed by name.

        Args:
            rollout: the rows to learn from.
            coefficients: the scheduled hyperparameters of this update.
            random: the generator that shuffles the rows.
            step: agent steps so far, for the error message.
            after_each: called with the rows of each minibatch after its gradient step.

        Raises:
            NotFiniteError: if a loss or a weight became NaN or infinite. The caller restores weights and optimizer.
        """
        h, replicas, weights = self.settings, self.replicas, self.loss_weights(coefficients)
        losses, shares, change, epoch = list[Tensor](), list[float](), None, 0
        for epoch, minibatches in enumerate(rollout.epochs(h.num_epoch, self._batch_rows, random, replicas), 1):
            measure = h.target_kl is not None or epoch == h.num_epoch
            norms, log_ratios, first = list[Tensor](), list[Tensor](), len(shares)
            for minibatch in minibatches:
                taken = self.step(minibatch, coefficients, weights, measure)
                losses.append(taken.losses)
                shares.append(minibatch.share)
                if taken.norms is not None and taken.log_ratios is not None:
                    norms.append(taken.norms)
                    log_ratios.append(taken.log_ratios)
                if after_each is not None:
                    after_each(minibatch.rows if minibatch.together is None else minibatch.together)
            if measure:
                change = policy_change(log_ratios, shares[first:], coefficients.epsilon, replicas)
                if h.target_kl is not None and float(change[:, 0].sum()) > TOLERANCE * h.target_kl:
                    break
        results = torch.stack(losses)
        if replicas.size > 1:
            results *= torch.tensor(shares, device=results.device)[:, None]
            replicas.add_up(results)
        sound = torch.isfinite(self.network.values).all()
        results = results.cpu()  # a single copy, because each separate read from a GPU waits for the GPU
        table = results[:, : len(self.names)]
        if not (bool(torch.isfinite(table).all()) and bool(sound)):
            words = not_finite(self.names, table.numpy(), "learning_rate, max_grad_norm,")
            raise NotFiniteError(f"{self.spec.name}: update at step {step}: {words}")
        # The policy loss as ML-Agents reports it: the mean of its absolute values.
        report = {"Losses/Policy Loss": float(table[:, 0].abs().mean()), "Losses/Value Loss": float(table[:, 1].mean())}
        for column, name in enumerate(self.names[2:-1], 2):
            report[f"Losses/{name.title()}"] = float(table[:, column].mean())
        for column, name in enumerate(self.measures, len(self.names)):
            report[f"Policy/{name}"] = float(results[:, column].mean())
        of_parts = torch.stack(norms).cpu()
        report["Policy/Gradient Norm"] = float(of_parts.square().sum(dim=1).sqrt().mean())
        if of_parts.shape[1] > 1:
            report["Policy/Actor Gradient Norm"], report["Policy/Critic Gradient Norm"] = of_parts.mean(dim=0).tolist()
        if change is not None:
            kl, clipped, least, greatest = change.cpu().numpy().astype(np.float64).T
            report |= {"Policy/Approximate KL": float(kl.sum()), "Policy/Clip Fraction": float(clipped.sum())}
            report |= {"Policy/Ratio Min": float(least.min()), "Policy/Ratio Max": float(greatest.max())}
        if h.target_kl is not None:
            report["Policy/Epochs"] = float(epoch)
        report |= {"Policy/Entropy": float(table[:, -1].mean()), "Policy/Learning Rate": coefficients.learning_rate}
        return report | {"Policy/Epsilon": coefficients.epsilon, "Policy/Beta": coefficients.beta}

    def step(self, minibatch: Any, coefficients: Coefficients, weights: Tensor, measure: bool) -> GradientStep:
        """Take a gradient step.

        Args:
            minibatch: R rows.
            coefficients: the scheduled hyperparameters of this update.
            weights: the result of `loss_weights`.
            measure: whether to return log-ratios and norms.
        """
        losses, log_ratios = self.find_gradients(minibatch, coefficients, weights)
        gradients, norms = self.network.gradients, None
        if self.replicas.size > 1:
            self.replicas.add_up(gradients)
        if self._parts is not None and self.settings.max_grad_norm is not None:
            # Separately by default, because the value loss would dominate a norm shared by actor and critic.
            norms = self._parts.clip(self.settings.max_grad_norm)
        elif measure:
            norms = torch.linalg.vector_norm(gradients)[None]
        self.adam.step(coefficients.learning_rate)
        return GradientStep(losses, log_ratios, norms) if measure else GradientStep(losses, None, None)

    def find_gradients(self, minibatch: Any, coefficients: Coefficients, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Set the gradients of the weighted losses, for this replica's part of the rows.

        Returns:
            The results [k] of `losses`, and log(π / π_old) [R, P].
        """
        self.network.gradients.zero_()
        losses, log_ratios = self.losses(minibatch, coefficients)
        # A single sum: for gradients passed to backward, torch imports sympy, which costs 0.4 s and 34 MB.
        results = torch.stack(losses)
        total = results[: len(weights)] @ weights
        torch.autograd.backward(total if minibatch.share == 1.0 else total * minibatch.share)
        return results.detach(), log_ratios.detach()

    def losses(self, batch: Any, coefficients: Coefficients) -> tuple[list[Tensor], Tensor]:
        """Compute a minibatch's losses.

        Returns:
            Policy loss, value loss and entropy (the terms of eq. 9), and the divergence if there is an anchor, all of
            them scalars; and log(π / π_old) [R, P].
        """
        heads, values = self.network(batch.inputs, batch.critic_memories)
        if batch.real is not None:  # drop padding, so plain means are masked means
            heads, values = heads.index_select(0, batch.real), values.index_select(0, batch.real)
        log_probs, entropy = self.log_probs_and_entropy(heads, batch)
        log_ratios = log_probs - batch.old_log_probs
        policy = clipped_policy_loss(log_ratios, batch.advantages, coefficients.epsilon)
        value = mse_loss(values, batch.returns)  # not clipped (docs/differences.md)
        if self.anchor is None:
            return [policy, value, entropy], log_ratios
        kl = self.anchor.divergence(heads, batch)
        return [policy + self.anchor.coefficient * kl, value, entropy, kl], log_ratios

    def loss_weights(self, coefficients: Coefficients) -> Tensor:
        """Return the losses' weights. Without a bonus, the entropy has no weight, which saves its backward pass."""
        of_critic = [self.settings.value_coefficient * weight for weight in self.value_weights]
        of_entropy = [-coefficients.beta] if coefficients.beta else []
        return torch.tensor([1.0, *of_critic, *of_entropy], device=self.network.values.device)

    def log_probs_and_entropy(self, heads: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [R, P] given head outputs [R, H], and the entropy as ML-Agents weights it."""
        columns, entropies, logits = list[Tensor](), list[Tensor](), heads
        if self._continuous:
            of_continuous = gaussian_scores(heads, self.network.log_sigma, batch.continuous, self.network.squashed)
            columns.append(of_continuous[0])
            entropies.append(of_continuous[1])
            logits = of_continuous[2]
        if batch.penalties.shape[1]:
            logits = logits + batch.penalties
        for branch, choices in zip(torch.split(logits, self._branches, dim=1), batch.choices, strict=True):
            chosen, entropy = categorical_log_probs(branch, choices)
            columns.append(chosen)
            entropies.append(entropy)
        log_probs = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        if not self.settings.ratio_per_dimension and log_probs.shape[1] > 1:
            log_probs = log_probs.sum(dim=1, keepdim=True)
        return log_probs, entropies[0] if len(entropies) == 1 else torch.stack(entropies).sum()

    @torch.no_grad()
    def current_log_probs(self, rollout: Rollout, block: int, heads: Tensor | None = None) -> NDArray[np.float32]:
        """Return the log-probabilities [N, P] of a rollout's actions under the current policy.

        Args:
            rollout: N rows.
            block: the number of rows per forward pass; each replica computes some of the passes.
            heads: [N, H] the actor's head outputs for these rows; None to compute them.
        """
        parts, replicas = list[Tensor](), self.replicas
        if heads is not None:
            parts.append(self.log_probs_and_entropy(heads, Minibatch.of_block(rollout.block))[0])
        for number, batch in enumerate(rollout.in_order(block) if heads is None else ()):
            if number % replicas.size != replicas.rank:
                parts.append(torch.zeros_like(batch.old_log_probs))
                continue
            outputs = self.heads(batch.inputs)
            if batch.real is not None:
                outputs = outputs.index_select(0, batch.real)
            parts.append(self.log_probs_and_entropy(outputs, batch)[0])
        of_all = torch.cat(parts)
        if heads is None and replicas.size > 1:
            replicas.add_up(of_all)
        log_probs: NDArray[np.float32] = of_all.cpu().numpy()
        return log_probs


def clipped_policy_loss(log_ratios: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Return the clipped surrogate, eq. 7, with its sign reversed to make it a loss.

    Args:
        log_ratios: [R, P] the actions' log-probabilities under the trained policy, minus those under the policy before
            the update; if not decoupled, minus those under the policy that acted.
        advantages: [R, 1] normalised advantages; [R, P] if they are weighted.
        epsilon: how far a ratio may move from 1 before its gradient becomes 0.

    Returns:
        The mean over rows and columns: a scalar.
    """
    ratio, cost = torch.exp(log_ratios), -advantages
    return torch.maximum(ratio * cost, ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * cost).mean()


def policy_change(log_ratios: Sequence[Tensor], shares: Sequence[float], epsilon: float, replicas: Replicas) -> Tensor:
    """Measure how far an epoch's minibatches have moved the policy, by the losses' ratios r = π / π_old.

    Each ratio is from before its minibatch's gradient step.

    Args:
        log_ratios: log r [R, P] of each minibatch, without gradient; R may differ between minibatches.
        shares: the weight of each minibatch's mean, because other replicas may have different rows of the same
            minibatch.
        epsilon: the clip range.
        replicas: the replicas that have the other rows.

    Returns:
        [replicas, 4] on the device, not yet combined: parts of the mean over actions of r - 1 - log r (Schulman's
        estimator k3 of KL(π_old, π), which is never negative) and of the fraction of ratios that differ from 1 by more
        than ε, to be added up; the least and the greatest ratio.
    """
    rows, weights = torch.cat(list(log_ratios)), list[NDArray[np.float64]]()
    for minibatch, share in zip(log_ratios, shares, strict=True):
        weights.append(np.full(len(minibatch), share / (len(log_ratios) * len(minibatch))))
    of_rows = torch.from_numpy(np.concatenate(weights).astype(np.float32)).to(rows)
    beyond = torch.expm1(rows)
    joint, beyond_joint = rows, beyond
    if rows.shape[1] > 1:
        joint = rows.sum(dim=1, keepdim=True)
        beyond_joint = torch.expm1(joint)
    kl = of_rows @ (beyond_joint - joint)[:, 0]
    clipped = of_rows @ (beyond.abs() > epsilon).to(rows).mean(dim=1)
    least, greatest = torch.aminmax(beyond)
    change = torch.stack([kl, clipped, 1.0 + least, 1.0 + greatest])
    return change[None] if replicas.size == 1 else replicas.of_each(change)


# The critic's values of an entire rollout: of all rows at once or, with memory, of each agent's trajectories in order.


@dataclass(frozen=True)
class CriticValues:
    """The critic's values of N rows and of K trajectories' final observations, and the critic's memories."""

    values: NDArray[np.float64]
    """[N, S] values of the rows' observations."""
    final_values: NDArray[np.float64]
    """[K, S] values of the trajectories' final observations."""
    memories: Tensor | None = None
    """[Q, m] the critic's memory before each sequence; None without memory."""
    memories_after: Tensor | None = None
    """[K, m] the critic's memory after each trajectory's last row."""
    heads: Tensor | None = None
    """[N, H] the actor's head outputs for each row, if requested."""


def evaluate_rows(
    network: Any,
    rows: Inputs,
    finals: Inputs,
    block: int,
    replicas: Replicas = SINGLE_TRAINER,
    heads: bool = False,
) -> CriticValues:
    """Evaluate rows and final observations without memory, `block` rows at a time; each replica evaluates its part.

    Args:
        network: the actor and the critic.
        rows: N rows.
        finals: K final observations.
        block: the number of rows per forward pass.
        replicas: the replicas that evaluate the same rows.
        heads: whether to also return the actor's head outputs, which works only without replicas. A shared body is
            evaluated only once.
    """
    n, values, of_actor, others = len(rows.vectors), list[Tensor](), list[Tensor](), tuple[Tensor, ...]()
    vectors = torch.cat([rows.vectors, finals.vectors])
    here = replicas.part(len(vectors))
    with torch.no_grad():
        for first in range(here.rows.start, here.rows.stop, block):
            end = min(first + block, here.rows.stop)
            if rows.others:
                others = tuple(
                    torch.cat([row[first:end], final[max(0, first - n) : max(0, end - n)]]).to(vectors.device)
                    if end > n
                    else row[first:end].to(vectors.device)
                    for row, final in zip(rows.others, finals.others, strict=True)
                )
            inputs = Inputs(vectors[first:end], others)
            if heads:
                acted, judged = network(inputs)
                of_actor.append(acted)
            else:
                judged = network.evaluate(inputs)[0]
            values.append(judged)
    evaluated = torch.cat(values)
    both = on_host(evaluated if replicas.size == 1 else replicas.gathered(evaluated, here, len(vectors)))
    return CriticValues(both[:n], both[n:], heads=torch.cat(of_actor)[:n] if heads else None)


def evaluate_sequences(
    network: Any,
    rows: Gather,
    finals: Gather,
    lengths: NDArray[np.int64],
    cuts: SequenceCuts,
    chains: Chains,
    initial: Tensor,
    block: int,
) -> CriticValues:
    """Evaluate with memory. Each agent's trajectories are evaluated one after another, and all agents in parallel.

    Nothing is padded, because the memory after a sequence must be the memory after its last row. Instead, sequences are
    evaluated in pieces of 2^i rows, so a few passes are enough for sequences of all lengths.

    Args:
        network: the critic's network, whose `evaluate` takes what `rows` and `finals` return.
        rows: gathers sequences of rows, with previous actions.
        finals: does the same for the trajectories' final observations [K].
        lengths: [K] the number of rows of each trajectory.
        cuts: the positions of sequences.
        chains: which trajectory continues which.
        initial: [K, m] the critic's memory before each trajectory; used if the trajectory does not continue another
            one.
        block: the number of rows per forward pass.
    """
    device, after, values = initial.device, initial.clone(), None
    before = torch.zeros(len(cuts), initial.shape[1], device=device)

    def on_device(numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(device)

    def pieces(which: NDArray[np.int64], memories: Tensor) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yield consecutive pieces of trajectories: row numbers [q, 2^i], and the places of their agents' memories."""
        for number in range(-(-int(lengths[which].max()) // cuts.length)):
            going = np.flatnonzero(lengths[which] > number * cuts.length)
            sequences = cuts.first[which[going]] + number
            before[on_device(sequences)] = memories[on_device(going)]
            starts, sizes = cuts.starts[sequences].copy(), cuts.sizes[sequences]
            size = 1 << (cuts.length.bit_length() - 1)
            while size:
                some = np.flatnonzero(sizes & size)
                per_pass = max(1, block // size)
                for at in range(0, len(some), per_pass):
                    chosen = some[at : at + per_pass]
                    yield starts[chosen][:, None] + np.arange(size), on_device(going[chosen])
                starts[some] += size
                size >>= 1

    with torch.no_grad():
        for which in chains.rounds:
            previous = chains.previous[which]
            memories = after[on_device(np.where(previous < 0, which, previous))]
            for numbers, agents in pieces(which, memories):
                evaluated, memories[agents] = network.evaluate(rows(numbers, memories[agents]))
                if values is None:  # the first evaluation determines the number of signals
                    values = torch.empty(int(lengths.sum()), evaluated.shape[1], device=device)
                values[on_device(numbers.reshape(-1))] = evaluated
            after[on_device(which)] = memories
        last, final_values = np.arange(len(lengths))[:, None], list[Tensor]()
        for at in range(0, len(lengths), block):
            final_values.append(network.evaluate(finals(last[at : at + block], after[at : at + block]))[0])
    assert values is not None, "there is at least one row"
    return CriticValues(on_host(values), on_host(torch.cat(final_values)), before, after)


# Generalised advantage estimation over trajectories that are packed end to end.


def advantages(
    rewards: Floats,
    values_t: Floats,
    final_values: Floats,
    lengths: NDArray[np.integer],
    valueless: NDArray[np.bool_],
    gammas: Floats,
    lambd: float,
) -> Floats:
    """Compute GAE(γ, λ): Schulman et al. (2015), "High-Dimensional Continuous Control Using GAE", eq. 16.

    δ_t = r_t + γ V_{t+1} - V_t and A_t = Σ_k (γλ)^k δ_{t+k} within a trajectory. After the last row, V is 0 if the
    episode terminated there. If the trajectory was truncated or cut, or if the signal continues beyond termination, V
    is the value of the observation after the last row.

    Args:
        rewards: [N, S] rewards received after the row's action, scaled by the signal's strength.
        values_t: [N, S] the critic's value of the row's observation.
        final_values: [K, S] the critic's value of the observation after the last row; ignored where `valueless`.
        lengths: [K] the number of rows of each trajectory, at least 1.
        valueless: [K, S] true if no reward can follow the last row, because the episode terminated and the signal ends
            with it.
        gammas: [S] each signal's discount.
        lambd: λ.

    Returns:
        [N, S] advantages; the returns (value targets) are advantages + values_t.
    """
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    return accumulated(rewards + gammas * values_tp1 - values_t, gammas * lambd, lengths)
