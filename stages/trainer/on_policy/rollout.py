"""An update's rows with their targets, cut into different minibatches in each epoch.

Once per epoch, `Rollout` gathers the rows into one block in a new order. Minibatches are fixed-shape views into that
block, and are made once per update. Only images and sets, which may be large, are gathered per minibatch. For a policy
with memory, complete sequences are shuffled instead. A sequence shorter than L is padded with copies of its last row.
Padding never affects a loss.

Axis letters: N rows in Q sequences of at most L rows; R rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array
from headrace.stages.policy.network.layers import Inputs, gathered, to_device
from headrace.stages.trainer.on_policy.trainer import gathered_sequences
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas
from headrace.stages.trainer.trajectories import SequenceCuts

_NO_ROWS = torch.empty(0, dtype=torch.int64)


class MinibatchArrays(NamedTuple):
    """The columns of a minibatch without memory on the CPU, as array views with rows last; see `Minibatch`."""

    choices: Sequence[NDArray[np.int64]]
    """For each branch, the choices [R]."""
    continuous: Array
    penalties: Array
    old_log_probs: Array
    advantages: Array
    returns: Array
    anchor: Array | None = None


class PackedColumns(NamedTuple):
    """The columns of rows, concatenated into one matrix per dtype."""

    floats: Tensor
    """[R, …] normalised vectors, and the float columns of `Minibatch`."""
    choices: Tensor
    """[R, branches] int64 choices."""
    widths: tuple[tuple[str, int], ...]
    """Name and width of each column in `floats`, in order; the first is `vectors`."""


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
    rows: Tensor = _NO_ROWS
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
    """The block that the columns are views of."""
    anchor: Tensor | None = None
    """[R, D] the anchor's action distributions, from `anchor.described`; None without an anchor."""
    teams: Any = None
    """[B, …] the inputs' teams, for a critic that evaluates groups (`poca.Teams`); None for other critics."""
    old_baselines: Tensor | None = None
    """[R, S] that critic's baselines before the update; None for other critics."""

    @classmethod
    def of_block(cls, block: PackedColumns, others: tuple[Tensor, ...] = (), **more: Any) -> Minibatch:
        """Make a minibatch from a block, its images and sets, and further fields."""
        names, widths = zip(*block.widths, strict=True)
        columns = dict(zip(names, torch.split(block.floats, list(widths), dim=1), strict=True))
        inputs = Inputs(columns.pop("vectors"), others)
        return cls(block.choices.unsqueeze(2).unbind(1), **{"inputs": inputs, **columns, "block": block, **more})

    @cached_property
    def arrays(self) -> MinibatchArrays:
        """The columns as arrays. They are made only once, because each epoch reuses the minibatches."""
        columns = self.continuous, self.penalties, self.old_log_probs, self.advantages, self.returns
        made = MinibatchArrays([chosen.numpy()[:, 0] for chosen in self.choices], *(one.numpy().T for one in columns))
        return made if self.anchor is None else made._replace(anchor=self.anchor.numpy().T)


