"""Reward signals: rewards of a behaviour beside or instead of the environment's own.

The table of built-in ones is `config.RewardSignals`.
"""

from stages.trainer.rewards.factory import make_signals
from stages.trainer.rewards.signal import RewardSignal
from stages.trainer.transitions import Transitions

__all__ = ["RewardSignal", "Transitions", "make_signals"]
