"""What is known about one behaviour's run, and what a rule finds in it.

The same evidence comes from a run that trains, from its folder afterwards, and from another library's event files. A
rule asks for a statistic and gets NaN where nobody wrote it: no comparison with NaN is true, so the rule says nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from headrace.config import BehaviorSettings, RunConfig
from headrace.pipeline.reporting.history import Point

RETURN = "Environment/Cumulative Reward"
EPISODE_LENGTH = "Environment/Episode Length"
LEARNED = 0.45
"""Rise of the return, in standard deviations of the first policy's returns, from which a run counts as learning.
Runs that can't improve drift by up to 0.28."""
LATE = 0.35
"""Share of a run after which a rule may say that the return does not rise."""


@dataclass(frozen=True)
class Finding:
    """One cause why a behaviour does not learn."""

    behavior: str
    severity: str
    """`error`: the run can't learn as it is; `warning`: the cause is likely; `hint`: these settings make up for it."""
    cause: str
    """Name of the cause, as docs/diagnosis.md lists it."""
    statistic: str
    value: float
    step: int
    """Step at which the statistic had the value."""
    normal: str
    """What would be normal."""
    cure: str
    """What to change: a key of the YAML with a value, or what to look for in the environment."""

    @property
    def evidence(self) -> dict[str, Any]:
        """The number behind the finding, as plain data."""
        return {"statistic": self.statistic, "value": self.value, "step": self.step, "normal": self.normal}

    def plain(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        names = ("behavior", "severity", "cause", "evidence", "cure")
        return {name: getattr(self, name) for name in names}

    @property
    def level(self) -> int:
        """The logging level at which consoles and logs show the finding."""
        return logging.INFO if self.severity == "hint" else logging.WARNING

    def __str__(self) -> str:
        """Return the sentence for consoles and logs."""
        return (
            f"{self.behavior}: {self.cause}. {self.statistic} is {self.value:.4g} at step {self.step}; normal: "
            f"{self.normal}. Cure: {self.cure}"
        )


def _unknown() -> BehaviorSettings:
    return BehaviorSettings.model_validate({"trainer_type": "ppo"})


@dataclass
class Evidence:
    """One behaviour's statistics and settings.

    Args:
        behavior: name of the behaviour.
        curves: points (step, seconds, value) of each statistic, in order.
        settings: the behaviour's settings; the defaults if they are unknown, as for another library's event files.
        config: the run's configuration; None if it is unknown.
        ended: whether the run is over.
    """

    behavior: str
    curves: Mapping[str, Sequence[Point]]
    settings: BehaviorSettings = field(default_factory=_unknown)
    config: RunConfig | None = None
    ended: bool = False

    def values(self, name: str) -> list[float]:
        """Return a statistic's values; empty if nobody wrote it."""
        return [value for _, _, value in self.curves.get(name, ())]

    def first(self, name: str) -> float:
        """Return a statistic's first value; NaN if nobody wrote it, as from the methods below."""
        return next(iter(self.values(name)), math.nan)

    def last(self, name: str) -> float:
        """Return a statistic's last value."""
        return next(reversed(self.values(name)), math.nan)

    def least(self, name: str) -> float:
        """Return a statistic's smallest value."""
        return min(self.values(name), default=math.nan)

    def most(self, name: str) -> float:
        """Return a statistic's largest value."""
        return max(self.values(name), default=math.nan)

    def early(self, name: str) -> float:
        """Return the mean of a statistic over the run's first tenth, at least one value."""
        values = self.values(name)
        return fmean(values[: max(1, math.ceil(0.1 * len(values)))]) if values else math.nan

    def late(self, name: str, share: float = 0.34) -> float:
        """Return the mean of a statistic over the last share of the run, at least one value."""
        values = self.values(name)
        return fmean(values[-max(1, math.ceil(share * len(values))) :]) if values else math.nan

    @property
    def step(self) -> int:
        """The last step of any statistic."""
        return max((points[-1][0] for points in self.curves.values() if points), default=0)

    @property
    def is_late(self) -> bool:
        """True once enough of the run is over to judge whether the return rises."""
        return self.ended or self.step >= LATE * self.settings.max_steps

    @property
    def effect(self) -> float:
        """Rise of the return since the first tenth, in deviations of the first policy's returns; NaN if unknown."""
        values, deviation = self.values(RETURN), self.first("Data/Return Deviation")
        if len(values) < 2:
            return math.nan
        if not deviation > 1e-9:
            deviation = max(abs(values[0]), max(values) - min(values), 1e-9)
        return (self.late(RETURN, 0.1) - self.early(RETURN)) / deviation

    @property
    def fails(self) -> bool:
        """True if it is late and the return has not risen; a rule that other runs may share asks for this."""
        return not self.plays_others and self.is_late and self.effect < LEARNED

    @property
    def trainer(self) -> str:
        """The trainer's type."""
        return self.settings.trainer_type

    def hyperparameter(self, name: str, default: Any = None) -> Any:
        """Return a hyperparameter's value; the default if the trainer has none of this name."""
        if name == "learning_rate" and self.config is None:
            return self.last("Policy/Learning Rate")
        declared = self.settings.hyperparameters
        return declared.get(name, default) if isinstance(declared, dict) else getattr(declared, name, default)

    @property
    def strength(self) -> float:
        """Factor on the environment's reward."""
        extrinsic = self.settings.reward_signals.extrinsic
        return extrinsic.strength if extrinsic is not None else 1.0

    @property
    def gamma(self) -> float:
        """Discount of the environment's reward."""
        extrinsic = self.settings.reward_signals.extrinsic
        return extrinsic.gamma if extrinsic is not None else 0.99

    @property
    def plays_others(self) -> bool:
        """True if the behaviour's opponents change, so that its return need not rise."""
        return self.settings.self_play is not None or self.settings.league is not None
