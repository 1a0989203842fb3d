"""Reward signals, which a behaviour learns from in addition to the environment's reward, or instead of it.

`config.RewardSignals` is the table of built-in signals.
"""

from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.rewards.signal import RewardSignal, make_signals

__all__ = ["RewardSignal", "Transitions", "make_signals"]
