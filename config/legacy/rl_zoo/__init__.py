"""Converts an entry from rl-baselines3-zoo's files, which contain Stable-Baselines3 hyperparameters, to a run.

This module checks whether a file comes from the zoo. It imports `conversion` only if an entry must be converted.
"""

from headrace.config.legacy.rl_zoo.entries import HOW, EntryRequest, is_rl_zoo

__all__ = ["HOW", "EntryRequest", "is_rl_zoo"]
