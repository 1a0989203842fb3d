"""The `evaluation` section, and the table of those who play against the policies that are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from headrace.config.brains import LEARNING, PLAYER, check_use, check_with, meanings
from headrace.config.errors import Finding
from headrace.config.fields import Int, PlainMap, Settings, Text, report


@dataclass(frozen=True, slots=True)
class EvaluationOpponentsKind:
    """One built-in kind of opponents."""

    implementation: str
    """`module:Class`, `EvaluationOpponents` of `headrace.stages.evaluation`."""
    meaning: str
    """For the reference of the YAML."""


EVALUATION_OPPONENTS = {
    "self": EvaluationOpponentsKind(
        "headrace.stages.evaluation.opponents:NewestOpponents",
        "all agents of all behaviours act by the newest policies",
    ),
    "snapshot": EvaluationOpponentsKind(
        "headrace.stages.evaluation.opponents:SnapshotOpponents",
        "by the policies as they were at the first evaluation, kept in `<behavior>-opponent.pt`",
    ),
}
"""By `evaluation.opponents`; all else is a brain (`headrace.config.brains`)."""


def _opponents(value: object) -> object:
    return check_use(value, EVALUATION_OPPONENTS) if isinstance(value, str) else value


class EvaluationSettings(Settings):
    """The `evaluation` section: deterministic play, beside training, on environments of its own."""

    every: Int = Field(gt=0, description="Trainer steps between evaluations; the last policy is played as well.")
    episodes: Int = Field(20, gt=0, description="Agents' episodes in each evaluation of a behaviour.")
    opponents: Annotated[Text, BeforeValidator(_opponents)] = Field(
        "self",
        description="How the agents of other teams act (of other behaviours, where there is one team only): "
        + "; ".join(f"`{name}`: {kind.meaning}" for name, kind in EVALUATION_OPPONENTS.items())
        + f"; {meanings(LEARNING, PLAYER)}.",
    )
    opponents_with: PlainMap = Field(
        default_factory=dict, description="Keyword arguments for `opponents`, where these are a brain."
    )

    @model_validator(mode="after")
    def _only_brains_take_arguments(self) -> EvaluationSettings:
        if self.opponents in EVALUATION_OPPONENTS:
            message = f"'{self.opponents}' accepts nothing; leave it out"
            report([Finding(("opponents_with", key), message, (("opponents",),)) for key in self.opponents_with])
        else:
            report(check_with(self.opponents, self.opponents_with, "opponents"))
        return self
