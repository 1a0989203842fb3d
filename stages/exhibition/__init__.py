"""Exhibition: one game at its own pace, for people who watch it or play in it."""

from headrace.stages.exhibition.show import Cast, Casting, Show

__all__ = ["Cast", "Casting", "Show"]
