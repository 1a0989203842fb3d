"""Reward signals: rewards of a behaviour beside or instead of the environment's own.

The table of built-in ones is `config.RewardSignals`.
"""

from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.rewards.signal import RewardSignal, make_signals, reward_scale

__all__ = ["RewardSignal", "Transitions", "make_signals", "reward_scale"]
