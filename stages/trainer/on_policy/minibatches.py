"""Prepared rollouts, which are reshuffled in each epoch of an update and then cut into minibatches.

`Rollout` shuffles rows. Once per epoch, it gathers them into one block. Minibatches are fixed-shape views into that
block, and are made once per update. Only images and sets, which may be large, are gathered per minibatch.
`SequenceRollout` shuffles complete sequences, for a policy with memory. A sequence shorter than L is padded with copies
of its last row. Padding never affects a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array
from headrace.stages.policy.network.layers import Inputs, to_device
from headrace.stages.trainer.intake import InputRows, gather_others
from headrace.stages.trainer.on_policy.rollout_buffer import SequenceCuts
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas


class MinibatchArrays(NamedTuple):
    """A minibatch without memory on the CPU. Its columns are array views with rows last."""

    choices: Sequence[NDArray[np.int64]]
    """For each branch, the choices [R]."""
    continuous: Array
    """[C, R] raw continuous actions."""
    penalties: Array
    """[choices, R] penalties added to logits; see `Minibatch`."""
    old_log_probs: Array
    """[P, R] log-probabilities; see `Minibatch`."""
    advantages: Array
    """[1, R] or [P, R] advantages; see `Minibatch`."""
    returns: Array
    """[S, R] value targets."""
    anchor: Array | None = None
    """[D, R] the anchor's action distributions; None without an anchor."""


class PackedColumns(NamedTuple):
    """A minibatch's columns, concatenated into one matrix per dtype."""

    floats: Tensor
    """[R, …] normalised vectors, `Minibatch`'s columns from `continuous` to `returns`, and the anchor's columns."""
    choices: Tensor
    """[R, branches] int64 choices."""
    widths: tuple[int, ...]
    """Width of each column in `floats`."""


@dataclass(frozen=True)
class Minibatch:
    """R rows to learn from, with B inputs: B = R, or more if sequences are padded.

    Axis letters: C continuous actions, P columns of log-probabilities (one for the joint action, or one per action
    dimension and branch), S reward signals, L rows per sequence, m memory size.
    """

    choices: tuple[Tensor, ...]
    """For each branch, the choices [R, 1] int64."""
    inputs: Inputs
    """[B, …] encoded, normalised observations; with memory, also previous actions and the actor's memories."""
    continuous: Tensor
    """[R, C] raw continuous actions."""
    penalties: Tensor
    """[R, choices] penalties added to logits: `MASK_PENALTY` for forbidden choices, else 0; width 0 without masks."""
    old_log_probs: Tensor
    """[R, P] log-probabilities under the policy before the update; if not decoupled, under the policy that acted."""
    advantages: Tensor
    """[R, 1] normalised advantages; if decoupled, [R, P], multiplied by the `importance_weights`."""
    returns: Tensor
    """[R, S] value targets."""
    rows: Tensor
    """[R] indices of the rows in the rollout, on the host."""
    real: Tensor | None = None
    """[R] indices of the real rows among the B inputs; None without padding."""
    critic_memories: Tensor | None = None
    """[B / L, m] the critic's memory before each sequence; None without memory, or if it is the actor's."""
    padded: Tensor | None = None
    """[B] the rollout row of each input, on the host; None if equal to `rows`."""
    share: float = 1.0
    """Weight of means over these rows; below 1 if other replicas have different rows of the same minibatch."""
    together: Tensor | None = None
    """[…] indices of all replicas' rows, on the host; None if equal to `rows`."""
    block: PackedColumns | None = None
    """The block that the columns are views of; None for sequences."""
    anchor: Tensor | None = None
    """[R, D] the anchor's action distributions, from `anchor.described`; None without an anchor."""

    @classmethod
    def of_block(cls, block: PackedColumns, rows: Tensor, others: tuple[Tensor, ...] = ()) -> Minibatch:
        """Make a minibatch without memory from a block, the indices of its rows, and its images and sets."""
        parts = torch.split(block.floats, list(block.widths), dim=1)
        vectors, continuous, penalties, log_probs, advantages, returns, *anchor = parts
        columns, inputs = (continuous, penalties, log_probs, advantages, returns), Inputs(vectors, others)
        return cls(_per_branch(block.choices), inputs, *columns, rows, block=block, anchor=next(iter(anchor), None))

    @classmethod
    def of_actions(cls, continuous: Array, penalties: Array, choices: Array, device: torch.device) -> Minibatch:
        """Make a minibatch of continuous actions [R, C], choices [R, branches] and penalties, for log-probabilities."""
        drawn, added = (to_device(torch.from_numpy(one.astype(np.float32)), device) for one in (continuous, penalties))
        chosen = to_device(torch.from_numpy(choices.astype(np.int64)), device)
        none = torch.empty(len(choices), 0, device=device)
        rows = torch.empty(0, dtype=torch.int64)
        return cls(_per_branch(chosen), Inputs(none), drawn, added, none, none, none, rows)

    @cached_property
    def arrays(self) -> MinibatchArrays:
        """The columns as arrays. They are made only once, because each epoch reuses the minibatches."""
        columns = self.continuous, self.penalties, self.old_log_probs, self.advantages, self.returns
        made = MinibatchArrays([chosen.numpy()[:, 0] for chosen in self.choices], *(one.numpy().T for one in columns))
        return made if self.anchor is None else made._replace(anchor=self.anchor.numpy().T)


