"""From a behaviour's `reward_signals` to the signals themselves."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from config import CuriositySettings, GAILSettings, RNDSettings
from stages.trainer.imitation.loading import load_demonstrations
from stages.trainer.protocol import TrainerContext
from stages.trainer.rewards.curiosity import Curiosity
from stages.trainer.rewards.extrinsic import Extrinsic
from stages.trainer.rewards.gail import GAIL
from stages.trainer.rewards.protocol import RewardSignal
from stages.trainer.rewards.rnd import RND


def make_signals(context: TrainerContext, random: np.random.Generator | None = None) -> list[RewardSignal]:
    """Make the reward signals that a behaviour's settings ask for, in their order.

    Args:
        context: settings, spec and seed of the trainer.
        random: the source of their chance; None: `context.seed`. A signal draws the same whichever others there are.

    Raises:
        StageError: if demonstrations can't be read or don't fit, or an observation can't be learned from.
    """
    base = context.seed if random is None else int(random.integers(2**63))
    signals: list[RewardSignal] = []
    for name, settings in context.settings.signals.items():
        seed = _seed(base, name)
        if isinstance(settings, CuriositySettings):
            signals.append(Curiosity(name, settings, context, seed))
        elif isinstance(settings, RNDSettings):
            signals.append(RND(name, settings, context, seed))
        elif isinstance(settings, GAILSettings):
            demonstrations = load_demonstrations(settings.demo_path, context.spec, context.folder)
            signals.append(GAIL(name, settings, context, seed, demonstrations))
        else:
            signals.append(Extrinsic(name, settings.gamma, settings.strength))
    return signals


def _seed(base: int, name: str) -> int:
    """A seed of a signal's own, so that its networks don't start as copies of the trainer's or of each other."""
    return int(np.random.SeedSequence([base, crc32(name.encode())]).generate_state(1, np.uint64)[0])
