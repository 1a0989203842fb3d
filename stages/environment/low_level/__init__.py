"""Environments with the interface of ML-Agents' low-level API (`BaseEnv`), whoever made them."""

from stages.environment.low_level.group import LowLevelGroup
from stages.environment.low_level.making import make_low_level_group

__all__ = ["LowLevelGroup", "make_low_level_group"]
