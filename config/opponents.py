"""A policy's opponents: the `self_play` and `evaluation` sections, and a table of opponents for each."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.config.brains import (
    LEARNING,
    PLAYER,
    BrainSettings,
    as_brains,
    check_brains,
    check_use,
    check_with,
    meanings,
)
from headrace.config.errors import Finding, suggest
from headrace.config.fields import Float, Int, PlainMap, Settings, Text, changed, is_reference

# Self-play: either one team at a time learns while the others play earlier policies, or all teams learn simultaneously.


@dataclass(frozen=True, slots=True)
class OpponentSamplerKind:
    """One built-in method for choosing opponents."""

    implementation: str
    """`module:Class` of an `OpponentSampler` (`headrace.stages.ghost`)."""
    keys: tuple[str, ...] = ()
    """Keys that the sampler accepts in `opponents_with`."""


OPPONENT_SAMPLERS = {
    "latest_or_uniform": OpponentSamplerKind("headrace.stages.ghost.policy_history:UniformOpponents"),
    "prioritised": OpponentSamplerKind("headrace.stages.ghost.policy_history:PrioritisedOpponents", ("power",)),
}
"""Built-in samplers, keyed by the value of `opponents`; a custom `module:Class` needs no entry."""


def _sampler(value: object) -> object:
    if not isinstance(value, str) or value in OPPONENT_SAMPLERS or is_reference(value):
        return value
    raise ValueError(
        f"'{value}' is not a way to choose opponents; expected {', '.join(map(repr, OPPONENT_SAMPLERS))} or "
        f"'module:Class' for your own{suggest(value, OPPONENT_SAMPLERS)}"
    )


_OF_TURNS = (
    "team_change",
    "swap_steps",
    "window",
    "play_against_latest_model_ratio",
    "opponents",
    "opponents_with",
    "brains",
)
"""Keys of `self_play` that have no effect if all teams learn simultaneously."""


class SelfPlaySettings(Settings):
    """`self_play`: training one team at a time against snapshots of the others, or all teams against each other."""

    learning_teams: Literal["turns", "all"] = Field(
        "turns",
        description="`turns`: one team learns, against the newest policies and snapshots of the others, until the "
        "next team's turn. `all`: all teams learn simultaneously, with their newest policies, in every game: "
        f"{', '.join(f'`{key}`' for key in _OF_TURNS)} can't be set then. Not in ML-Agents.",
    )

    save_steps: Int = Field(20000, gt=0, description="Trainer steps between snapshots.")
    team_change: Int = Field(
        100000,
        gt=0,
        description="Trainer steps of the learning team before the next team starts to learn.",
        json_schema_extra={"default_text": "5 × `save_steps`"},
    )
    swap_steps: Int = Field(
        2000,
        gt=0,
        description="Ghost steps between two changes of the policy that this behaviour plays as an opponent. For x "
        "swaps during the other team's turn: (agents of this team / agents of the other team) × the other team's "
        "`team_change` / x.",
    )
    window: Int = Field(10, gt=0, le=10_000, description="Number of snapshots from which opponents are drawn.")
    play_against_latest_model_ratio: Float = Field(
        0.5, ge=0, le=1, description="Probability that the opponent is the newest policy, whatever `opponents` says."
    )
    opponents: Annotated[Text, BeforeValidator(_sampler)] = Field(
        "latest_or_uniform",
        description="How to choose a snapshot if the opponent is not the newest policy: `latest_or_uniform` (each is "
        "as likely as the others, as in ML-Agents), `prioritised` (prefers those that the learner loses to) or your "
        "own `module:Class`. Not in ML-Agents.",
    )
    opponents_with: PlainMap = Field(
        default_factory=dict,
        description="Keyword arguments for `opponents`. `prioritised` accepts `power` (a non-negative number, "
        "default 2): a snapshot that the learner beats with probability p is chosen in proportion to (1 - p) ^ "
        "power. Not in ML-Agents.",
    )
    brains: Annotated[tuple[BrainSettings, ...], BeforeValidator(as_brains)] = Field(
        (),
        description="Brains that do not learn, each of which controls the opponents in its share of the games; in the "
        "remaining games, the opponents play with the newest policy or a snapshot. Not in ML-Agents.",
        json_schema_extra={"default_text": "none"},
    )
    initial_elo: Float = Field(1200.0, description="Initial rating, in ELO points.")
    elo_k: Float = Field(
        16.0, gt=0, description="Maximum change of a rating per match, in ELO points. Not in ML-Agents."
    )

    def _mistakes(self) -> list[Finding]:
        if self.learning_teams == "all":
            message = (
                "has no effect if all teams learn simultaneously, because every game uses the newest policies; leave "
                "it out"
            )
            return [Finding((key,), message, (("learning_teams",),)) for key in changed(self) if key in _OF_TURNS]
        return [*self._about_opponents(), *check_brains(self.brains, "brains")]

    def _derive(self) -> None:
        if not self._is_set("team_change") and self.learning_teams == "turns":
            self._fill(team_change=5 * self.save_steps)

    def _about_opponents(self) -> list[Finding]:
        built_in = OPPONENT_SAMPLERS.get(self.opponents)
        if built_in is None:  # a user's class, which checks its own arguments
            return []
        accepts = f"only {', '.join(map(repr, built_in.keys))}" if built_in.keys else "no arguments"
        findings = [
            Finding(("opponents_with", key), f"'{self.opponents}' accepts {accepts}; leave it out", (("opponents",),))
            for key in self.opponents_with
            if key not in built_in.keys
        ]
        power = self.opponents_with.get("power", 0)
        if not findings and (isinstance(power, bool) or not isinstance(power, int | float) or not 0 <= power < inf):
            message = f"{power!r} is not valid; expected a finite, non-negative number"
            findings.append(Finding(("opponents_with", "power"), message))
        return findings


# Evaluation.


@dataclass(frozen=True, slots=True)
class EvaluationOpponentsKind:
    """One built-in kind of opponents."""

    implementation: str
    """`module:Class` of an `EvaluationOpponents` (`headrace.stages.evaluation`)."""
    meaning: str
    """Description for the YAML reference."""


EVALUATION_OPPONENTS = {
    "self": EvaluationOpponentsKind(
        "headrace.stages.evaluation.opponents:NewestOpponents",
        "all agents of all behaviours act with the newest policies",
    ),
    "snapshot": EvaluationOpponentsKind(
        "headrace.stages.evaluation.opponents:SnapshotOpponents",
        "the policies at the time of the first evaluation, saved in `<behavior>-opponent.pt`",
    ),
}
"""Kinds of opponents, keyed by the value of `evaluation.opponents`; any other value is a brain
(`headrace.config.brains`)."""


def _opponents(value: object) -> object:
    return check_use(value, EVALUATION_OPPONENTS) if isinstance(value, str) else value


class EvaluationSettings(Settings):
    """The `evaluation` section: deterministic play during training, in separate environments."""

    every: Int = Field(gt=0, description="Trainer steps between evaluations; the final policy is evaluated as well.")
    episodes: Int = Field(20, gt=0, description="Number of agent episodes in each evaluation of a behaviour.")
    opponents: Annotated[Text, BeforeValidator(_opponents)] = Field(
        "self",
        description="How the agents of other teams act (of other behaviours, if there is only one team): "
        + "; ".join(f"`{name}`: {kind.meaning}" for name, kind in EVALUATION_OPPONENTS.items())
        + f"; {meanings(LEARNING, PLAYER)}.",
    )
    opponents_with: PlainMap = Field(
        default_factory=dict, description="Keyword arguments for `opponents`, if it is a brain."
    )

    def _mistakes(self) -> list[Finding]:
        if self.opponents not in EVALUATION_OPPONENTS:
            return check_with(self.opponents, self.opponents_with, "opponents")
        message = f"'{self.opponents}' accepts no arguments; leave it out"
        return [Finding(("opponents_with", key), message, (("opponents",),)) for key in self.opponents_with]
