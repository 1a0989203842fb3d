"""The `hindsight` section of SAC's hyperparameters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.fields import Int, Settings


class HindsightSettings(Settings):
    """Hindsight experience replay, for goal environments; presence turns it on. See docs/algorithms.md."""

    goals: Literal["future", "final", "episode"] = Field(
        "future",
        description="The new goal of a relabelled step is a goal that the same episode achieved: at that step or later "
        "(`future`), at the end (`final`), or at any step (`episode`).",
    )
    per_transition: Int = Field(
        4,
        gt=0,
        le=10**6,
        description="Relabelled steps for each step with its own goal in a minibatch: of n + 1 steps n are relabelled.",
    )
