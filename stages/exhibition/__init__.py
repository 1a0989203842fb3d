"""Exhibition: one game at its own pace, for people to watch or play."""

from headrace.stages.exhibition.show import Cast, Casting, Show

__all__ = ["Cast", "Casting", "Show"]
