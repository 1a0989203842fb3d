"""The `evaluation` section, and the table of those who play against the policies that are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from config.errors import Finding, suggest
from config.fields import Int, PlainMap, Settings, Text, is_reference, report


@dataclass(frozen=True, slots=True)
class EvaluationOpponentsKind:
    """One built-in kind of opponents."""

    implementation: str
    """`module:Class`, `EvaluationOpponents` of `stages.evaluation`."""
    meaning: str
    """For the reference of the YAML."""


EVALUATION_OPPONENTS = {
    "self": EvaluationOpponentsKind(
        "stages.evaluation.opponents:NewestOpponents",
        "all agents of all behaviours act by the newest policies",
    ),
    "snapshot": EvaluationOpponentsKind(
        "stages.evaluation.opponents:SnapshotOpponents",
        "by the policies as they were at the first evaluation, kept in `<behavior>-opponent.pt`",
    ),
    "random": EvaluationOpponentsKind(
        "stages.evaluation.opponents:RandomOpponents",
        "at random",
    ),
}
"""By `evaluation.opponents`; a `module:Class` of the user's needs no entry."""


def _opponents(value: object) -> object:
    if not isinstance(value, str) or value in EVALUATION_OPPONENTS or is_reference(value):
        return value
    raise ValueError(
        f"'{value}' is no kind of opponents; expected {', '.join(map(repr, EVALUATION_OPPONENTS))} or your own "
        f"'module:Class'{suggest(value, EVALUATION_OPPONENTS)}"
    )


class EvaluationSettings(Settings):
    """The `evaluation` section: deterministic play, beside training, on environments of its own."""

    every: Int = Field(gt=0, description="Trainer steps between evaluations; the last policy is played as well.")
    episodes: Int = Field(20, gt=0, description="Agents' episodes in each evaluation of a behaviour.")
    opponents: Annotated[Text, BeforeValidator(_opponents)] = Field(
        "self",
        description="How the agents of other teams act (of other behaviours, where there is one team only): "
        + "; ".join(f"`{name}`: {kind.meaning}" for name, kind in EVALUATION_OPPONENTS.items())
        + "; `module:Class`: a scripted player, such as `stages.games.volley:ScriptedPlayer`.",
    )
    opponents_with: PlainMap = Field(
        default_factory=dict, description="Keyword arguments for a `module:Class` of `opponents`."
    )

    @model_validator(mode="after")
    def _only_classes_take_arguments(self) -> EvaluationSettings:
        if self.opponents in EVALUATION_OPPONENTS:
            message = f"'{self.opponents}' accepts nothing; leave it out"
            report([Finding(("opponents_with", key), message, (("opponents",),)) for key in self.opponents_with])
        return self
