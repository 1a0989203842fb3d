"""Torch's defaults, restored in a process whose other code, such as an environment, may have changed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Make float32 tensors on the CPU and keep gradients within, whatever has been set; also a decorator."""
    import torch  # here, as code that looks up a trainer's name does not need torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype is torch.float32 and device.type == "cpu" and torch.is_grad_enabled():
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
