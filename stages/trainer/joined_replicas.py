"""Joins a trainer's replicas in several processes with torch.distributed."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import ProcessGroup, ProcessGroupGloo

from headrace.stages.trainer.protocol import ReplicaLostError, Replicas

LOOPBACK = "127.0.0.1"
_LIBUV = False
"""Whether the store uses libuv, which is faster with hundreds of replicas but missing from torch's Windows builds."""


# All replicas read the same stream, so they exchange only sums over rows (docs/decisions/039).
class JoinedReplicas(Replicas):
    """Replicas in several processes or threads, which all construct this object at about the same time.

    Args:
        rank: this replica's number.
        size: the number of replicas.
        store: the store that replicas use to find each other; see `listen` and `connect`.
        device: this replica's torch device. Replicas with separate GPUs (`cuda:<n>`) use NCCL, all others gloo.
        address: the address at which other replicas can reach this machine.
        timeout_s: number of seconds after which a replica that does not respond counts as lost; None to wait forever.

    Raises:
        ReplicaLostError: if the other replicas do not connect.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        device: str = "cpu",
        address: str = LOOPBACK,
        timeout_s: float | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._group: ProcessGroup
        timeout = timedelta(days=1000) if timeout_s is None else timedelta(seconds=timeout_s)
        try:
            if device.startswith("cuda:"):
                from torch.distributed import ProcessGroupNCCL  # missing from CPU-only builds of torch

                torch.cuda.set_device(device)
                nccl = ProcessGroupNCCL.Options()
                nccl._timeout = timeout
                self._group = ProcessGroupNCCL(store, rank, size, nccl)  # type: ignore[assignment]
            else:
                gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                gloo._devices = [ProcessGroupGloo.create_device(hostname=address)]
                gloo._timeout = timeout
                self._group = ProcessGroupGloo(store, rank, size, gloo)  # type: ignore[assignment]
        except RuntimeError as error:
            text = f"the learner's replicas could not connect to each other: {_first_line(error)}"
            raise ReplicaLostError(text) from error

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all replicas, using a single message."""
        packed = tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            self._group.allreduce([packed]).wait()
        except RuntimeError as error:
            raise ReplicaLostError(f"lost a replica of the learner: {_first_line(error)}") from error
        if len(tensors) == 1:
            return
        sums = torch.split(packed, [tensor.numel() for tensor in tensors])
        for tensor, of_all in zip(tensors, sums, strict=True):
            tensor.copy_(of_all.view_as(tensor))


def listen(size: int, address: str = LOOPBACK) -> TCPStore:
    """Make the store for the first of `size` replicas, which listens at `address`, on the store's `port`."""
    # torch's own socket would listen on all addresses.
    sock = socket.create_server((address, 0))
    port = sock.getsockname()[1]
    return TCPStore(address, port, size, True, wait_for_workers=False, master_listen_fd=sock.detach(), use_libuv=_LIBUV)


def connect(address: str, port: int, size: int) -> TCPStore:
    """Make the store for any other replica, which connects to the first replica's store.

    Raises:
        ReplicaLostError: if no replica listens there.
    """
    try:
        return TCPStore(address, port, size, False, wait_for_workers=False, use_libuv=_LIBUV)
    except RuntimeError as error:
        text = f"the learner's first replica can't be reached at {address}:{port}: {_first_line(error)}"
        raise ReplicaLostError(text) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
