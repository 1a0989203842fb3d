"""The critic's values over a whole rollout: in blocks of rows, or with memory in the order of trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queues.specs import BehaviorSpec
from stages.policy.network.inputs import Inputs
from stages.policy.network.protocol import ActorCriticNetwork
from stages.trainer.agent_table import Chains
from stages.trainer.on_policy.input_rows import InputRows
from stages.trainer.on_policy.sequences import Cuts

_ROWS = 4096
"""Rows per forward pass: bounds memory, and stays in the processor's cache."""

_ELEMENTS = 2**22
"""Elements of images and sets per forward pass, whose encoders need many times as much memory."""

_FEWEST_ROWS = 16


def rows_per_pass(spec: BehaviorSpec) -> int:
    """How many rows of a behaviour to compute at a time where there is no need to keep gradients."""
    elements = sum(observation.size for observation in spec.observations if observation.kind != "vector")
    return max(_FEWEST_ROWS, min(_ROWS, _ELEMENTS // max(1, elements)))


_Input = TypeVar("_Input")
_Gathered = TypeVar("_Gathered", covariant=True)
_Judged = TypeVar("_Judged", contravariant=True)


class Sequences(Protocol[_Gathered]):
    """N rows, of which sequences can be gathered."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where what is gathered lies."""
        ...

    def sequences(self, rows: NDArray[np.int64], memories: Tensor) -> _Gathered:
        """Sequences of rows [q, L] from memories [q, m]."""
        ...


class Critic(Protocol[_Judged]):
    """What judges them."""

    def evaluate(self, inputs: _Judged, /) -> tuple[Tensor, Tensor | None]:
        """Values [B, S], and memories [B / L, m] after the last row of each sequence (None without)."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What the critic said of N rows, of what was observed after the last row of K trajectories, and on the way."""

    values: NDArray[np.float64]
    """[N, S]"""
    final_values: NDArray[np.float64]
    """[K, S]"""
    memories: Tensor | None = None
    """[Q, m] what it remembered before each sequence; None without memory."""
    memories_after: Tensor | None = None
    """[K, m] what it remembered after each trajectory's last row."""


def evaluate_rows(network: ActorCriticNetwork, rows: InputRows, finals: InputRows, block: int) -> Evaluation:
    """Without memory: all rows and final observations, `block` at a time."""
    n, values = len(rows), []
    vectors = torch.cat([rows.vectors, finals.vectors])
    with torch.no_grad():
        for at in range(0, len(vectors), block):
            others = tuple(
                torch.cat([row[at : at + block], final[max(0, at - n) : max(0, at + block - n)]]).to(vectors.device)
                for row, final in zip(rows.others, finals.others, strict=True)
            )
            values.append(network.evaluate(Inputs(vectors[at : at + block], others))[0])
    both = _on_host(torch.cat(values))
    return Evaluation(both[:n], both[n:])


def evaluate_sequences(
    network: Critic[_Input],
    rows: Sequences[_Input],
    finals: Sequences[_Input],
    lengths: NDArray[np.int64],
    cuts: Cuts,
    chains: Chains,
    initial: Tensor,
    block: int,
) -> Evaluation:
    """With memory: trajectory after trajectory of each agent, all agents side by side.

    Nothing is padded on the way, as the memory after a sequence has to be the one after its last row: what is left of
    sequences is worked off in pieces of 2^i rows, so that a few passes do for sequences of all sizes.

    Args:
        network: whose critic it is.
        rows: the rows, with previous actions.
        finals: the same of what was observed after each trajectory.
        lengths: [K] rows of each trajectory.
        cuts: where sequences lie.
        chains: which trajectory continues which.
        initial: [K, m] what the critic remembered before each trajectory that continues none.
        block: rows per forward pass.
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
    return Evaluation(_on_host(walk.values), _on_host(torch.cat(final_values)), walk.memories, after)


class _Walk(Generic[_Input]):
    """Goes through trajectories and notes values, and memories before sequences."""

    def __init__(
        self, network: Critic[_Input], rows: Sequences[_Input], cuts: Cuts, memory_size: int, block: int
    ) -> None:
        self._network = network
        self._rows = rows
        self._cuts = cuts
        self._block = block
        self.values: Tensor | None = None
        """[N, S]; known to have that shape once something was evaluated."""
        self.memories = torch.zeros(len(cuts), memory_size, device=rows.device)

    def through(self, which: NDArray[np.int64], lengths: NDArray[np.int64], memories: Tensor) -> None:
        """Walk through trajectories of `lengths` [k] from memories [k, m], which become those after them."""
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


def _on_host(values: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.cpu().numpy().astype(np.float64)
    return found
