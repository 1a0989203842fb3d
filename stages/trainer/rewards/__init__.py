"""Reward signals: what a behaviour is rewarded for, beside or instead of the environment's own reward."""

from stages.trainer.rewards.factory import make_signals
from stages.trainer.rewards.protocol import RewardSignal

__all__ = ["RewardSignal", "make_signals"]
