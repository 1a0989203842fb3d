"""Keys that may be `auto`: a run chooses their values at its start, from its machine and its environment.

A configuration holds their defaults until then; `is_auto` says which of them are still to be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from headrace.config.fields import Settings

AUTO = "auto"


class ChoosingSettings(Settings):
    """A section with such keys."""

    choosable: ClassVar[Mapping[str, bool]] = {}
    """The keys; True for those that are `auto` where they are not written, too."""
    _auto: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="wrap")
    @classmethod
    def _leave_out(cls, data: Any, made: ModelWrapValidatorHandler[Self]) -> Self:
        """Take keys that are written as `auto` for keys that are not written, and note which they are."""
        if not isinstance(data, Mapping):
            return made(data)
        auto = frozenset(name for name in cls.choosable if data.get(name) == AUTO)
        settings = made({name: value for name, value in data.items() if name not in auto})
        settings._auto = auto
        return settings

    def is_auto(self, name: str) -> bool:
        """Return True if a run is to choose the value of this key."""
        return not self._given(name) and (name in self._auto or self.choosable[name])

    def with_auto(self, name: str) -> Self:
        """Return a copy in which a run is to choose the value of this key, which is not written."""
        changed = self.model_copy()
        changed._auto = self._auto | {name}
        return changed
