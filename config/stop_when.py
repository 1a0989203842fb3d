"""When a behaviour stops learning before `max_steps`."""

from __future__ import annotations

from pydantic import Field, model_validator

from headrace.config.errors import Finding
from headrace.config.fields import Float, Int, Settings, report


class StopWhenSettings(Settings):
    """When a behaviour stops learning before `max_steps`: as soon as one of these is so."""

    mean_reward: Float | None = Field(
        None, description="Its last `over` training episodes have returned at least this on average."
    )
    over: Int = Field(100, gt=0, le=100_000, description="Episodes of which `mean_reward` and `plateau` are the mean.")
    elo: Float | None = Field(None, description="With self-play: the rating of its newest policy is at least this.")
    plateau: Int | None = Field(
        None,
        gt=0,
        description="For so many steps the mean return of the last `over` episodes was not above its highest.",
    )

    @model_validator(mode="after")
    def _something(self) -> StopWhenSettings:
        if self.mean_reward is None and self.elo is None and self.plateau is None:
            report([Finding((), "says nothing; expected mean_reward, elo or plateau")])
        return self
