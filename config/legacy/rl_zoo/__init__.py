"""Converts an entry from rl-baselines3-zoo's files, which contain Stable-Baselines3 hyperparameters, to a run.

This module checks whether a file comes from the zoo; `conversion` is imported if there is an entry to convert.
"""

from headrace.config.legacy.rl_zoo.entries import HOW, EntryRequest, is_rl_zoo

__all__ = ["HOW", "EntryRequest", "is_rl_zoo"]
