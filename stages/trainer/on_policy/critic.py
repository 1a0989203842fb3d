"""The critic's values of an entire rollout: their form, and their evaluation by a critic with a memory.

With memory, each agent's trajectories are evaluated in order. Without memory, `ppo.evaluate_rows` evaluates all rows.

Axis letters: N rows of K trajectories, cut into Q sequences of at most L rows; S reward signals; m memory size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.network.layers import on_host
from headrace.stages.trainer.on_policy.rollout import SequenceCuts
from headrace.stages.trainer.trajectories import Chains

Floats = NDArray[np.float64]

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