class RolloutRows(Protocol):
    """A minibatch from any kind of rollout."""

    @property
    def rows(self) -> Tensor:
        """[R] indices of the minibatch's rows in the rollout, on the host."""
        ...

    @property
    def share(self) -> float:
        """Weight of means over the minibatch's rows, relative to all replicas' rows."""
        ...

    @property
    def together(self) -> Tensor | None:
        """[…] indices of all replicas' rows; None if equal to `rows`."""
        ...


AnyMinibatch = TypeVar("AnyMinibatch", bound=RolloutRows)
_StepInputs = TypeVar("_StepInputs", bound=RolloutRows, covariant=True)


class MinibatchSource(Protocol[_StepInputs]):
    """A rollout that is cut into different minibatches in each epoch."""

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[_StepInputs]]:
        """Yield, for each epoch, minibatches (or this replica's part of each) in a new random order."""
        ...


class Rollout:
    """N rows to learn from, on the device.

    Args:
        inputs: the inputs; images and sets stay on the host until a minibatch needs them.
        targets: float columns [N, width]: `Minibatch`'s columns from `continuous` to `returns`, followed by `anchor` if
            there is one.
        choices: [N, branches] discrete actions.
        advantages: [N] advantages to normalise over each minibatch and multiply into the advantages column; None if
            that column is already final.
    """

    def __init__(
        self, inputs: InputRows, targets: list[Array], choices: Array, advantages: Array | None = None
    ) -> None:
        packed, widths = _packed(targets, inputs.device)
        self._widths = inputs.vectors.shape[1], *widths
        self._floats = torch.cat([inputs.vectors, packed], dim=1)
        self._choices = to_device(torch.from_numpy(choices.astype(np.int64)), inputs.device)
        self._others = inputs.others
        self._advantages: Tensor | None = None
        if advantages is not None:
            self._advantages = to_device(torch.from_numpy(advantages.astype(np.float32)), inputs.device)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._floats)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[Minibatch]]:
        """Yield floor(N / batch_size) minibatches per epoch, in a new random order; the remaining rows are dropped."""
        number, part = len(self) // batch_size, replicas.part(batch_size)
        floats = torch.empty((number * part.size, self._floats.shape[1]), device=self._floats.device)
        choices = torch.empty(
            (number * part.size, self._choices.shape[1]), dtype=torch.int64, device=self._floats.device
        )
        together = torch.empty((number, batch_size), dtype=torch.int64)
        rows = torch.empty(number * part.size, dtype=torch.int64)
        minibatches = list(self._views(floats, choices, rows, part.size))
        if replicas.size > 1:
            share = part.size * part.weight / batch_size
            minibatches = [
                replace(one, share=share, together=whole) for one, whole in zip(minibatches, together, strict=True)
            ]
        for _ in range(count):
            shuffled = random.permutation(len(self))[: number * batch_size]
            together.copy_(torch.from_numpy(shuffled).view(number, batch_size))
            rows.view(number, part.size).copy_(together[:, part.rows])
            order = to_device(rows, self._floats.device)
            torch.index_select(self._floats, 0, order, out=floats)
            torch.index_select(self._choices, 0, order, out=choices)
            if self._advantages is not None:
                of_all = self._advantages[to_device(together, order.device)]
                column = torch.split(floats, list(self._widths), dim=1)[4]
                column.mul_(standardised(of_all)[:, part.rows].reshape(-1, 1))
            yield map(self._with_others, minibatches) if self._others else minibatches

    def in_order(self, batch_size: int) -> Iterator[Minibatch]:
        """Yield all N rows in order, in minibatches of at most `batch_size` rows."""
        minibatches = self._views(self._floats, self._choices, torch.arange(len(self)), batch_size)
        return map(self._with_others, minibatches) if self._others else minibatches

    def _views(self, floats: Tensor, choices: Tensor, rows: Tensor, batch_size: int) -> Iterator[Minibatch]:
        """Yield views of at most `batch_size` rows each, without images and sets."""
        for part, chosen, numbers in zip(
            torch.split(floats, batch_size),
            torch.split(choices, batch_size),
            torch.split(rows, batch_size),
            strict=True,
        ):
            yield Minibatch.of_block(PackedColumns(part, chosen, self._widths), numbers)

    def _with_others(self, minibatch: Minibatch) -> Minibatch:
        others = gather_others(self._others, minibatch.rows, self._floats.device)
        return replace(minibatch, inputs=minibatch.inputs._replace(others=others))


