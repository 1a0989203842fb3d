"""PPO as a `Trainer`, with ML-Agents' semantics: prepares a full buffer as the update's input.

The losses, epochs and gradient steps are in `stages/trainer/on_policy/update.py`. This module adds other ways to
compute gradients: by hand, and as CUDA graphs. docs/differences.md lists the differences from ML-Agents; for example,
ratios are those of joint actions, and an update learns from `buffer_size` rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from headrace.config import OnPolicyHyperparameters, PPOHyperparameters
from headrace.queues.messages import Array, PolicyUpdate
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import to_device
from headrace.stages.policy.network.protocol import Perceptrons
from headrace.stages.trainer.gradients import CapturedStep, Graphs, copied, graphs_for, say_uncaptured
from headrace.stages.trainer.intake import InputRows
from headrace.stages.trainer.on_policy.anchor import Anchor, DivergenceByHand
from headrace.stages.trainer.on_policy.by_hand import ActionLikelihood, Numbers, PerceptronsByHand
from headrace.stages.trainer.on_policy.minibatches import (
    Minibatch,
    MinibatchArrays,
    PackedColumns,
    Rollout,
    SequenceRollout,
)
from headrace.stages.trainer.on_policy.rollout_buffer import RolloutBuffer, SequenceCuts
from headrace.stages.trainer.on_policy.signals import BufferTransitions, normalized
from headrace.stages.trainer.on_policy.trainer import OnPolicyTrainer, Outcome, Prepared
from headrace.stages.trainer.on_policy.update import (
    Coefficients,
    OnPolicyUpdate,
    PPOUpdate,
    clipped_by_hand,
    value_loss_by_hand,
)
from headrace.stages.trainer.on_policy.values import (
    CriticValues,
    Floats,
    evaluate_rows,
    evaluate_sequences,
    importance_weights,
)
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.trajectories import AgentTable, Chains

log = logging.getLogger(__name__)

VALUES = "Value Estimate"
"""Suffix of the names of statistics about the critic's values."""


