"""Computations over an entire rollout: the critic's values, the rows' weights, and statistics of probability ratios.

Values are computed in blocks of rows; with memory, each agent's trajectories are evaluated in order.

Axis letters: N rows of K trajectories, cut into Q sequences of at most L rows; S reward signals; m memory size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.network.layers import Inputs, on_host
from headrace.stages.policy.network.protocol import ActorCriticNetwork
from headrace.stages.trainer.intake import InputRows
from headrace.stages.trainer.on_policy.rollout_buffer import SequenceCuts
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas
from headrace.stages.trainer.trajectories import Chains

_ROWS = 512
"""Number of rows per forward pass. It limits memory use, and the rows fit the processor's cache."""
_ELEMENTS = 2**22
"""Number of elements of images and sets per forward pass, because their encoders need many times as much memory."""
_FEWEST_ROWS = 16


def rows_per_pass(spec: BehaviorSpec) -> int:
    """Return the number of a behaviour's rows to evaluate in one forward pass without gradients."""
    encoded = (one for one in spec.observations if not OBSERVATION_KINDS[one.kind].flat)
    elements = sum(observation.size for observation in encoded)
    return max(_FEWEST_ROWS, min(_ROWS, _ELEMENTS // max(1, elements)))


_Input = TypeVar("_Input")
_Gathered = TypeVar("_Gathered", covariant=True)
_Judged = TypeVar("_Judged", contravariant=True)


class SequenceSource(Protocol[_Gathered]):
    """N rows from which sequences can be gathered."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """The device that holds gathered sequences."""
        ...

    def sequences(self, rows: NDArray[np.int64], memories: Tensor) -> _Gathered:
        """Gather sequences of rows [q, L] that start with the memories [q, m]."""
        ...


class Critic(Protocol[_Judged]):
    """A network that evaluates gathered sequences."""

    def evaluate(self, inputs: _Judged, /) -> tuple[Tensor, Tensor | None]:
        """Return values [B, S], and the memories [B / L, m] after each sequence's last row (None without memory)."""
        ...


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
    network: ActorCriticNetwork,
    rows: InputRows,
    finals: InputRows,
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
    n, values, of_actor = len(rows), [], []
    vectors = torch.cat([rows.vectors, finals.vectors])
    here = replicas.part(len(vectors))
    with torch.no_grad():
        for at in range(here.rows.start, here.rows.stop, block):
            end = min(at + block, here.rows.stop)
            others = tuple(
                _joined(row[at:end], final[max(0, at - n) : max(0, end - n)]).to(vectors.device)
                for row, final in zip(rows.others, finals.others, strict=True)
            )
            inputs = Inputs(vectors[at:end], others)
            if heads:
                acted, judged = network(inputs)
                of_actor.append(acted)
            else:
                judged = network.evaluate(inputs)[0]
            values.append(judged)
    both = on_host(replicas.gathered(torch.cat(values), here, len(vectors)))
    return CriticValues(both[:n], both[n:], heads=torch.cat(of_actor)[:n] if heads else None)


def _joined(rows: Tensor, finals: Tensor) -> Tensor:
    return torch.cat([rows, finals]) if len(finals) else rows


def evaluate_sequences(
    network: Critic[_Input],
    rows: SequenceSource[_Input],
    finals: SequenceSource[_Input],
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
        network: the critic's network.
        rows: the rows, with previous actions.
        finals: the trajectories' final observations, with previous actions.
        lengths: [K] the number of rows of each trajectory.
        cuts: the positions of sequences.
        chains: which trajectory continues which.
        initial: [K, m] the critic's memory before each trajectory; used if the trajectory does not continue another
            one.
        block: the number of rows per forward pass.
    """
    walk = _Walk(network, rows, cuts, initial.shape[1], block)
    after = initial.clone()
    with torch.no_grad():
        for which in chains.rounds:
            previous = chains.previous[which]
            memories = after[torch.from_numpy(np.where(previous < 0, which, previous)).to(after.device)]
            walk.through(which, lengths[which], memories)
            after[torch.from_numpy(which).to(after.device)] = memories
        numbers = np.arange(len(finals))[:, None]
        final_values = [
            network.evaluate(finals.sequences(numbers[at : at + block], after[at : at + block]))[0]
            for at in range(0, len(finals), block)
        ]
    assert walk.values is not None, "there is at least one row"
    return CriticValues(on_host(walk.values), on_host(torch.cat(final_values)), walk.memories, after)


class _Walk(Generic[_Input]):
    """Evaluates trajectories in order, and keeps the values of rows and the memories before sequences."""

    def __init__(
        self, network: Critic[_Input], rows: SequenceSource[_Input], cuts: SequenceCuts, memory_size: int, block: int
    ) -> None:
        self._network = network
        self._rows = rows
        self._cuts = cuts
        self._block = block
        self.values: Tensor | None = None
        """[N, S] values of the rows; None until the first evaluation, which determines S."""
        self.memories = torch.zeros(len(cuts), memory_size, device=rows.device)

    def through(self, which: NDArray[np.int64], lengths: NDArray[np.int64], memories: Tensor) -> None:
        """Evaluate trajectories of `lengths` [k] rows, and advance their `memories` [k, m] in place."""
        length = self._cuts.length
        for number in range(-(-int(lengths.max()) // length)):
            there = np.flatnonzero(lengths > number * length)
            sequences = self._cuts.first[which[there]] + number
            self.memories[self._tensor(sequences)] = memories[self._tensor(there)]
            starts, sizes = self._cuts.starts[sequences].copy(), self._cuts.sizes[sequences]
            piece = 1 << (length.bit_length() - 1)
            while piece:
                some = np.flatnonzero(sizes & piece)
                each = max(1, self._block // piece)
                for at in range(0, len(some), each):
                    self._evaluate(starts[some[at : at + each]], piece, there[some[at : at + each]], memories)
                starts[some] += piece
                piece >>= 1

    def _evaluate(self, starts: NDArray[np.int64], size: int, who: NDArray[np.int64], memories: Tensor) -> None:
        rows, places = starts[:, None] + np.arange(size), self._tensor(who)
        values, after = self._network.evaluate(self._rows.sequences(rows, memories[places]))
        assert after is not None, "the network has a memory"
        memories[places] = after
        if self.values is None:
            self.values = torch.empty(len(self._rows), values.shape[1], device=values.device)
        self.values[self._tensor(rows.reshape(-1))] = values

    def _tensor(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self.memories.device)


# Generalised advantage estimation over packed trajectories.


Floats = NDArray[np.float64]


# Decoupled PPO separates the policy that the clip is centred on from the policy that acted. Hilton, Cobbe & Schulman
# (2021), "Batch size-invariance for policy optimization". PPO's old policy has two purposes. The clip around the old
# policy bounds the size of an update, which requires the policy before the update. The ratio to the old policy corrects
# for actions that another policy drew, which requires the policy that drew them. The two policies differ if rows arrive
# late, or if the normaliser has changed since. With π_now the policy before the update and r = π / π_now, an advantage
# A counts as min(π_now / π_acted, 1) · min(r A, clip(r, 1 - ε, 1 + ε) A). The paper truncates the weight at 100. Here
# it is truncated at 1, so a few rows can't outweigh the others. Rows by π_now itself have weight 1, as in plain PPO.
# Axis letters: N rows; P columns of log-probabilities.


def importance_weights(current: NDArray[np.float32], acted: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return min(π_now / π_acted, 1) [N, P], given log-probabilities [N, P] under the current and the acting policy."""
    weights: NDArray[np.float32] = np.exp(np.minimum(current - acted, 0.0))
    return weights


# How far an update has moved the policy, measured by the probability ratios of an epoch's minibatches. These are the
# loss's ratios, r = π / π_old, each computed before its minibatch's gradient step. Only their logarithms are kept, and
# they are measured together at the end of an epoch.

TOLERANCE = 1.5
"""An update ends its epochs when the approximate KL exceeds `target_kl` times this factor, as in Stable-Baselines3."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Measures of the policy's change over one epoch's minibatches."""

    approximate_kl: float
    """Mean over actions of r - 1 - log r, Schulman's estimator k3 of KL(π_old, π), which is never negative."""
    clip_fraction: float
    """Fraction of the ratios that differ from 1 by more than ε."""
    least_ratio: float
    greatest_ratio: float

    def named(self) -> dict[str, float]:
        """Return the statistics, keyed by name."""
        return {
            "Approximate KL": self.approximate_kl,
            "Clip Fraction": self.clip_fraction,
            "Ratio Min": self.least_ratio,
            "Ratio Max": self.greatest_ratio,
        }

    def beyond(self, target_kl: float | None) -> bool:
        """Return True if the policy has changed so much that the update must end its epochs."""
        return target_kl is not None and self.approximate_kl > TOLERANCE * target_kl


def measured(log_ratios: Sequence[Tensor], shares: Sequence[float], epsilon: float, replicas: Replicas) -> Tensor:
    """Measure an epoch on the device; return [replicas, 4], in the order of `PolicyChange`, not yet combined.

    Args:
        log_ratios: log-ratios [R, P] of each minibatch, without gradient; R may differ between minibatches.
        shares: the weight of each minibatch's mean, because other replicas may have different rows of the same
            minibatch.
        epsilon: the clip range.
        replicas: the replicas that have the other rows.
    """
    rows = torch.cat(list(log_ratios))
    sizes = [len(each) for each in log_ratios]
    each_row = np.asarray(shares) / (len(sizes) * np.asarray(sizes))
    weights = torch.from_numpy(np.repeat(each_row, sizes).astype(np.float32)).to(rows)
    beyond = torch.expm1(rows)
    joint, beyond_joint = rows, beyond
    if rows.shape[1] > 1:
        joint = rows.sum(dim=1, keepdim=True)
        beyond_joint = torch.expm1(joint)
    kl = weights @ (beyond_joint - joint)[:, 0]
    clipped = weights @ (beyond.abs() > epsilon).to(rows).mean(dim=1)
    return replicas.of_each(torch.stack([kl, clipped, *(1.0 + end for end in torch.aminmax(beyond))]))


def change_of(found: Tensor) -> PolicyChange:
    """Combine the `measured` results of all replicas."""
    kl, clipped, least, greatest = found.cpu().numpy().astype(np.float64).T
    return PolicyChange(float(kl.sum()), float(clipped.sum()), float(least.min()), float(greatest.max()))
