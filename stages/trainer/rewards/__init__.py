"""Reward signals: rewards of a behaviour in addition to the environment's own, or instead of it.

The table of built-in signals is `config.RewardSignals`.
"""

from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.rewards.signal import RewardSignal, make_signals, reward_scale

__all__ = ["RewardSignal", "Transitions", "make_signals", "reward_scale"]