class PPOTrainer(OnPolicyTrainer[OnPolicyHyperparameters, OnPolicyUpdate[Any]]):
    """Learns one behaviour from full buffers, in epochs of minibatches; see `OnPolicyTrainer` for errors.

    The critic evaluates each agent by its own observations.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters]] = PPOHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        # A critic that shares the actor's body also shares the actor's memories, which the rows record.
        size = 0 if self._shares_body else self._design.memory_size
        self._critic_memories = self._kept["critic_memories"] = AgentTable(size, "float32") if size else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all on-policy trainers have, and the anchor of a regularised policy."""
        state, anchor = super().state_dict(), self._update.anchor
        return state if anchor is None else {**state, **anchor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; see `OnPolicyTrainer`."""
        super().load_state_dict(state)
        anchor = self._update.anchor
        if (anchor is None) == ("anchor" in state):
            now = (
                "is now off; it was on until this checkpoint"
                if anchor is None
                else "is now on; it was off until this checkpoint"
            )
            log.warning("%s: hyperparameters.regularization %s", self.context.behavior, now)
        if anchor is not None:
            with self.context.naming_behavior():
                anchor.load_state_dict(state)

    def exported_policy(self) -> PolicyUpdate:
        """Return the policy with averaged weights, if `regularization.averaged_share` is set."""
        if self._update.anchor is None:
            return self.policy()
        with self._update.anchor.averaged():
            return self.policy()

    def _learn(self, chains: Chains | None) -> Outcome:
        transitions = self._signals.transitions(self._buffer)
        pace = self._coefficients().learning_rate / self._hyperparameters.learning_rate
        outcome = self._learn_in_epochs(self._update, self._prepare(transitions, chains), transitions, chains)
        if self._update.anchor is not None:
            self._update.anchor.follow(len(self._buffer) * pace)
            self._update.anchor.average(len(self._buffer), self.step)
        return outcome

    def _make_update(self) -> OnPolicyUpdate[Any]:
        context, signals = self.context, len(self._signals.names)
        network = make_actor_critic(self._design, signals, self._shares_body, self._random, context.device)
        self._critic: Any = network
        perceptrons = self._perceptrons(network)
        settings = cast("PPOHyperparameters", self._hyperparameters).regularization
        anchor = None if settings is None else Anchor(network, settings, context.spec.actions)
        update = PPOUpdate(network, context.spec, self._hyperparameters, context.replicas, anchor=anchor)
        if perceptrons is not None:
            update.find_gradients = PPOByHand(update, perceptrons, context.spec.actions)
        graphs = graphs_for(context)
        if graphs is not None:
            update.advance = CapturedPPOSteps(update, graphs, partial(say_uncaptured, context))
        return update

    @property
    def _shares_body(self) -> bool:
        return cast("PPOHyperparameters", self._hyperparameters).shared_critic

    def _prepare(self, transitions: BufferTransitions | None, chains: Chains | None) -> Prepared:
        """Evaluate the full buffer, and compute advantages and value targets for its rows.

        Args:
            transitions: the rows in the reward signals' form; None if the environment's reward is the only one.
            chains: which trajectory continues which; None if the buffer does not follow agents.
        """
        buffer, cuts = self._buffer, self._buffer.cuts()
        rewards = self._signals.rewards(buffer.rows["rewards"], transitions)
        before, last = (None, None) if cuts is None else buffer.previous_action_features()
        inputs = self._input_rows(buffer.observations(), before)
        values = self._evaluate(inputs, self._input_rows(buffer.final_observations(), last), cuts, chains)
        lengths, ended = buffer.trajectories["lengths"], buffer.trajectories["terminated"]
        per_signal = self._signals.advantages(rewards, values, lengths, ended, self._hyperparameters.lambd)
        critic_memories = None if self._critic_memories is None else values.memories
        returns = per_signal + values.values
        targets = per_signal, returns, critic_memories, self._rows_per_pass, values.heads
        rollout = make_rollout(self.context, self._update, buffer, inputs, *targets)
        return Prepared(rollout, rewards, values, returns, {VALUES: values.values})

    def _evaluate(
        self, rows: InputRows, finals: InputRows, cuts: SequenceCuts | None, chains: Chains | None
    ) -> CriticValues:
        block = self._rows_per_pass
        if cuts is None:
            replicas = self.context.replicas
            heads = self._hyperparameters.decoupled and replicas.size == 1
            return evaluate_rows(self._critic, rows, finals, block, replicas, heads)
        if self._critic_memories is None:
            first = torch.from_numpy(cuts.first).to(rows.device)
            recorded = actor_memories(self._buffer, rows.device)
            initial, chains = recorded.index_select(0, first), Chains.unlinked(len(finals))
        else:
            assert chains is not None, "the buffer follows agents with memory"
            initial = torch.from_numpy(self._buffer.kept(self._critic_memories)).to(rows.device)
        lengths = self._buffer.trajectories["lengths"]
        return evaluate_sequences(self._critic, rows, finals, lengths, cuts, chains, initial, block)


# The clip is centred on the policy before the update, so results depend little on policy lag (docs/decisions/035).
def make_rollout(
    context: TrainerContext,
    update: OnPolicyUpdate[Any],
    buffer: RolloutBuffer,
    inputs: InputRows,
    per_signal: Floats,
    returns: Floats,
    critic_memories: Tensor | None,
    block: int,
    heads: Tensor | None = None,
) -> Rollout | SequenceRollout:
    """Assemble a full buffer's rows for the update. If the policy has a memory, the rows are in sequences.

    Args:
        context: the trainer's context, which receives statistics of the rows' weights.
        update: the update that will learn from the rows.
        buffer: the rows.
        inputs: the same rows in network-input form.
        per_signal: [N, S] advantages, not normalised.
        returns: [N, S] value targets.
        critic_memories: [Q, m] the critic's memory before each sequence; None if the critic has no separate memory.
        block: the maximum number of rows per forward pass.
        heads: [N, H] the actor's head outputs, if known.
    """
    rows, h, cuts = buffer.rows, update.settings, buffer.cuts()
    log_probs = rows["log_probs"] if h.ratio_per_dimension else rows["log_probs"].sum(axis=1, keepdims=True)
    (continuous, choices), penalties, of_anchor = buffer.actions(), buffer.penalties(), list[Array]()

    def rollout_with(old_log_probs: Array, weighted: Array) -> Rollout | SequenceRollout:
        targets = [continuous, penalties, old_log_probs, weighted, returns, *of_anchor]
        if cuts is None:
            return Rollout(inputs, targets, choices, later)
        recorded = actor_memories(buffer, context.device)
        return SequenceRollout(inputs, targets, choices, cuts, recorded, critic_memories)

    mean, how = per_signal.mean(axis=1), h.advantage_normalization
    later = mean if how == "minibatch" else None
    unweighted = (np.ones_like(mean) if how == "minibatch" else mean if how == "none" else normalized(mean))[:, None]
    if update.anchor is not None:
        of_anchor.append(update.anchor.columns(update.heads, rollout_with(log_probs, unweighted).in_order(block)))
    if not h.decoupled:
        return rollout_with(log_probs, unweighted)
    if heads is not None and cuts is None:
        current = update.log_probs(heads, Minibatch.of_actions(continuous, penalties, choices, heads.device))
    else:
        each = min(block, -(-len(rows) // context.replicas.size))
        current = update.current_log_probs(rollout_with(log_probs, unweighted).in_order(each))
    weights = importance_weights(current, log_probs)
    context.statistics.add(context.behavior, "Policy/Importance Weight", float(weights.mean()))
    return rollout_with(current, weights * unweighted)


def actor_memories(buffer: RolloutBuffer, device: str | torch.device) -> Tensor:
    """Return the actor's recorded memory [Q, m] before each sequence."""
    assert buffer.sequences is not None, "the buffer keeps them with memory"
    return torch.from_numpy(buffer.sequences["memories"]).to(device)


# Gradients without autograd, and gradient steps as CUDA graphs, for use in a `PPOUpdate`. The derivation is in
# `stages/trainer/on_policy/by_hand.py`.


class PPOByHand:
    """Computes losses and their gradients without autograd, as the `find_gradients` of a `PPOUpdate`.

    Args:
        update: the update, which receives the ratios.
        network: two perceptrons, or one with both heads.
        actions: the behaviour's actions.
    """

    def __init__(self, update: PPOUpdate, network: Perceptrons, actions: ActionSpec) -> None:
        self._update, h = update, update.settings
        self._perceptron = PerceptronsByHand(network, h.batch_rows)
        self._surrogate = SurrogateByHand(network, actions, h.ratio_per_dimension)
        anchor = update.anchor
        self._divergence = None if anchor is None else DivergenceByHand(network, actions, anchor.coefficient)

    def __call__(self, batch: Minibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Write the gradients; return the losses [3], or [4] including the divergence if there is an anchor."""
        network, rows = self._perceptron, batch.arrays
        with np.errstate(all="ignore"):  # the update checks for NaN and infinity at its end
            network.forward(batch.inputs.vectors)
            policy, entropy, log_ratios = self._surrogate(
                network.heads, rows, coefficients, batch.share, network.of_heads
            )
            kls = []
            if self._divergence is not None:
                kls = [self._divergence(network.heads, rows, batch.share, network.of_heads)]
                policy += self._divergence.coefficient * kls[0]
            weight = self._update.settings.value_coefficient * batch.share
            value = value_loss_by_hand(network.values, rows.returns, weight, network.of_values)
            network.backward()
        self._update.ratios = torch.from_numpy(log_ratios.T)
        return torch.from_numpy(np.array([policy, value, entropy, *kls], log_ratios.dtype))


class ActorByHand:
    """Computes the policy loss and the entropy, as `PPOByHand` does, for an actor whose critic learns elsewhere."""

    def __init__(self, update: OnPolicyUpdate[Any], actor: Perceptrons, actions: ActionSpec) -> None:
        self._update, h = update, update.settings
        self._perceptron = PerceptronsByHand(actor, h.batch_rows)
        self._surrogate = SurrogateByHand(actor, actions, h.ratio_per_dimension)

    def __call__(self, batch: Minibatch, coefficients: Coefficients) -> Tensor:
        """Write the actor's gradients; return policy loss and entropy [2]."""
        network = self._perceptron
        with np.errstate(all="ignore"):
            network.forward(batch.inputs.vectors)
            policy, entropy, log_ratios = self._surrogate(
                network.heads, batch.arrays, coefficients, batch.share, network.of_heads
            )
            network.backward()
        self._update.ratios = torch.from_numpy(log_ratios.T)
        return torch.from_numpy(np.array([policy, entropy], log_ratios.dtype))


class SurrogateByHand:
    """Computes the clipped policy loss and the entropy bonus, and their gradients.

    Args:
        network: the network that has the standard deviations.
        actions: the behaviour's actions.
        ratio_per_dimension: whether ratios are computed per action dimension and branch, instead of for the joint
            action.
    """

    def __init__(self, network: Perceptrons, actions: ActionSpec, ratio_per_dimension: bool) -> None:
        self._likelihood = ActionLikelihood(network, actions)
        self._joint = not ratio_per_dimension

    def __call__(
        self, heads: Numbers, rows: MinibatchArrays, coefficients: Coefficients, share: float, of_heads: Numbers
    ) -> tuple[float, float, Numbers]:
        """Write the gradient of head outputs [H, R] to `of_heads`, and also the gradient of log σ.

        Returns:
            The policy loss, the entropy, and the log-ratios [P, R].
        """
        actions = self._likelihood
        if actions.compiled:
            numbers = coefficients.epsilon, coefficients.beta, share
            return actions.clipped(heads, rows, numbers, of_heads, self._joint)
        log_ratios, entropy = actions.forward(heads, rows.continuous, rows.choices, rows.penalties)
        if self._joint and len(log_ratios) > 1:
            log_ratios = np.add.reduce(log_ratios, axis=0, keepdims=True)
        log_ratios -= rows.old_log_probs
        policy, of_log_probs = clipped_by_hand(log_ratios, rows.advantages, coefficients.epsilon)
        if share != 1.0:
            of_log_probs *= share
        actions.backward(of_log_probs, -coefficients.beta * share, of_heads)
        return policy, entropy, log_ratios


class _StepInputs(NamedTuple):
    """Everything that changes from one gradient step to the next."""

    block: PackedColumns
    others: tuple[Tensor, ...]
    """The minibatch's images and sets."""
    scheduled: Tensor
    """[2 + k] the learning rate, the clip range, and the losses' weights."""


class _StepOutputs(NamedTuple):
    losses: Tensor
    norms: Tensor
    log_ratios: Tensor


class CapturedPPOSteps:
    """Takes gradient steps as CUDA graphs, for a network without memory, as the `advance` of a `PPOUpdate`.

    Each graph is one step; shuffles, `target_kl` and checks stay outside it.

    Args:
        update: the update whose steps are captured.
        graphs: captures the steps.
        tell: called once with the reason if steps are not captured.
    """

    def __init__(self, update: PPOUpdate, graphs: Graphs, tell: Callable[[str], None]) -> None:
        self._update = update
        self._captured = CapturedStep(self._step, graphs, tell)
        self._weights = self._scheduled = update.network.values[:0]

    def __call__(
        self, minibatch: Minibatch, coefficients: Coefficients, weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Take a gradient step, by replaying its graph if the graph has been captured."""
        assert minibatch.block is not None, "there is no memory"
        if weights is not self._weights:  # a new update: copy its scheduled hyperparameters to the device
            others = torch.tensor([coefficients.learning_rate, coefficients.epsilon])
            self._weights, self._scheduled = weights, torch.cat([to_device(others, weights.device), weights])
        found = self._captured(_StepInputs(minibatch.block, minibatch.inputs.others, self._scheduled))
        self._update.adam.steps += 1
        if not self._update.measuring:
            return found.losses.clone(), None
        losses, norms, self._update.ratios = copied(found)
        return losses, norms

    def _step(self, inputs: _StepInputs) -> _StepOutputs:
        rate, epsilon, weights = inputs.scheduled[0], inputs.scheduled[1], inputs.scheduled[2:]
        minibatch = Minibatch.of_block(inputs.block, torch.empty(0, dtype=torch.int64), inputs.others)
        # Torch accepts a zero-dimensional tensor wherever it accepts a number, but its type hints do not show that.
        coefficients = Coefficients(cast("float", rate), 0.0, cast("float", epsilon))
        losses, norms = self._update.step(minibatch, coefficients, weights)
        assert self._update.ratios is not None, "PPO clips them"
        return _StepOutputs(losses, self._update.norms() if norms is None else norms, self._update.ratios)