class Rollout:
    """N rows to learn from, on the device; for a policy with memory, in Q sequences.

    Args:
        inputs: the inputs, with previous actions if there is a memory; images and sets stay on the host until a
            minibatch needs them.
        columns: float columns [N, width], named as in `Minibatch`.
        choices: [N, branches] discrete actions.
        advantages: [N] advantages to normalise over each minibatch and multiply into the advantages column; None if
            that column is already final. Not supported for sequences.
        cuts: the positions of the Q sequences; None without memory.
        memories: [Q, m] the actor's memory before each sequence.
        critic_memories: [Q, m] the critic's memory before each sequence; None if actor and critic share their memory.
        teams: returns the teams of a minibatch's inputs, for a critic that evaluates groups.
    """

    def __init__(
        self,
        inputs: Inputs,
        columns: Mapping[str, Array],
        choices: Array,
        advantages: Array | None = None,
        cuts: SequenceCuts | None = None,
        memories: Tensor | None = None,
        critic_memories: Tensor | None = None,
        teams: Callable[[Minibatch], Any] | None = None,
    ) -> None:
        self._inputs, self._cuts, self._teams = inputs, cuts, teams
        self._memories, self._critic_memories = memories, critic_memories
        self._device = device = inputs.vectors.device
        floats = np.concatenate([column.astype(np.float32, copy=False) for column in columns.values()], axis=1)
        widths = ("vectors", inputs.vectors.shape[1]), *((name, column.shape[1]) for name, column in columns.items())
        packed = torch.cat([inputs.vectors, to_device(torch.from_numpy(floats), device)], dim=1)
        self.block = PackedColumns(packed, to_device(torch.from_numpy(choices.astype(np.int64)), device), widths)
        """All N rows in order, without images and sets."""
        self._advantages: Tensor | None = None
        if advantages is not None:
            self._advantages = to_device(torch.from_numpy(advantages.astype(np.float32)), device)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[Minibatch]]:
        """Yield, for each epoch, minibatches (or this replica's part of each) in a new random order.

        Each has `batch_size` rows. With memory, each has enough sequences for `batch_size` rows including padding, and
        at least one sequence. The remaining rows or sequences are dropped.
        """
        if self._cuts is not None:
            per_batch = max(1, batch_size // self._cuts.length)
            for _ in range(count):
                parts = torch.split(torch.from_numpy(random.permutation(len(self._cuts))), per_batch)
                sequences = (self._sequences(part.numpy(), replicas) for part in parts if len(part) == per_batch)
                yield sequences if self._teams is None else map(self._with_teams, sequences)
            return
        n, device, part = len(self.block.floats), self._device, replicas.part(batch_size)
        number, size = n // batch_size, part.rows.stop - part.rows.start
        floats = torch.empty((number * size, self.block.floats.shape[1]), device=device)
        choices = torch.empty((number * size, self.block.choices.shape[1]), dtype=torch.int64, device=device)
        together = torch.empty((number, batch_size), dtype=torch.int64)
        rows = torch.empty(number * size, dtype=torch.int64)
        minibatches = list(self._views(self.block._replace(floats=floats, choices=choices), rows, size))
        if replicas.size > 1:
            share = size * part.weight / batch_size
            minibatches = [
                replace(one, share=share, together=whole) for one, whole in zip(minibatches, together, strict=True)
            ]
        for _ in range(count):
            shuffled = random.permutation(n)[: number * batch_size]
            together.copy_(torch.from_numpy(shuffled).view(number, batch_size))
            rows.view(number, size).copy_(together[:, part.rows])
            order = to_device(rows, device)
            torch.index_select(self.block.floats, 0, order, out=floats)
            torch.index_select(self.block.choices, 0, order, out=choices)
            if self._advantages is not None:
                of_all = standardised(self._advantages[to_device(together, device)])
                for minibatch, advantages in zip(minibatches, of_all[:, part.rows], strict=True):
                    minibatch.advantages.mul_(advantages[:, None])
            complete = map(self._with_others, minibatches) if self._inputs.others else minibatches
            yield complete if self._teams is None else map(self._with_teams, complete)

    def in_order(self, batch_size: int) -> Iterator[Minibatch]:
        """Yield all N rows in order, in minibatches of at most `batch_size` rows or of complete sequences; no teams."""
        if self._cuts is not None:
            numbers = np.arange(len(self._cuts))
            per_batch = max(1, batch_size // self._cuts.length)
            return (self._sequences(numbers[at : at + per_batch]) for at in range(0, len(numbers), per_batch))
        minibatches = self._views(self.block, torch.arange(len(self.block.floats)), batch_size)
        return map(self._with_others, minibatches) if self._inputs.others else minibatches

    def _views(self, block: PackedColumns, rows: Tensor, batch_size: int) -> Iterator[Minibatch]:
        """Yield views of at most `batch_size` rows each, without images and sets."""
        columns = torch.split(block.floats, batch_size), torch.split(block.choices, batch_size)
        for floats, choices, numbers in zip(*columns, torch.split(rows, batch_size), strict=True):
            yield Minibatch.of_block(PackedColumns(floats, choices, block.widths), rows=numbers)

    def _with_others(self, minibatch: Minibatch) -> Minibatch:
        others = gathered(self._inputs.others, minibatch.rows, self._device)
        return replace(minibatch, inputs=minibatch.inputs._replace(others=others))

    def _with_teams(self, minibatch: Minibatch) -> Minibatch:
        assert self._teams is not None, "only called for a critic that evaluates groups"
        return replace(minibatch, teams=self._teams(minibatch))

    def _sequences(self, which: NDArray[np.int64], replicas: Replicas = SINGLE_TRAINER) -> Minibatch:
        """Return a minibatch of some sequences, or this replica's part of it."""
        assert self._cuts is not None, "only called with memory"
        assert self._memories is not None, "there are as many as sequences"
        part, share, together = replicas.part(len(which)), 1.0, None
        numbers = which[part.rows]
        padded, real = self._cuts.padded(numbers)
        rows, chosen = torch.from_numpy(padded[real]), to_device(torch.from_numpy(numbers), self._device)
        if replicas.size > 1:
            of_all, real_of_all = self._cuts.padded(which)
            together = torch.from_numpy(of_all[real_of_all])
            share = len(rows) * part.weight / len(together)
        floats, choices, widths = self.block
        index = to_device(rows, self._device)
        return Minibatch.of_block(
            PackedColumns(floats.index_select(0, index), choices.index_select(0, index), widths),
            inputs=gathered_sequences(self._inputs, padded, self._memories.index_select(0, chosen)),
            rows=rows,
            real=to_device(torch.from_numpy(np.flatnonzero(real)), self._device),
            critic_memories=None if self._critic_memories is None else self._critic_memories.index_select(0, chosen),
            padded=torch.from_numpy(padded.reshape(-1)),
            share=share,
            together=together,
        )


def standardised(values: Tensor) -> Tensor:
    """Standardise each row of values [k, R] by its mean and sample standard deviation, as usual in PPO."""
    if values.shape[1] < 2:
        return values
    deviation, mean = torch.std_mean(values, dim=1, keepdim=True)
    return (values - mean) / (deviation + 1e-8)
