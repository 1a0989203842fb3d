"""Reward signals, which a behaviour learns from in addition to the environment's reward, or instead of it.

`config.RewardSignals` is the table of built-in signals.
"""
