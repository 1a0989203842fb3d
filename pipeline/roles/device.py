"""The torch device for trainers, and how trainers compute matmuls in wide layers on that device."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.errors import dotted
from headrace.config.league_placement import placement_key, placement_of
from headrace.pipeline.common.errors import RunError
from headrace.stages.policy.design import BF16, TORCHS_OWN, ProductSettings

SHOWN = ("ppo", "sac")
"""Trainers shown to learn equally well with bfloat16 matmuls in layers of at least `SHOWN_FROM` units."""
SHOWN_FROM = 256


KEY = "torch_settings.device"


def device_of(config: RunConfig, behavior: str) -> tuple[str, str]:
    """Return the torch device for a behaviour's trainer, and the reason; see `choose_device`."""
    placed = placement_of(config, behavior).device
    if placed is None:
        return choose_device(config.torch_settings.device)
    return choose_device(placed, dotted((*placement_key(config, behavior), "device")))


def choose_device(configured: str | None, key: str = KEY) -> tuple[str, str]:
    """Return the torch device, and the reason: the configured device, or `cuda` if available, or `cpu`.

    Args:
        configured: the configured device; None to use the first CUDA device, or the CPU if there is none.
        key: the YAML key that sets the device.

    Raises:
        RunError: if torch can't compute on the configured device; the message lists the available devices.
    """
    import torch

    if configured is None:
        if torch.cuda.is_available():
            return "cuda", f"{torch.cuda.get_device_name()}; for small networks --torch-device cpu may be faster"
        return "cpu", "torch finds no CUDA device"
    try:
        torch.zeros(1, device=configured)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # the type depends on the device
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{key}: torch can't compute on {configured!r}: {reason}; expected one of {', '.join(_available())}; or "
            f"omit {'--torch-device' if key == KEY else 'it'} to use the first CUDA device, if any"
        ) from error
    return configured, f"set by {key}"


class Rounding(NamedTuple):
    """The choice of matmuls that a trainer computes in bfloat16."""

    settings: ProductSettings
    words: str
    """The choice and its reason, as text for the log."""
    slow: bool = False
    """True if bfloat16 is slower than float32 on the device."""


def products_of(config: RunConfig, settings: BehaviorSettings, device: str) -> ProductSettings:
    """Return how a trainer with these settings computes its matmuls on a device."""
    rounding = choose_rounding(precision_of(config), device, settings.trainer_type).settings
    given = settings.hyperparameters  # IMPALA counts batches in unrolls
    rows = getattr(given, "batch_rows", getattr(given, "batch_size", rounding.rows))
    return replace(rounding, provider=choose_provider(config, device), rows=rows)


def precision_of(config: RunConfig) -> str:
    """Return the configured precision; without acceleration, `auto` is float32."""
    precision = config.torch_settings.precision
    return "float32" if precision == "auto" and config.torch_settings.acceleration == "none" else precision


def choose_rounding(configured: str, device: str, trainer: str) -> Rounding:
    """Choose the matmuls that a trainer computes in bfloat16 on a device.

    Args:
        configured: the result of `precision_of`.
        device: the torch device.
        trainer: the trainer's `trainer_type`.
    """
    from headrace.stages.policy.network.products import fast_bf16

    if configured == "float32":
        return Rounding(TORCHS_OWN, "float32 (torch_settings.precision)")
    by = fast_bf16(device)
    if configured == "bf16":
        slow = "which {device} computes more slowly than float32; torch_settings.precision: auto uses the faster one"
        return Rounding(BF16, f"bf16 ({by})" if by else f"bf16, {slow.format(device=device)}", slow=not by)
    if by is None:
        return Rounding(TORCHS_OWN, f"float32 (bf16 is slow on {device})")
    if trainer not in SHOWN:
        return Rounding(TORCHS_OWN, f"float32 (bf16 has not been shown to learn equally well with {trainer})")
    return Rounding(
        ProductSettings(rounded_from=SHOWN_FROM), f"bf16 for layers of at least {SHOWN_FROM} units ({device} has {by})"
    )


def choose_provider(config: RunConfig, device: str) -> str:
    """Choose the library for float32 matmuls in wide layers; see `ProductSettings.provider`."""
    # Sums differ in their last digits between providers, but a replay must reproduce the recording.
    exact = config.pipeline.deterministic or config.record is not None or config.replay is not None
    exact = exact or config.torch_settings.acceleration == "none"
    configured = config.torch_settings.products
    return "torch" if device != "cpu" or (configured == "auto" and exact) else configured


def _available() -> list[str]:
    import torch

    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices
