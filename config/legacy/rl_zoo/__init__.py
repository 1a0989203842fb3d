"""Conversion of an entry of rl-baselines3-zoo's files, the hyperparameters of Stable-Baselines3's users, to a run."""

from headrace.config.legacy.rl_zoo.conversion import convert_entry
from headrace.config.legacy.rl_zoo.entries import HOW, EntryRequest, is_rl_zoo

__all__ = ["HOW", "EntryRequest", "convert_entry", "is_rl_zoo"]
