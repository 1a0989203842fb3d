"""From a behaviour's `reward_signals` to the signals themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from headrace.config import OwnSignalSettings
from headrace.config.errors import KeyPath, dotted
from headrace.stages.errors import LoadError, blaming
from headrace.stages.loading import load_attribute
from headrace.stages.plugins import check_arguments, construct, find_class
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards.signal import RewardSignal


def make_signals(context: TrainerContext, random: np.random.Generator | None = None) -> list[RewardSignal]:
    """Make the reward signals that a behaviour's settings ask for, in their order.

    Args:
        context: settings, spec and seed of the trainer.
        random: the source of their chance; None: `context.seed`. A signal draws the same whichever others there are.

    Raises:
        StageError: if demonstrations can't be read or don't fit, or an observation can't be learned from.
        LoadError: if a class of the user's own can't be imported, is no RewardSignal, does not take its arguments or
            raises.
    """
    base = context.seed if random is None else int(random.integers(2**63))
    return [_make_signal(name, context, _seed(base, name)) for name in context.settings.signals]


def find_signal(settings: OwnSignalSettings, folder: Path | None, path: KeyPath) -> type[RewardSignal]:
    """The class that `use` names, which takes the arguments under `with`.

    Args:
        settings: the signal's block in the YAML.
        folder: where the YAML lies, whose modules are importable.
        path: of the block.

    Raises:
        LoadError: if it can't be imported, is no RewardSignal, or does not take its arguments.
    """
    where = dotted(path)
    with blaming(*path, "use"):
        found: type[Any] = find_class(where, settings.use, folder)
        if not issubclass(found, RewardSignal):
            raise LoadError(f"{where}: {settings.use} is not derived from headrace.RewardSignal")
    with blaming(*path, "with"):
        made: Callable[..., RewardSignal] = found
        # What every signal is made with precedes its own arguments.
        check_arguments(where, settings.use, partial(made, "", settings, None, 0), settings.with_)
    return found


def _make_signal(name: str, context: TrainerContext, seed: int) -> RewardSignal:
    settings, reference = context.settings.signals[name], context.settings.reward_signals.class_of(name)
    if not isinstance(settings, OwnSignalSettings):
        built_in: RewardSignal = load_attribute(reference, None, "reward signal")(name, settings, context, seed)
        return built_in
    path = ("behaviors", context.behavior, "reward_signals", name)
    found = find_signal(settings, context.folder, path)
    with blaming(*path):
        made = partial(found, name, settings, context, seed)
        signal: RewardSignal = construct(dotted(path), reference, made, settings.with_)
    return signal


def _seed(base: int, name: str) -> int:
    """A seed of a signal's own, so that its networks don't start as copies of the trainer's or of each other."""
    return int(np.random.SeedSequence([base, crc32(name.encode())]).generate_state(1, np.uint64)[0])
