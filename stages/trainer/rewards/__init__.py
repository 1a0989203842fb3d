"""Reward signals: rewards of a behaviour beside or instead of the environment's own.

The table of built-in ones is `config.RewardSignals`.
"""

from headrace.stages.trainer.rewards.factory import make_signals
from headrace.stages.trainer.rewards.signal import RewardSignal
from headrace.stages.trainer.transitions import Transitions

__all__ = ["RewardSignal", "Transitions", "make_signals"]
