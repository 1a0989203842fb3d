"""What torch does by default, in a process whose other code may have changed it: an environment, above all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Make tensors of float32 on the CPU and keep gradients within, whatever has been set; also a decorator."""
    import torch  # here, as whoever looks for a trainer's name needs none

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
