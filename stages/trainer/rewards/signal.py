"""The base of reward signals, a number per transition to be maximised, the environment's own, and their factory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import OwnSignalSettings, RewardSignalSettings
from headrace.config.errors import KeyPath, dotted
from headrace.stages.errors import LoadError, NotFiniteError, StageError, blaming
from headrace.stages.loading import check_arguments, construct, find_class, load_attribute
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.protocol import TrainerContext

_ROWS = 2048
"""Rows per forward pass when rewards are computed: bounds memory where a whole buffer of images is asked about."""


class RewardSignal(ABC):
    """One of a behaviour's `reward_signals`; trainers hold one value head for each.

    Args:
        name: its key in the YAML.
        settings: its block there.
        context: the trainer's: behaviour, spec, device, folder.
        seed: the source of all its chance.

    Attributes:
        name: see above.
        gamma: its discount per agent step.
        strength: factor on the reward, applied by the trainer.
        where: the beginning of error messages.
        ignores_termination: true if its value continues where an episode terminates (novelty does not depend on the
            task's rules); the trainer then bootstraps there as well.
    """

    ignores_termination: ClassVar[bool] = False

    def __init__(self, name: str, settings: RewardSignalSettings, context: TrainerContext, seed: int) -> None:
        self.name = name
        self.gamma = settings.gamma
        self.strength = settings.strength
        self.where = f"{context.behavior}: reward signal {name}"

    @abstractmethod
    def compute(self, transitions: Transitions) -> Tensor:
        """The reward [B] of each transition, without strength; called without gradients.

        Changes nothing that a checkpoint would have to hold.
        """

    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """The reward [B] of each transition, without strength; a new array.

        Raises:
            NotFiniteError: if one is NaN or infinite.
            StageError: if `compute` gives another number of rewards than there are transitions.
        """
        total = len(transitions.rewards)
        out = np.empty(total, np.float32)
        with torch.no_grad():
            for start in range(0, total, _ROWS):
                rows = slice(start, start + _ROWS)
                piece = transitions if total <= _ROWS else transitions.rows(rows)
                computed = self.compute(piece)
                if computed.shape != piece.rewards.shape:
                    raise StageError(
                        f"{self.where}: compute gave a tensor of shape {list(computed.shape)}, expected "
                        f"{list(piece.rewards.shape)}: one reward for each transition"
                    )
                out[rows] = computed.cpu().numpy()
        finite = np.isfinite(out)
        if not finite.all():
            raise NotFiniteError(
                f"{self.where}: the reward of {int((~finite).sum())} of {total} steps is NaN or infinite, the first is "
                f"{out[~finite][0]}{self.remedy}"
            )
        return out

    @property
    def remedy(self) -> str:
        """The end of the message about rewards that are not finite."""
        return f"; see {type(self).__name__}.compute"

    def observe(self, vectors: NDArray[np.float32]) -> None:  # noqa: B027  # a signal may normalise nothing
        """Count the vector observations [n, V] of new steps, for a normaliser.

        Trainers call it once for each step, before that step's reward is computed: a normaliser without data would
        leave rewards so large that values never recover from them.
        """

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """One gradient step of its own networks on a minibatch; losses by the names of their statistics.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; the weights are then those before the step.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, randomness: plain values and NumPy arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # a signal may have no state
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to other networks; the message names the tensor.
        """


class Extrinsic(RewardSignal):
    """Returns the environment's reward; learns nothing."""

    def compute(self, transitions: Transitions) -> Tensor:
        """The environment's reward [B] of each transition."""
        return transitions.rewards


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
