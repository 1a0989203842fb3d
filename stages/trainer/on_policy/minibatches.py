"""A prepared rollout, as the update consumes it: reshuffled each epoch, and cut into minibatches.

`Rollout` shuffles rows. It gathers them once per epoch into one block; minibatches are fixed-shape views into the
block, made once per update. Only images and sets, which may be large, are gathered per minibatch. `SequenceRollout`
shuffles whole sequences, for a policy with memory. A sequence shorter than L is padded with copies of its last row;
results for padding never enter a loss.
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
    """A minibatch without memory on the CPU: views of its columns as arrays with rows last."""

    choices: Sequence[NDArray[np.int64]]
    """For each branch, the choices [R]."""
    continuous: Array
    """[C, R] raw continuous actions."""
    penalties: Array
    """[choices, R] added to logits."""
    old_log_probs: Array
    """[P, R] log-probabilities; see `Minibatch`."""
    advantages: Array
    """[1, R] or [P, R]; see `Minibatch`."""
    returns: Array
    """[S, R] value targets."""
    anchor: Array | None = None
    """[D, R] the anchor's action distributions; None without an anchor."""


class PackedColumns(NamedTuple):
    """A minibatch's columns, concatenated into one matrix per dtype."""

    floats: Tensor
    """[R, …] normalised vectors, and `Minibatch`'s columns from `continuous` to `returns`, and the anchor's."""
    choices: Tensor
    """[R, branches] int64 choices."""
    widths: tuple[int, ...]
    """The widths of the columns of `floats`."""


@dataclass(frozen=True)
class Minibatch:
    """R rows to learn from, with B = R inputs, or more if sequences are padded.

    Axis letters: C continuous actions, P columns of log-probabilities (1 for the joint action, else one per action
    dimension and branch), S reward signals, L rows per sequence, m memory size.
    """

    choices: tuple[Tensor, ...]
    """For each branch, the choices [R, 1] int64."""
    inputs: Inputs
    """[B, …] encoded, normalised observations; with memory also previous actions and the actor's memories."""
    continuous: Tensor
    """[R, C] raw continuous actions."""
    penalties: Tensor
    """[R, choices] added to logits: `MASK_PENALTY` where a choice was forbidden; width 0 without masks."""
    old_log_probs: Tensor
    """[R, P] log-probabilities under the policy before the update, or if not decoupled, the acting policy."""
    advantages: Tensor
    """[R, 1] normalised; if decoupled, [R, P], multiplied by the `importance_weights`."""
    returns: Tensor
    """[R, S] value targets."""
    rows: Tensor
    """[R] indices of the rows in the rollout, on the host."""
    real: Tensor | None = None
    """[R] indices of the rows among the B inputs; None without padding."""
    critic_memories: Tensor | None = None
    """[B / L, m] the critic's memory before each sequence; None without memory, or if shared with the actor."""
    padded: Tensor | None = None
    """[B] the rollout row of each input, on the host; None if the same as `rows`."""
    share: float = 1.0
    """Weight of means over these rows, if other replicas learn from other rows of the same minibatch."""
    together: Tensor | None = None
    """[…] indices of all replicas' rows, on the host; None if the same as `rows`."""
    block: PackedColumns | None = None
    """The block into which the columns are views; None for sequences."""
    anchor: Tensor | None = None
    """[R, D] the anchor's action distributions, from `anchor.described`; None without an anchor."""

    @classmethod
    def of_block(cls, block: PackedColumns, rows: Tensor, others: tuple[Tensor, ...] = ()) -> Minibatch:
        """Make a minibatch without memory from a block, its row indices, and its images and sets."""
        parts = torch.split(block.floats, list(block.widths), dim=1)
        vectors, continuous, penalties, log_probs, advantages, returns, *anchor = parts
        columns, inputs = (continuous, penalties, log_probs, advantages, returns), Inputs(vectors, others)
        return cls(_per_branch(block.choices), inputs, *columns, rows, block=block, anchor=next(iter(anchor), None))

    @classmethod
    def of_actions(cls, continuous: Array, penalties: Array, choices: Array, device: torch.device) -> Minibatch:
        """Make a minibatch with only actions [R, C], [R, branches] and penalties, to compute log-probabilities."""
        drawn, added = (to_device(torch.from_numpy(one.astype(np.float32)), device) for one in (continuous, penalties))
        chosen = to_device(torch.from_numpy(choices.astype(np.int64)), device)
        none = torch.empty(len(choices), 0, device=device)
        rows = torch.empty(0, dtype=torch.int64)
        return cls(_per_branch(chosen), Inputs(none), drawn, added, none, none, none, rows)

    @cached_property
    def arrays(self) -> MinibatchArrays:
        """The columns as arrays; made once, as a rollout reuses its minibatches in each epoch."""
        columns = self.continuous, self.penalties, self.old_log_probs, self.advantages, self.returns
        made = MinibatchArrays([chosen.numpy()[:, 0] for chosen in self.choices], *(one.numpy().T for one in columns))
        return made if self.anchor is None else made._replace(anchor=self.anchor.numpy().T)


