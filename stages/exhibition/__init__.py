"""Exhibition: one game at its own pace, for people who watch or play."""

from headrace.stages.exhibition.show import Cast, Casting, Show

__all__ = ["Cast", "Casting", "Show"]
