"""MA-POCA, multi-agent posthumous credit assignment: PPO for groups of agents with a common reward.

Cohen et al. (2021), "On the Use and Misuse of Absorbing States in Multi-agent Reinforcement Learning", with ML-Agents'
semantics. Each agent acts on its own observations. The critic observes all members of a group; attention over the
members that are present replaces absorbing states for absent members. Returns are based on the critic's value for the
group. Advantages are returns minus the critic's counterfactual baseline, which depends on the teammates' actions but
not on the agent's. An agent that leaves before its group's episode ends learns from the rewards of the remaining
members.

In order: the trainer, the losses, the network, and the search for each row's teammates. Epochs and steps are PPO's.

Axis letters: B agents, each at one moment; M teammates in the largest group; U members in total; P features of an
action; S reward signals; m memory size.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from headrace.config import POCAHyperparameters
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import FlatActor, WithActor, value_heads
from headrace.stages.policy.network.body import ActorNetwork, Encoders, Memory
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import (
    ACTIVATIONS,
    Inputs,
    attention_linear,
    gathered,
    linear,
    on_host,
    to_device,
)
from headrace.stages.policy.network.sets import HEADS, residual_attention
from headrace.stages.trainer.on_policy.rollout import Minibatch
from headrace.stages.trainer.on_policy.trainer import Coefficients, RolloutBuffer
from headrace.stages.trainer.ppo import (
    VALUES,
    CriticValues,
    PPOTrainer,
    PPOUpdate,
    PreparedBuffer,
    advantages,
    clipped_policy_loss,
)
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.trajectories import SequenceCuts, numbered

log = logging.getLogger(__name__)

BASELINES = "Baseline Estimate"
_LARGEST = "largest_group"
Floats = NDArray[np.float64]


class POCATrainer(PPOTrainer):
    """Learns with a critic that evaluates agents by the observations and actions of their entire group."""

    hyperparameters = POCAHyperparameters
    follows_groups = True

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._largest = 1
        """Number of members of the largest group so far."""
        if not context.spec.grouped:
            log.warning(
                "%s: trainer_type poca is for groups of agents, but this environment has no groups, so each agent "
                "learns separately; ppo does the same faster",
                context.behavior,
            )

    @property
    def _critic_memory_size(self) -> int:
        return 2 * self._design.memory_size  # for the value, and for the baseline

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `OnPolicyTrainer`, with groups renumbered."""
        state = super().state_dict()
        return {**state, "buffer": renumbered(state["buffer"])} if self._buffer.grouped else state

    def warm_state(self) -> dict[str, Any]:
        """Return actor, critic, normaliser, and the size of the largest group."""
        return {**super().warm_state(), _LARGEST: self._largest}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`; see `OnPolicyTrainer`."""
        super().warm_start(state)
        self._largest = int(state[_LARGEST])

    def _make_update(self) -> POCAUpdate:
        context = self.context
        self._critic = network = GroupActorCritic(self._design, len(self._signals.names), self._random, context.device)
        return POCAUpdate(network, context.spec, self._hyperparameters, context.replicas)

    def _prepare(self) -> PreparedBuffer:
        buffer, cuts = self._buffer, None if self._memory is None else self._buffer.cuts()
        mates, extrinsic = mates_in(buffer), buffer.rows["rewards"]
        self._largest = max(self._largest, 1 + int(mates.present.sum(1).max(initial=0)))
        if buffer.grouped:  # the rewards of the agent, its group, and its teammates at the same moment
            of_mates = np.where(mates.present, extrinsic[mates.numbers], np.float32(0)).sum(1)
            extrinsic = extrinsic + buffer.rows["group_rewards"] + of_mates
        rewards = self._signals.rewards(extrinsic, buffer, self.version + 1)
        before = None if cuts is None else buffer.previous_action_features()[0]
        inputs = self._input_rows(buffer.observations(), before)
        actions = torch.from_numpy(buffer.action_features()).to(self.context.device)
        teams = TeamRows(inputs, actions, mates, np.ones(len(mates.present), np.bool_), self._largest)
        values, baselines, over = self._evaluate_teams(teams, cuts, by_turns=not mates.present.any())
        # The λ-returns are G = V + A, where A is the advantage computed by GAE with the same λ.
        lengths = buffer.trajectories["lengths"]
        valueless = over[:, None] & ~self._signals.ignore_termination
        of_trajectories = values.final_values, lengths, valueless, self._signals.gammas, self._hyperparameters.lambd
        returns = values.values + advantages(rewards, values.values, *of_trajectories)
        more = {"old_baselines": baselines}
        rollout = self._rollout(inputs, returns - baselines, returns, values, more, teams.of_minibatch)
        estimates = {VALUES: values.values, BASELINES: baselines}
        return PreparedBuffer(rollout, rewards, values, returns, estimates)

    def _evaluate_teams(
        self, teams: TeamRows, cuts: SequenceCuts | None, by_turns: bool
    ) -> tuple[CriticValues, Floats, NDArray[np.bool_]]:
        """Return values, baselines [N, S], and flags [K], true if the group's episode ends with a trajectory."""
        trajectories, mates = self._buffer.trajectories, mates_in(self._buffer, at_end=True)
        # An agent that terminated has left. An agent that was interrupted, or whose trajectory was just cut, has not.
        left = ~trajectories["terminated"]
        finals, empty = self._teams_at_end(mates, left, by_turns)
        over = empty & ~trajectories["group_left"] if self._buffer.grouped else empty
        if cuts is None:
            joined = CriticValues(self._one_step_values(teams), self._one_step_values(finals))
        else:
            block = max(1, self._rows_per_pass // teams.width)
            joined = self._evaluate_sequences(teams.teams, finals.teams, cuts, block)
        (values, baselines), (final_values, _) = (np.split(e, 2, axis=1) for e in (joined.values, joined.final_values))
        # If teammates remain but none of their observations is known, the group is assumed to keep its value.
        last = np.cumsum(trajectories["lengths"]) - 1
        final_values = np.where((empty & ~over)[:, None], values[last], final_values)
        goes_on = self._signals.ignore_termination
        if goes_on.any():  # for these signals, all members count as still present
            complete, _ = self._teams_at_end(mates, np.ones_like(left), by_turns)
            beyond = np.split(self._one_step_values(complete, joined.memories_after), 2, axis=1)[0]
            final_values = np.where(goes_on, beyond, final_values)
        return replace(joined, values=values, final_values=final_values), baselines, over

    def _teams_at_end(
        self, mates: Mates, left: NDArray[np.bool_], by_turns: bool
    ) -> tuple[TeamRows, NDArray[np.bool_]]:
        """Return the remaining agents' teams after each of K trajectories, and flags [K], true if no agent remains.

        `left` [K] is true for agents that remain. If no agent ever decides together with a teammate (`by_turns`), the
        critic has learned only about single agents. At the end, it then also evaluates a single agent: the agent itself
        or, if the agent has left, one of its teammates.
        """
        inputs = self._input_rows(self._buffer.observations("next_"))
        actions, device = self._spec.actions, inputs.vectors.device
        undecided = torch.zeros(len(left), actions.continuous_size + actions.mask_size, device=device)
        present = mates.present & left[mates.numbers]
        if by_turns:
            present &= (present.cumsum(1) == 1) & ~left[:, None]
        teams = TeamRows(inputs, undecided, Mates(mates.numbers, present), left, self._largest)
        return teams, ~(left | present.any(1))

    def _one_step_values(self, teams: TeamRows, memories: Tensor | None = None) -> Floats:
        """Return the values and baselines [n, 2S] of all teams, each evaluated for one step from its memories."""
        replicas, block = self.context.replicas, max(1, self._rows_per_pass // teams.width)
        values, numbers, here = list[Tensor](), np.arange(len(teams))[:, None], replicas.part(len(teams))
        with torch.no_grad():
            for at in range(here.rows.start, here.rows.stop, block):
                some = slice(at, min(at + block, here.rows.stop))
                before = None if memories is None else memories[some]
                values.append(self._critic.evaluate(teams.teams(numbers[some], before))[0])
        return on_host(replicas.gathered(torch.cat(values), here, len(teams)))


# The update: PPO's losses, and the loss of the counterfactual baseline.


class POCAUpdate(PPOUpdate):
    """Trains an actor, and a critic that evaluates groups; takes the arguments of `PPOUpdate`."""

    names = ("policy loss", "value loss", "baseline loss", "entropy")
    value_weights = (1.0, 0.5)
    """Of value loss and baseline loss, as in ML-Agents."""

    def losses(self, batch: Minibatch, coefficients: Coefficients) -> tuple[list[Tensor], Tensor]:
        """Return policy loss, value loss, baseline loss and entropy, and log-ratios; see `PPOUpdate.losses`."""
        heads = self.network.heads(batch.inputs)
        values, baselines, _ = self.network.module.critic(batch.teams)
        if batch.real is not None:  # drop padding, so plain means are masked means
            heads, values, baselines = (outputs.index_select(0, batch.real) for outputs in (heads, values, baselines))
        log_probs, entropy = self.log_probs_and_entropy(heads, batch)
        log_ratios = log_probs - batch.old_log_probs
        policy = clipped_policy_loss(log_ratios, batch.advantages, coefficients.epsilon)
        value = mse_loss(values, batch.returns)
        assert batch.old_baselines is not None, "POCA's rollout has them"
        baseline = baseline_loss(baselines, batch.old_baselines, batch.returns, coefficients.epsilon)
        return [policy, value, baseline, entropy], log_ratios


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


# The network: an actor like PPO's, and a critic that evaluates the entire group, with or without one member's action.


class Teams(NamedTuple):
    """B agents, each with its teammates. With memory, they are B / L sequences of L rows each, concatenated."""

    inputs: Inputs
    """[U, …] the members' observations, without memories."""
    actions: Tensor
    """[U, P] the members' actions."""
    members: Tensor
    """[B, 1 + M] int64 indices, among the U members, of the agent and its teammates."""
    present: Tensor
    """[B, 1 + M] true for members that are present; absent members have no influence."""
    size: Tensor
    """[B, 1] the number of present members, scaled so one member gives -1 and the largest number so far gives 1."""
    memories: Tensor | None = None
    """[B / L, 2m] memories for value and baseline before each sequence's first row; None without memory."""
    sequence_length: int = 1
    """L, the number of rows per sequence."""


class GroupCritic(nn.Module):
    """Computes group values from all observations, and counterfactual baselines also from the teammates' actions.

    Both use the same network; only the input about the teammates differs. The memory is the last layer before the
    heads. It follows the agent's group as long as the agent is present, separately for the value and the baseline.

    Args:
        design: the policy's design: observations, actions, sizes, memory.
        signals: S, the number of reward signals.

    Raises:
        StageError: if an encoder does not fit its observation, or a custom network breaks its contract.
    """

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        design = design.of_critic
        settings, actions = design.settings, design.spec.actions
        self.encoders: Encoders | CustomNetwork
        self.encoders = Encoders(design) if settings.network is None else CustomNetwork(design)
        width = -(-settings.widths[0] // HEADS) * HEADS
        self.seeing = attention_linear(self.encoders.size, width)
        self.doing = attention_linear(self.encoders.size + actions.continuous_size + actions.mask_size, width)
        self.query = attention_linear(width, width)
        self.key = attention_linear(width, width)
        self.value = attention_linear(width, width)
        self.out = attention_linear(width, width)
        layers: list[nn.Module] = []
        for hidden in settings.widths:
            layers += [linear(width, hidden, sqrt(0.125 / hidden)), ACTIVATIONS[settings.activation]()]
            width = hidden
        self.layers = nn.Sequential(*layers)
        self.memory: Memory | None = None
        if design.memory_size:
            self.memory = Memory(width, design.memory_size)
            width = self.memory.size
        self.heads = value_heads(width + 1, signals)

    def forward(self, teams: Teams) -> tuple[Tensor, Tensor, Tensor | None]:
        """Evaluate B agents.

        Returns:
            Values of the agents' groups [B, S], baselines [B, S], and the memories [B / L, 2m] after each sequence's
            last row (None without memory).
        """
        seen, _ = self.encoders(teams.inputs)
        seeing = nn.functional.silu(self.seeing(seen))[teams.members]
        doing = nn.functional.silu(self.doing(torch.cat([seen, teams.actions], dim=1)))[teams.members[:, 1:]]
        both = torch.cat([seeing, torch.cat([seeing[:, :1], doing], dim=1)])
        present = teams.present.repeat(2, 1)
        x = self.layers(residual_attention(both, present, self.query, self.key, self.value, self.out))
        after = None
        if self.memory is not None:
            before = None if teams.memories is None else torch.cat(teams.memories.chunk(2, dim=1))
            x, after = self.memory(x, before, teams.sequence_length)
            after = torch.cat(after.chunk(2), dim=1)
        values, baselines = self.heads(torch.cat([x, teams.size.repeat(2, 1)], dim=1)).chunk(2)
        return values, baselines, after


class GroupActorCritic(FlatActor["_ActorAndGroupCritic"]):
    """Actor and critic with one flat parameter vector; see `headrace.stages.policy.network.actor_critic.TrainedActor`.

    Args:
        design: observations, actions, sizes, memory.
        signals: S, the number of reward signals.
        random: the generator that draws the initial weights, which are the same on any device.
        device: the device that holds the parameters, such as `cpu` or `cuda:0`.

    Raises:
        StageError: if an encoder does not fit its observation, or a custom network breaks its contract.
    """

    def __init__(self, design: PolicyDesign, signals: int, random: np.random.Generator, device: str = "cpu") -> None:
        super().__init__(seeded(random, lambda: _ActorAndGroupCritic(design, signals)), device)

    def evaluate(self, teams: Teams, /) -> tuple[Tensor, Tensor | None]:
        """Return values and baselines, concatenated [B, 2S], and memories [B / L, 2m] after each sequence, if any."""
        values, baselines, memories = self.module.critic(teams)
        return torch.cat([values, baselines], dim=1), memories


class _ActorAndGroupCritic(WithActor):
    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        self.actor = ActorNetwork(design)
        self.critic = GroupCritic(design, signals)


# A rollout's rows with their teammates: the group critic's input, both for evaluation and in minibatches.


class TeamRows:
    """N agents, each at one moment, with their teammates.

    Args:
        inputs: the agents' observations.
        actions: [N, P] the agents' actions.
        mates: the teammates, as indices among the same N.
        present: [N] true if the agent itself is present.
        largest: the number of members of the largest group so far.

    Attributes:
        device: the device that holds gathered teams.
        width: the number of members gathered for each team, including absent ones.
    """

    def __init__(self, inputs: Inputs, actions: Tensor, mates: Mates, present: NDArray[np.bool_], largest: int) -> None:
        self._inputs = inputs
        self._actions = actions
        self._members = np.concatenate([np.arange(len(present))[:, None], mates.numbers], axis=1)
        self._present = np.concatenate([present[:, None], mates.present], axis=1)
        self.device = inputs.vectors.device
        self.width = self._members.shape[1]
        self._size = (self._present.sum(1, keepdims=True) * (2.0 / largest) - 1.0).astype(np.float32)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._members)

    def teams(self, sequences: NDArray[np.int64], memories: Tensor | None = None) -> Teams:
        """Gather the teams of sequences of agents' rows [q, L] that start with memories [q, 2m]."""
        rows = sequences.reshape(-1)
        # An agent in several teams is encoded once.
        distinct, places = np.unique(self._members[rows], return_inverse=True)
        device, numbers, others = self.device, torch.from_numpy(distinct), tuple[Tensor, ...]()
        index = to_device(numbers, device)
        if self._inputs.others:
            others = gathered(self._inputs.others, numbers, device)
        return Teams(
            Inputs(self._inputs.vectors.index_select(0, index), others),
            self._actions.index_select(0, index),
            to_device(torch.from_numpy(places.reshape(len(rows), self.width)), device),
            to_device(torch.from_numpy(self._present[rows]), device),
            to_device(torch.from_numpy(self._size[rows]), device),
            memories,
            sequences.shape[1],
        )

    def of_minibatch(self, minibatch: Minibatch) -> Teams:
        """Gather the teams of a minibatch's inputs."""
        rows = minibatch.rows if minibatch.padded is None else minibatch.padded
        return self.teams(rows.numpy().reshape(-1, minibatch.inputs.sequence_length), minibatch.critic_memories)


# The members of a group at one moment, found by sorting. A moment is a tick of one actor. Teammates are members of the
# same group at the same moment. Axis letters: n members (a buffer's rows, or its trajectories at their ends); M
# teammates in the largest group.

NO_ACTOR = -1
"""The source assigned to rows from before a resume."""


@dataclass(frozen=True, slots=True)
class Mates:
    """The teammates of each of n members."""

    numbers: NDArray[np.int64]
    """[n, M] indices of each member's teammates, padded with the member's own index if it has fewer than M."""
    present: NDArray[np.bool_]
    """[n, M] true where the teammate exists."""


def mates_of(sources: NDArray[np.int64], group_ids: NDArray[np.int64], ticks: NDArray[np.int64]) -> Mates:
    """Find all members' teammates, which have the same source, group and tick. Group 0 stands for no group.

    Args:
        sources: [n] the actor incarnation that each member comes from; ticks are counted separately for each source.
        group_ids: [n] each member's group.
        ticks: [n] the tick of each member.
    """
    n = len(ticks)
    order = np.lexsort((ticks, group_ids, sources))
    begins = np.ones(n, np.bool_)
    begins[1:] = group_ids[order][1:] == 0
    for key in (sources, group_ids, ticks):
        ordered = key[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, n))
    group = np.cumsum(begins) - 1
    first, sizes = first[group][:, None], sizes[group][:, None]
    steps = np.arange(1, int(sizes.max(initial=1)))
    # A group's other members follow at distances 1, 2, …, wrapping around.
    places = first + (np.arange(n)[:, None] - first + steps) % sizes
    mates = Mates(np.empty((n, len(steps)), np.int64), np.empty((n, len(steps)), np.bool_))
    mates.present[order] = steps < sizes
    mates.numbers[order] = np.where(steps < sizes, order[places], order[:, None])
    return mates


def mates_in(buffer: RolloutBuffer, at_end: bool = False) -> Mates:
    """Find each row's teammates at the same moment or, with `at_end`, each trajectory's teammates at its end.

    A teammate whose row is not in the buffer counts as absent. Teammates' trajectories always close together.
    """
    trajectories, lengths = buffer.trajectories, buffer.trajectories["lengths"]
    if not buffer.grouped:
        n = len(lengths) if at_end else len(buffer)
        return Mates(np.empty((n, 0), np.int64), np.empty((n, 0), np.bool_))
    members = trajectories["sources"], trajectories["group_ids"]
    if at_end:
        return mates_of(*members, trajectories["next_ticks"])
    sources, group_ids = (column.repeat(lengths) for column in members)
    return mates_of(sources, group_ids, buffer.rows["ticks"])


def renumbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a buffer's state with moments renumbered in order of arrival, all from a source that no actor has.

    Ticks restart when a run is resumed. After renumbering, rows from before a resume are never teammates of later rows,
    and a resumed trainer has the same state as one that was never interrupted.

    Args:
        state: `RolloutBuffer.state_dict()` of a buffer with groups; not modified.
    """
    rows, trajectories = dict(state["rows"]), dict(state["trajectories"])
    sources = trajectories["sources"]
    rows["ticks"] = numbered(sources.repeat(trajectories["lengths"]), rows["ticks"])
    trajectories["next_ticks"] = numbered(sources, trajectories["next_ticks"])
    trajectories["sources"] = np.full_like(sources, NO_ACTOR)
    return {**state, "rows": rows, "trajectories": trajectories}