class RolloutRows(Protocol):
    """A minibatch of any kind of rollout."""

    @property
    def rows(self) -> Tensor:
        """[R] indices of its rows in the rollout, on the host."""
        ...

    @property
    def share(self) -> float:
        """Weight of means over its rows, relative to all replicas' rows."""
        ...

    @property
    def together(self) -> Tensor | None:
        """[…] indices of all replicas' rows; None if the same as `rows`."""
        ...


AnyMinibatch = TypeVar("AnyMinibatch", bound=RolloutRows)
_StepInputs = TypeVar("_StepInputs", bound=RolloutRows, covariant=True)


class MinibatchSource(Protocol[_StepInputs]):
    """A rollout that is cut into new minibatches in each epoch."""

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[_StepInputs]]:
        """For each epoch, yield minibatches (or this replica's part of each) in a new random order."""
        ...


class Rollout:
    """N rows to learn from, on the device.

    Args:
        inputs: the rows; images and sets stay on the host until a minibatch needs them.
        targets: float columns [N, width]: `Minibatch`'s from `continuous` to `returns`, then `anchor`, if any.
        choices: [N, branches] discrete actions.
        advantages: [N] to normalise over each minibatch and multiply into the advantages column; None if that column is
            final.
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
        """The number of rows, N."""
        return len(self._floats)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[Minibatch]]:
        """For each epoch, yield floor(N / batch_size) minibatches in a new random order; the remainder is dropped."""
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
        """All N rows, in order."""
        minibatches = self._views(self._floats, self._choices, torch.arange(len(self)), batch_size)
        return map(self._with_others, minibatches) if self._others else minibatches

    def _views(self, floats: Tensor, choices: Tensor, rows: Tensor, batch_size: int) -> Iterator[Minibatch]:
        """Views of at most `batch_size` rows each, without images and sets."""
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
        targets: float columns [N, width]: `Minibatch`'s from `continuous` to `returns`, then `anchor`, if any.
        choices: [N, branches] discrete actions.
        cuts: the positions of the Q sequences.
        memories: [Q, m] the actor's memory before each sequence.
        critic_memories: [Q, m] the critic's memory before each sequence; None if shared with the actor.
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
        """The number of rows, N."""
        return len(self._inputs)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterator[Minibatch]]:
        """For each epoch, yield minibatches of whole sequences in a new random order; the remainder is dropped.

        A minibatch has as many sequences as make up `batch_size` rows with their padding, and at least one.
        """
        each = max(1, batch_size // self._cuts.length)
        for _ in range(count):
            order = random.permutation(len(self._cuts))
            yield (self._part(order[at : at + each], replicas) for at in range(0, len(order) - each + 1, each))

    def in_order(self, batch_size: int) -> Iterator[Minibatch]:
        """All N rows, in order, in minibatches of whole sequences."""
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
    """Standardise each row of values [k, R] by its mean and sample standard deviation, as PPO usually does."""
    if values.shape[1] < 2:
        return values
    deviation, mean = torch.std_mean(values, dim=1, keepdim=True)
    return (values - mean) / (deviation + 1e-8)


def _packed(columns: list[Array], device: torch.device) -> tuple[Tensor, list[int]]:
    """Concatenate columns into one float matrix on the device; return it and the width of each column."""
    packed = np.concatenate([column.astype(np.float32, copy=False) for column in columns], axis=1)
    return to_device(torch.from_numpy(packed), device), [column.shape[1] for column in columns]


def _per_branch(choices: Tensor) -> tuple[Tensor, ...]:
    return torch.split(choices, 1, dim=1) if choices.shape[1] else ()
