"""Converts an entry from rl-baselines3-zoo's files, which hold Stable-Baselines3 hyperparameters, to a run.

This module has the checks for every file; `conversion` is imported if there is an entry to convert.
"""

from headrace.config.legacy.rl_zoo.entries import HOW, EntryRequest, is_rl_zoo

__all__ = ["HOW", "EntryRequest", "is_rl_zoo"]
