"""Replicas of a trainer, which learn together: the same inlet, the same chance, each a part of every minibatch.

All replicas hold the same rows and the same weights, and draw the same numbers. So they agree on everything without a
word, but for sums over rows: each computes those of its own part, and `Replicas.add_up` adds them. `joined_replicas`
joins processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.stages.errors import StageError

if TYPE_CHECKING:  # main and actors need no torch
    from torch import Tensor


class ReplicaLostError(StageError):
    """A replica does not take part any more: it has ended, or does not answer."""


@dataclass(frozen=True, slots=True)
class Part:
    """One replica's part of n rows that lie end to end (or of sequences, or of anything that is counted)."""

    rows: slice
    weight: float
    """Factor on the replica's sums: 1, or less where several replicas have the same part."""

    @property
    def size(self) -> int:
        """Number of its rows."""
        return int(self.rows.stop - self.rows.start)


class Replicas(ABC):
    """The replicas of one trainer, as one of them sees them.

    Attributes:
        rank: the number of this one, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> Part:
        """This replica's part of `count` rows; where they are fewer than the replicas, each has all of them."""
        if count < self.size:
            return Part(slice(0, count), 1.0 / self.size)
        return Part(slice(count * self.rank // self.size, count * (self.rank + 1) // self.size), 1.0)

    @abstractmethod
    def add_up(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all replicas, which are the same at each, to the bit.

        Raises:
            ReplicaLostError: if another replica takes no part.
        """

    def of_each(self, numbers: Tensor) -> Tensor:
        """What each replica has found [size, …], given these numbers of this one."""
        if self.size == 1:
            return numbers[None]
        found = numbers.new_zeros(self.size, *numbers.shape)
        found[self.rank] = numbers
        self.add_up(found)
        return found

    def gathered(self, part: Tensor, here: Part, count: int) -> Tensor:
        """All `count` rows, of which this replica has computed its part."""
        if self.size == 1:
            return part
        whole = part.new_zeros(count, *part.shape[1:])
        whole[here.rows] = part * here.weight
        self.add_up(whole)
        return whole


class _SingleTrainer(Replicas):
    """A trainer without replicas."""

    def add_up(self, *tensors: Tensor) -> None:
        """They are sums already."""


SINGLE_TRAINER = _SingleTrainer()
"""What a trainer without replicas has in their place."""
