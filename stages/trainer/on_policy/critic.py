"""The critic's values of an entire rollout: their form, and their evaluation by a critic with a memory.

With memory, each agent's trajectories are evaluated in order. Without memory, `ppo.evaluate_rows` evaluates all rows.

Axis letters: N rows of K trajectories, cut into Q sequences of at most L rows; S reward signals; m memory size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.specs import BehaviorSpec
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
    network: Any,
    rows: Any,
    finals: Any,
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
        network: the critic's network, whose `evaluate` takes what `sequences` of rows and finals returns.
        rows: the rows, with previous actions (`InputRows`, or POCA's `TeamRows`).
        finals: the trajectories' final observations, with previous actions, of the same class.
        lengths: [K] the number of rows of each trajectory.
        cuts: the positions of sequences.
        chains: which trajectory continues which.
        initial: [K, m] the critic's memory before each trajectory; used if the trajectory does not continue another
            one.
        block: the number of rows per forward pass.
    """
    device, after, values = initial.device, initial.clone(), None
    before = torch.zeros(len(cuts), initial.shape[1], device=device)

    def there(numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(device)

    def pieces(which: NDArray[np.int64], memories: Tensor) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yield consecutive pieces of trajectories: row numbers [q, 2^i], and the places of their agents' memories."""
        for number in range(-(-int(lengths[which].max()) // cuts.length)):
            going = np.flatnonzero(lengths[which] > number * cuts.length)
            sequences = cuts.first[which[going]] + number
            before[there(sequences)] = memories[there(going)]
            starts, sizes = cuts.starts[sequences].copy(), cuts.sizes[sequences]
            size = 1 << (cuts.length.bit_length() - 1)
            while size:
                some = np.flatnonzero(sizes & size)
                each = max(1, block // size)
                for at in range(0, len(some), each):
                    chosen = some[at : at + each]
                    yield starts[chosen][:, None] + np.arange(size), there(going[chosen])
                starts[some] += size
                size >>= 1

    with torch.no_grad():
        for which in chains.rounds:
            previous = chains.previous[which]
            memories = after[there(np.where(previous < 0, which, previous))]
            for numbers, agents in pieces(which, memories):
                found, memories[agents] = network.evaluate(rows.sequences(numbers, memories[agents]))
                if values is None:  # the first evaluation determines the number of signals
                    values = torch.empty(len(rows), found.shape[1], device=device)
                values[there(numbers.reshape(-1))] = found
            after[there(which)] = memories
        last, final_values = np.arange(len(finals))[:, None], list[Tensor]()
        for at in range(0, len(finals), block):
            final_values.append(network.evaluate(finals.sequences(last[at : at + block], after[at : at + block]))[0])
    assert values is not None, "there is at least one row"
    return CriticValues(values.cpu().double().numpy(), torch.cat(final_values).cpu().double().numpy(), before, after)
