"""The torch device that trainers compute on, if it is there, and the precision of what they compute on it."""

from __future__ import annotations

from headrace.pipeline.common.errors import RunError


def choose_device(configured: str | None) -> tuple[str, str]:
    """The torch device: the configured one, else `cuda` if there is one, else `cpu`; and why it is that one.

    Raises:
        RunError: if torch can't compute on the configured one; the message says what it has.
    """
    import torch

    if configured is None:
        if torch.cuda.is_available():
            return "cuda", f"{torch.cuda.get_device_name()}; for small networks --torch-device cpu may be faster"
        return "cpu", "torch finds no CUDA device"
    try:
        torch.zeros(1, device=configured)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # all three are what torch raises, by the kind
        reason = str(error).splitlines()[0]
        raise RunError(
            f"torch_settings.device: torch can't compute on {configured!r}: {reason}; expected one of "
            f"{', '.join(_available())}, or no --torch-device, which takes the first CUDA device if there is one"
        ) from error
    return configured, "as torch_settings.device says"


def choose_precision(configured: str, device: str) -> tuple[bool, str, bool]:
    """Whether hidden products are computed in bfloat16 on a device; in words, with the reason; whether that is slow."""
    if configured == "float32":
        return False, "float32", False
    from headrace.stages.policy.network.layers import fast_bf16

    by = fast_bf16(device)
    if configured == "auto":
        return (
            (True, f"bf16 ({device} has {by})", False) if by else (False, f"float32 (bf16 is slow on {device})", False)
        )
    if by:
        return True, f"bf16 ({by})", False
    slow = (
        f"bf16, which {device} computes more slowly than float32; torch_settings.precision: auto takes the faster one"
    )
    return True, slow, True


def _available() -> list[str]:
    import torch

    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found