class SequenceRollout:
    """N rows in Q sequences to learn from, on the device.

    Args:
        inputs: the N rows, with previous actions.
        targets: float columns [N, width]: `Minibatch`'s columns from `continuous` to `returns`, followed by `anchor` if
            there is one.
        choices: [N, branches] discrete actions.
        cuts: the positions of the Q sequences.
        memories: [Q, m] the actor's memory before each sequence.
        critic_memories: [Q, m] the critic's memory before each sequence; None if actor and critic share their memory.
    """

    def __init__(
        self,
        inputs: InputRows,
        targets: list[Array],
        choices: Array,
        cuts: SequenceCuts,
        memories: Tensor,
        critic_memories: Tensor | None,
    ) -> None:
        self._inputs = inputs
        self._device = inputs.device
        self._targets, self._widths = _packed(targets, self._device)
        self._choices = to_device(torch.from_numpy(choices.astype(np.int64)), self._device)
        self._cuts = cuts
        self._memories = memories
        self._critic_memories = critic_memories

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._inputs)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterator[Minibatch]]:
        """Yield each epoch's minibatches of sequences, in a new random order; the remaining sequences are dropped.

        Each minibatch has enough sequences for `batch_size` rows including padding, and at least one sequence.
        """
        each = max(1, batch_size // self._cuts.length)
        for _ in range(count):
            order = random.permutation(len(self._cuts))
            yield (self._part(order[at : at + each], replicas) for at in range(0, len(order) - each + 1, each))

    def in_order(self, batch_size: int) -> Iterator[Minibatch]:
        """Yield all N rows in order, in minibatches of complete sequences."""
        numbers, each = np.arange(len(self._cuts)), max(1, batch_size // self._cuts.length)
        return (self._minibatch(numbers[at : at + each]) for at in range(0, len(numbers), each))

    def _part(self, which: NDArray[np.int64], replicas: Replicas) -> Minibatch:
        if replicas.size == 1:
            return self._minibatch(which)
        part = replicas.part(len(which))
        padded, real = self._cuts.padded(which)
        together = torch.from_numpy(padded.reshape(-1)[real])
        own = self._minibatch(which[part.rows])
        return replace(own, share=len(own.rows) * part.weight / len(together), together=together)

    def _minibatch(self, which: NDArray[np.int64]) -> Minibatch:
        padded, real = self._cuts.padded(which)
        rows, chosen = torch.from_numpy(padded.reshape(-1)[real]), to_device(torch.from_numpy(which), self._device)
        there = to_device(rows, self._device)
        targets = torch.split(self._targets.index_select(0, there), self._widths, dim=1)
        continuous, penalties, old_log_probs, advantages, returns, *anchor = targets
        return Minibatch(
            _per_branch(self._choices.index_select(0, there)),
            self._inputs.sequences(padded, self._memories.index_select(0, chosen)),
            continuous,
            penalties,
            old_log_probs,
            advantages,
            returns,
            rows,
            to_device(torch.from_numpy(real), self._device),
            None if self._critic_memories is None else self._critic_memories.index_select(0, chosen),
            torch.from_numpy(padded.reshape(-1)),
            anchor=next(iter(anchor), None),
        )


def standardised(values: Tensor) -> Tensor:
    """Standardise each row of values [k, R] by its mean and sample standard deviation, as usual in PPO."""
    if values.shape[1] < 2:
        return values
    deviation, mean = torch.std_mean(values, dim=1, keepdim=True)
    return (values - mean) / (deviation + 1e-8)


def _packed(columns: list[Array], device: torch.device) -> tuple[Tensor, list[int]]:
    """Concatenate columns into one float matrix on the device; return the matrix and the width of each column."""
    packed = np.concatenate([column.astype(np.float32, copy=False) for column in columns], axis=1)
    return to_device(torch.from_numpy(packed), device), [column.shape[1] for column in columns]


def _per_branch(choices: Tensor) -> tuple[Tensor, ...]:
    return torch.split(choices, 1, dim=1) if choices.shape[1] else ()
