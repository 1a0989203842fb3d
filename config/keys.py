"""The `environment.keys` section: which action a person's key is, as ML-Agents' player brain had it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int, Settings, Text, as_tuple, report


class KeySettings(Settings):
    """The action of a key while it is pressed."""

    branch: Int | None = Field(None, ge=0, description="Discrete branch in which the key chooses `value`.")
    index: Int | None = Field(None, ge=0, description="Instead of `branch`: continuous action that is `value`.")
    value: Float = Field(description="Choice, from 0 on, or value of the continuous action, -1 to 1.")

    @model_validator(mode="after")
    def _discrete_or_continuous(self) -> KeySettings:
        report([*self._mistakes()])
        return self

    def _mistakes(self) -> Iterator[Finding]:
        if (self.branch is None) == (self.index is None):
            both = "stand beside each other" if self.branch is not None else "are both missing"
            yield Finding(
                ("index",) if self.branch is not None else (),
                f"'branch' and 'index' {both}; expected 'branch' for a discrete action or 'index' for a continuous one",
                (("branch",),),
            )
        if self.branch is not None and not (self.value >= 0 and self.value.is_integer()):
            yield Finding(("value",), f"{self.value:g} is no choice of a branch; expected a whole number from 0 on")


class KeyMapSettings(Settings):
    """The keys of a person who plays for a behaviour."""

    press: dict[Text, KeySettings] = Field(
        description="By key, as browsers name it: `ArrowLeft`, `Space`, `a`. Of several pressed keys for one action, "
        "the last one in this list counts; continuous values are added up."
    )
    rest: Annotated[tuple[Int, ...], BeforeValidator(as_tuple)] = Field(
        (), description="Choice of each discrete branch while none of its keys is pressed; empty: 0."
    )
    wait: Flag = Field(False, description="The game waits until a key is pressed, as at a board.")
