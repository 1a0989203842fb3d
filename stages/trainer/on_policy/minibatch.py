"""One rollout as the update wants it: a single float matrix on the device, gathered once per epoch.

A minibatch is then nothing but views of fixed shape into the gathered rows, made once per update; only images and sets,
which may be large, are gathered minibatch by minibatch. What a policy with memory learns from is in `sequences`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queues.messages import Array
from stages.policy.network.inputs import Inputs
from stages.trainer.on_policy.input_rows import gather_others


@dataclass(frozen=True, slots=True)
class Minibatch:
    """R rows to learn from, as views. Axis letters as in `loss`; B = R inputs, or more where sequences are padded."""

    choices: tuple[Tensor, ...]
    """Per branch [R, 1] int64."""
    inputs: Inputs
    """[B, …] encoded, normalised observations, and with memory what belongs to it."""
    continuous: Tensor
    """[R, C] raw continuous actions."""
    penalties: Tensor
    """[R, choices] added to logits: `MASK_PENALTY` where a choice was forbidden; width 0 without masks."""
    old_log_probs: Tensor
    """[R, P] of the actor that decided; summed to P = 1 for the joint action's ratio."""
    advantages: Tensor
    """[R, 1] normalised."""
    returns: Tensor
    """[R, S] value targets."""
    rows: Tensor
    """[R] their numbers in the rollout, on the host."""
    real: Tensor | None = None
    """[R] which of the B inputs are rows and no padding; None where all are."""
    critic_memories: Tensor | None = None
    """[B / L, m] what the critic remembered before each sequence; None without memory, or if it shares the actor's."""
    padded: Tensor | None = None
    """[B] which row of the rollout each of the B inputs is, on the host; None where they are `rows`."""


class Learnable(Protocol):
    """Whatever an update learns from at a time."""

    @property
    def rows(self) -> Tensor:
        """[R] numbers of its rows in the rollout, on the host."""
        ...


OneMinibatch = TypeVar("OneMinibatch", bound=Learnable)
_Given = TypeVar("_Given", bound=Learnable, covariant=True)


class Epochs(Protocol[_Given]):
    """A rollout, as an update works through it."""

    def epochs(self, count: int, batch_size: int, random: np.random.Generator) -> Iterator[Iterable[_Given]]:
        """Per epoch its minibatches, in a new random order."""
        ...


class Rollout:
    """N rows to learn from, on the device.

    Args:
        columns: float columns [N, width]: vectors, then `Minibatch`'s from `continuous` to `returns`.
        choices: [N, branches] discrete actions.
        device: where to learn.
        others: [N, *shape] images and sets, which stay on the host, in their own dtype, until a minibatch needs them.
    """

    def __init__(self, columns: list[Array], choices: Array, device: str, others: tuple[Tensor, ...] = ()) -> None:
        self._widths = [column.shape[1] for column in columns]
        packed = np.concatenate([column.astype(np.float32, copy=False) for column in columns], axis=1)
        self._floats = torch.from_numpy(packed).to(device)
        self._choices = torch.from_numpy(choices.astype(np.int64)).to(device)
        self._others = others

    def __len__(self) -> int:
        return len(self._floats)

    def epochs(self, count: int, batch_size: int, random: np.random.Generator) -> Iterator[Iterable[Minibatch]]:
        """Per epoch floor(N / batch_size) minibatches of rows in a new random order; the rest is left out."""
        used = len(self) // batch_size * batch_size
        floats = torch.empty((used, self._floats.shape[1]), device=self._floats.device)
        choices = torch.empty((used, self._choices.shape[1]), dtype=torch.int64, device=self._floats.device)
        rows = torch.empty(used, dtype=torch.int64)
        minibatches = [
            _minibatch(torch.split(part, self._widths, dim=1), chosen, numbers)
            for part, chosen, numbers in zip(
                torch.split(floats, batch_size),
                torch.split(choices, batch_size),
                torch.split(rows, batch_size),
                strict=True,
            )
        ]
        for _ in range(count):
            rows.copy_(torch.from_numpy(self._shuffled(random)[:used]))
            order = rows.to(self._floats.device)
            torch.index_select(self._floats, 0, order, out=floats)
            torch.index_select(self._choices, 0, order, out=choices)
            yield map(self._with_others, minibatches) if self._others else minibatches

    def _with_others(self, minibatch: Minibatch) -> Minibatch:
        others = gather_others(self._others, minibatch.rows, self._floats.device)
        return replace(minibatch, inputs=minibatch.inputs._replace(others=others))

    def _shuffled(self, random: np.random.Generator) -> NDArray[np.int64]:
        return random.permutation(len(self))


def _minibatch(columns: tuple[Tensor, ...], choices: Tensor, rows: Tensor) -> Minibatch:
    vectors, continuous, penalties, old_log_probs, advantages, returns = columns
    per_branch = torch.split(choices, 1, dim=1) if choices.shape[1] else ()
    return Minibatch(per_branch, Inputs(vectors), continuous, penalties, old_log_probs, advantages, returns, rows)
