"""The inputs of networks, as tensors, and the transfer of tensors to a device and back.

Tensors go to a GPU through pinned memory, in parallel with its work, and return in one piece. On a CPU nothing moves:
tensors are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array
from headrace.stages.policy.observations import EncodedObservations


def to_device(tensor: Tensor, device: str | torch.device) -> Tensor:
    """A host tensor on a device; the tensor itself if the device is the CPU.

    The copy to a GPU runs in parallel with the GPU's queued work; the caller may change the tensor immediately.
    """
    where = torch.device(device)
    if where.type != "cuda" or not tensor.numel():
        return tensor.to(where)
    return lane_to(where).send(tensor.pin_memory())


def gathered(tensor: Tensor, rows: Tensor, device: str | torch.device) -> Tensor:
    """Some rows of a host tensor, copied to a device as in `to_device`."""
    where = torch.device(device)
    if where.type != "cuda" or not tensor.numel():
        return _selected(tensor, rows).to(where)
    # Gather straight into pinned memory: images are too large to copy twice.
    pinned = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
    return lane_to(where).send(torch.index_select(tensor, 0, rows, out=pinned))


def _selected(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some rows; of images whose channels are innermost in memory, in that order, too."""
    if tensor.ndim != 4 or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.index_select(0, rows)
    return tensor.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)


class Lane:
    """The stream of copies to a GPU: copies wait for no computation, and computations wait for their copies.

    Args:
        device: the GPU.
        cuda: `torch.cuda`, or a stand-in.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    def send(self, pinned: Tensor) -> Tensor:
        """A GPU copy of a tensor in pinned memory, which stays allocated until the copy is complete."""
        present = self._cuda.current_stream(self._device)
        with self._cuda.stream(self._stream):
            there = pinned.to(self._device, non_blocking=True)
        present.wait_stream(self._stream)
        # The tensor was allocated for this stream: without this, the next copy could reuse its memory too early.
        there.record_stream(present)
        return there


@cache
def lane_to(device: torch.device) -> Lane:
    """The process' lane to a GPU."""
    return Lane(device)


def host_copies(views: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Host copies of tensors; in one transfer from a GPU, if the tensors are views into one vector."""
    if all(view.is_cpu for view in views.values()):
        return {name: view.detach().numpy().copy() for name, view in views.items()}
    return fetched(views, _to_host)


def fetched(views: Mapping[str, Tensor], fetch: Callable[[Tensor], Tensor]) -> dict[str, NDArray[Any]]:
    """Copies of tensors, fetched together with the gaps between them: one call of `fetch` per underlying storage.

    Args:
        views: tensors by name.
        fetch: copies a vector to the host.
    """
    together: dict[int, list[str]] = {}
    for name, view in views.items():
        together.setdefault(view.untyped_storage().data_ptr(), []).append(name)
    copies = {}
    for names in together.values():
        parts = {name: views[name].detach() for name in names}
        first = min(part.storage_offset() for part in parts.values())
        size = max(_end(part) for part in parts.values()) - first
        whole = fetch(next(iter(parts.values())).as_strided((size,), (1,), first))
        for name, part in parts.items():
            here = whole.as_strided(part.shape, part.stride(), part.storage_offset() - first)
            copies[name] = np.array(here.numpy(), order="C")
    return {name: copies[name] for name in views}


def _end(view: Tensor) -> int:
    """The index after a view's last element in its storage."""
    first = int(view.storage_offset())
    if not view.numel():
        return first
    return first + 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))


def _to_host(vector: Tensor) -> Tensor:
    if vector.device.type != "cuda" or not vector.numel():
        return vector.cpu()
    return torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True).copy_(vector)


class Inputs(NamedTuple):
    """B rows. With memory they are B / L sequences of L rows each, concatenated and padded at their ends."""

    vectors: Tensor
    """[B, V] all vectors, concatenated; normalised if the trainer normalises."""
    others: tuple[Tensor, ...] = ()
    """[B, *shape] of each image and set, in the order of the spec, in its own dtype."""
    previous_actions: Tensor | None = None
    """[B, P], only with memory; see `protocol.Recall`."""
    memories: Tensor | None = None
    """[B / L, m] before the first row of each sequence, only with memory."""
    sequence_length: int = 1
    """L."""
    vectors_rest: Tensor | None = None
    """[B, V] the float32 rounding error of float64 vectors that are not normalised; None for float32 vectors."""

    @classmethod
    def from_encoded(cls, encoded: EncodedObservations, device: str | torch.device = "cpu") -> Inputs:
        """Encoded observations on a device, without memory. Arrays are shared if the device allows it."""
        # Arrays from another process are read-only, which torch's tensors can't be.
        others = tuple(
            to_device(torch.from_numpy(np.require(other, requirements=("C", "W"))), device) for other in encoded.others
        )
        vectors: Array = encoded.vectors.astype(np.float32, copy=False)
        inputs = cls(to_device(torch.from_numpy(vectors), device), others)
        if vectors is encoded.vectors:
            return inputs
        rest = (encoded.vectors - vectors).astype(np.float32)
        return inputs._replace(vectors_rest=to_device(torch.from_numpy(rest), device))

    def rows(self, index: Tensor | slice) -> Inputs:
        """Some of the rows, without memory."""
        rest = None if self.vectors_rest is None else self.vectors_rest[index]
        return Inputs(self.vectors[index], tuple(other[index] for other in self.others), vectors_rest=rest)
