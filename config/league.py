"""Leagues: the `league` section of a behaviour, its presets and checks (docs/league-rules.md has their sources)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from headrace.config.brains import MemberSettings, as_brains
from headrace.config.errors import Finding, suggest
from headrace.config.fields import Flag, Float, Int, Names, PlainMap, Settings, Text, as_tuple, report
from headrace.config.host_kinds import PlacementSettings

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "alphastar": {
        "learners": {
            "main": {
                "matches": [
                    {"match": "pfsp", "weight": 0.5, "weighting": "squared"},
                    {"match": "verify", "weight": 0.15, "against": ["main_exploiter"]},
                    {"match": "self", "weight": 0.35},
                ],
            },
            "main_exploiter": {
                "matches": [{"match": "newest", "against": ["main"]}],
                "freeze": {"first": False},
                "reset": {"probability": 1.0},
            },
            "league_exploiter": {
                "matches": [{"match": "pfsp", "weighting": "linear_capped"}],
                "freeze": {"first": False},
                "reset": {"probability": 0.25},
            },
        },
    },
    "five": {
        "iterations": 100,
        "learners": {
            "main": {
                "matches": [
                    {"match": "self", "weight": 0.8},
                    {"match": "pfsp", "weight": 0.2, "weighting": "five"},
                ],
                "freeze": {"win_rate": None},
            },
        },
    },
    "psro": {
        "payoff": "mean_return",
        "meta_solver": "nash",
        "rating": 0.1,
        "learners": {"main": {"matches": [{"match": "meta"}], "freeze": {"win_rate": None}}},
    },
}
"""The presets, keyed by name: values for keys of `league`, which the user's YAML can override."""

_SELF_PLAY: Mapping[str, Any] = {
    "hyperparameters": {
        "batch_size": 256,
        "buffer_size": 2048,
        "num_epoch": 3,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "linear",
        "beta": 1e-2,
        "beta_schedule": "linear",
        "epsilon_schedule": "constant",
        "max_grad_norm": None,
        "reward_normalization": False,
        "regularization": {"coefficient": 0.2, "anchor_steps": 30_000},
    },
    "network_settings": {"activation": "tanh", "normalize": False},
}

PRESET_LEARNING: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "alphastar": {"ppo": _SELF_PLAY},
    "five": {"ppo": _SELF_PLAY},
}
"""Defaults for a behaviour's keys, keyed by preset and by trainer: those with which the preset's rules learn well."""


UNKNOWN: Mapping[str, Any] = {"": {"learners": {}, "members": ()}}
"""Placeholder for `rivals` until the other leagues in a file have been read."""
START = "start"
"""Value of `reset.to` that means the initial weights."""
_LEARNER = re.compile(r"[A-Za-z0-9_-]+")

_KINDS = {
    "pfsp": "members of the pool that the learners in `against` froze, or that `against` names, chosen by `weighting`",
    "verify": (
        "if a member frozen by the learners in `against` beats the learner, those members; otherwise the learner's "
        "own frozen versions, if it has forgotten how to beat them; otherwise itself"
    ),
    "self": "itself; all teams learn",
    "newest": (
        "the newest policies of the learners in `against`; against a learner that this learner hardly ever beats, "
        "the frozen versions of that learner"
    ),
    "meta": "members of the pool, with their probabilities in the mixture of `meta_solver`",
}
"""Descriptions of the opponents that each value of `match` selects."""


_TAKERS = {"against": ("pfsp", "verify", "newest"), "weighting": ("pfsp",), "above": ("newest",)}
"""Maps keys of `MatchSettings` to the values of `match` that allow them."""


def _as_names(value: object) -> object:
    return (value,) if isinstance(value, str) else as_tuple(value)


class MatchSettings(Settings):
    """A fraction of a learner's games, and the opponents in these games."""

    match: Literal["pfsp", "verify", "self", "newest", "meta"] = Field(
        description="; ".join(f"`{kind}`: {meaning}" for kind, meaning in _KINDS.items()) + "."
    )
    weight: Float = Field(1.0, gt=0, le=1e6, description="The share of the games, relative to the other weights.")
    against: Annotated[Names | None, BeforeValidator(_as_names)] = Field(
        None,
        min_length=1,
        description="Learners to play against, and with `pfsp` also names of `members`; null: all (with `verify` and "
        "`newest`, all other learners).",
    )
    weighting: Literal["squared", "variance", "linear", "linear_capped", "uniform", "five"] = Field(
        "squared",
        description="With `pfsp`, by the probability p of beating a member: `squared` (1 - p)², `variance` p (1 - p), "
        "`linear` 1 - p, `linear_capped` min(0.5, 1 - p), `uniform` 1; or `five`, by OpenAI Five's quality scores.",
    )
    above: Float = Field(
        0.1,
        ge=0,
        le=1,
        description="With `newest`: a learner plays an opponent's newest policy if it beats that policy with a higher "
        "probability than this. AlphaStar uses 0.1 for main exploiters, and 0.3 for main agents among themselves.",
    )

    @model_serializer(mode="wrap")
    def _without_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Drop keys that apply only to other values of `match`."""
        return {key: value for key, value in handler(self).items() if self.match in _TAKERS.get(key, (self.match,))}

    def _mistakes(self) -> Iterator[Finding]:
        for key, kinds in _TAKERS.items():
            if self.match not in kinds and getattr(self, key) != type(self).model_fields[key].default:
                message = f"can't be combined with match '{self.match}', only with {', '.join(kinds)}; leave it out"
                yield Finding((key,), message, (("match",),))


class FreezeSettings(Settings):
    """When a learner's newest policy is added to the pool as a member. Members never change."""

    after: Int | None = Field(
        None,
        gt=0,
        description="Minimum number of trainer steps between two freezes.",
        json_schema_extra={"default_text": "half of `at_most`"},
    )
    at_most: Int | None = Field(
        None,
        gt=0,
        description="Number of trainer steps after which the learner is frozen, whatever its results.",
        json_schema_extra={"default_text": "2 × `after`; otherwise `max_steps` / (`iterations` + ½)"},
    )
    win_rate: Float | None = Field(
        0.7,
        ge=0,
        le=1,
        description="Between `after` and `at_most`, the learner is frozen as soon as it beats each of its opponents "
        "with a higher probability than this; null: never.",
    )
    first: Flag = Field(True, description="If true, the learner's initial policy is frozen as well.")

    def _mistakes(self) -> Iterator[Finding]:
        if self.after is not None and self.at_most is not None and self.after > self.at_most:
            yield Finding(("after",), f"{self.after} is greater than at_most ({self.at_most})", (("at_most",),))

    def for_steps(self, longest: int) -> FreezeSettings:
        """Return a copy with both step counts filled in; `longest` is the default of `at_most`."""
        at_most = self.at_most or (longest if self.after is None else 2 * self.after)
        return self.model_copy(update={"at_most": at_most, "after": self.after or -(-at_most // 2)})


class ResetSettings(Settings):
    """Whether, and to what weights, a learner is reset after a freeze."""

    probability: Float = Field(1.0, ge=0, le=1, description="Probability of a reset after each freeze.")
    to: Text = Field(
        START,
        description="`start`: the learner's own initial weights; otherwise the name of a learner whose newest "
        "weights it copies.",
    )


class LearnerSettings(Settings):
    """A learner in a league. Any behaviour key may also appear here, and overrides the behaviour's value."""

    actors: Int = Field(
        1,
        gt=0,
        le=10_000,
        description="Number of actors that play for the learner; the run's number of actors is the sum over all "
        "learners.",
    )
    matches: Annotated[tuple[MatchSettings, ...], BeforeValidator(as_tuple)] = Field(
        default_factory=lambda: (MatchSettings(match="pfsp"),),
        min_length=1,
        description="The opponents, with their shares of the games; if a share has no players, its games go to the "
        "other shares.",
        json_schema_extra={"default_text": "`pfsp` alone"},
    )
    freeze: FreezeSettings = Field(
        default_factory=FreezeSettings, description="When the learner is frozen into the pool."
    )
    reset: ResetSettings | None = Field(
        None, description="What happens to the learner after it is frozen; null: it continues."
    )
    placement: PlacementSettings | None = Field(
        None,
        description="Where the learner and its actors run; null: like all hosts (`torch_settings`, `pipeline.hosts`).",
    )
    own: PlainMap = Field(
        default_factory=dict, exclude=True, description="The learner's other keys, which override the behaviour's."
    )

    @model_validator(mode="before")
    @classmethod
    def _split(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return {} if data is None else data
        shared = {key: data[key] for key in data if key in cls.model_fields}
        learner_keys = {key: data[key] for key in data if key not in cls.model_fields}
        return shared | ({"own": {**shared.get("own", {}), **learner_keys}} if learner_keys else {})

    @model_serializer(mode="wrap")
    def _joined(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**self.own, **handler(self)}


class LeagueSettings(Settings):
    """Several learners of one behaviour, which play against each other and against frozen policies.

    The name of a preset may replace the entire section: `league: psro`.
    """

    preset: Literal["alphastar", "five", "psro"] | None = Field(
        None,
        description="Preset that the other keys override, key by key; null removes one of the preset's learners. The "
        "presets are described in docs/league-rules.md.",
    )
    payoff: Literal["win_rate", "mean_return"] = Field(
        "win_rate",
        description="Result that is recorded for games between two players. `mean_return` is for games such as poker, "
        "in which the amount won matters; its position between the lowest and the highest return so far serves as a "
        "probability.",
    )
    decay: Float = Field(
        0.99,
        gt=0,
        le=1,
        description="Factor by which each new game of a pair discounts the pair's earlier results, if at least one "
        "of the two players is still learning.",
    )
    meta_solver: Literal["nash", "replicator", "uniform"] | None = Field(
        None,
        description="How to compute the mixture of members from the results of their games: as a Nash equilibrium "
        '(needs SciPy: pip install "headrace[league]"), by projected replicator dynamics, or uniform.',
    )
    rating: Float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the games in which members play each other; these games go to the pairs whose next "
        "result is most informative about the mixture's value.",
    )
    learning: Literal["all", "turns"] = Field(
        "all",
        description="`all`: all learners learn simultaneously. `turns`: one learner learns at a time; the others are "
        "only opponents, their policies do not change and their actors wait.",
    )
    turn_steps: Int | None = Field(
        None,
        gt=0,
        description="With `learning: turns`: trainer steps in each turn.",
        json_schema_extra={"default_text": "the learner's `freeze.at_most`"},
    )
    iterations: Int = Field(
        20, gt=0, le=10**6, description="How many times each learner is frozen, if `freeze` sets no steps."
    )
    quality_rate: Float = Field(
        0.01, gt=0, description="With `weighting: five`: η, the rate at which a win lowers the loser's quality score."
    )
    members: Annotated[tuple[MemberSettings, ...], BeforeValidator(as_brains)] = Field(
        (), description="Brains that are members of the pool from the start and never learn."
    )
    of: Text = Field(
        "", description="For a learner: its behaviour in the environment. Do not set it: the run fills it in."
    )
    learners: dict[Text, LearnerSettings] = Field(
        default_factory=lambda: {"main": LearnerSettings()},
        min_length=1,
        description="The learners, keyed by name. The first one is the league's main learner.",
        json_schema_extra={"default_text": "`main` alone"},
    )

    learner: Text = Field("", description="For a learner: its name in the league. Do not set it: the run fills it in.")
    rivals: PlainMap = Field(
        default_factory=dict,
        description="For a learner: the contents of the leagues of the game's other behaviours, by behaviour: "
        "`learners`, each with its `freeze.first`, and `members`. Do not set it: the run fills it in.",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Merge the section's keys over those of the preset, and drop the preset's name."""
        named = isinstance(data, str)
        data = {"preset": data} if named else data
        preset = data.get("preset") if isinstance(data, Mapping) else None
        if preset is None:
            return data
        if preset not in PRESETS:
            message = (
                f"'{preset}' is not a preset; expected {', '.join(map(repr, PRESETS))}{suggest(str(preset), PRESETS)}"
            )
            report([Finding(() if named else ("preset",), message)])
        merged = _over(PRESETS[preset], {key: data[key] for key in data if key != "preset"})
        if isinstance(merged["learners"], Mapping):
            left = {name: learner for name, learner in merged["learners"].items() if learner is not None}
            merged["learners"] = left
        return merged

    def of_learner(self, behavior: str, learner: str, others: Mapping[str, LeagueSettings]) -> dict[str, Any]:
        """Return the `league` section for one learner's settings, as plain data.

        Args:
            behavior: the league's behaviour.
            learner: the learner's name.
            others: the leagues of the other behaviours.
        """
        learners = {name: settings.model_copy(update={"own": {}}) for name, settings in self.learners.items()}
        rivals = {name: league._seen_by_rivals() for name, league in others.items()}
        filled = {"learners": learners, "of": behavior, "learner": learner, "rivals": rivals}
        return self.model_copy(update=filled).model_dump(mode="json", by_alias=True)

    def _seen_by_rivals(self) -> dict[str, Any]:
        learners = {name: learner.freeze.first for name, learner in self.learners.items()}
        return {"learners": learners, "members": [member.name for member in self.members]}

    @property
    def names(self) -> list[str]:
        """The behaviour names of all learners."""
        return [f"{self.of}.{learner}" for learner in self.learners]

    def for_steps(self, max_steps: int | Mapping[str, int]) -> LeagueSettings:
        """Return a copy in which each learner's `freeze` has explicit step counts.

        Args:
            max_steps: one value for all learners, or a map keyed by learner.
        """
        learners = {}
        for name, learner in self.learners.items():
            steps = max_steps if isinstance(max_steps, int) else max_steps[name]
            # The extra half leaves enough steps to rate the last member. Also, a league never sees a trainer's last
            # policy.
            freeze = learner.freeze.for_steps(max(1, int(steps / (self.iterations + 0.5))))
            learners[name] = learner.model_copy(update={"freeze": freeze})
        return self.model_copy(update={"learners": learners})

    def turns(self) -> dict[str, int]:
        """Return the number of steps in each learner's turn; empty if all learn simultaneously.

        Call this only on settings from `for_steps`, whose `freeze` has explicit step counts.
        """
        if self.learning == "all":
            return {}
        return {name: self.turn_steps or learner.freeze.at_most or 1 for name, learner in self.learners.items()}

    def _mistakes(self) -> Iterator[Finding]:
        if self.learning == "all" and self.turn_steps is not None:
            message = "has no effect if all learners learn simultaneously; leave it out, or add 'learning: turns'"
            yield Finding(("turn_steps",), message, (("learning",),))
        yield from self._about_names()
        mine = {name: learner for name, learner in self.learners.items() if self.learner in ("", name)}
        for name, learner in ({} if self.rivals == UNKNOWN else mine).items():
            for index, share in enumerate(learner.matches):
                for finding in self._about_match(name, share):
                    yield Finding(("learners", name, "matches", index, *finding.path), finding.message)
            if learner.reset is not None and learner.reset.to not in {START, *self.learners} - {name}:
                others = ", ".join(repr(word) for word in (START, *self.learners) if word != name)
                message = f"'{learner.reset.to}' is not valid; expected one of {others}"
                yield Finding(("learners", name, "reset", "to"), message, (("learners",),))
            if not any(self._can_begin(share) for share in learner.matches):
                message = (
                    "no opponent exists at the start, because no member is frozen before the learners have played; "
                    "set 'freeze: {first: true}' for a learner, list 'members', or add {match: self}"
                )
                yield Finding(("learners", name, "matches"), message, (("learners",), ("members",)))

    def _about_names(self) -> Iterator[Finding]:
        taken = [member.name for member in self.members]
        for index, name in enumerate(taken):
            if name in taken[:index]:
                message = f"'{name}' is the name of several members; give each one a unique `name`"
                key = "name" if self.members[index]._is_set("name") else "use"
                yield Finding(("members", index, key), message)
        for name in self.learners:
            if name == START or name in taken or not _LEARNER.fullmatch(name):
                why = (
                    f"in `reset`, '{START}' means the initial weights"
                    if name == START
                    else "a member has this name"
                    if name in taken
                    else "a learner's name can contain only letters, digits, '_' and '-'"
                )
                yield Finding(("learners", name), f"{why}; give the learner another name")

    def _about_match(self, name: str, share: MatchSettings) -> Iterator[Finding]:
        possible = [other for other in self._opponents() if other != name or share.match == "pfsp" or self.rivals]
        possible += self._brains() if share.match == "pfsp" else []
        for index, opponent in enumerate(share.against or ()):
            if opponent not in possible:
                expected = ", ".join(map(repr, possible)) or "another learner, but the league has no other"
                message = (
                    f"'{opponent}' is not a possible opponent here; expected {expected}{suggest(opponent, possible)}"
                )
                yield Finding(("against", index), message)
        if share.match == "newest" and not possible:
            yield Finding(("match",), "needs another learner, and the league has only this one; use 'self'")
        if share.match == "meta" and self.meta_solver is None:
            yield Finding(
                ("match",), "needs meta_solver, which sets how often each member is an opponent: 'meta_solver: nash'"
            )

    def _opponents(self) -> dict[str, bool]:
        """Return the `freeze.first` of each learner that may be an opponent, keyed by learner.

        If other behaviours have leagues, only those behaviours' learners may be opponents.
        """
        sides = [*self.rivals.values()] or [self._seen_by_rivals()]
        freezes_first: dict[str, bool] = {}
        for side in sides:
            freezes_first |= {name: first or freezes_first.get(name, False) for name, first in side["learners"].items()}
        return freezes_first

    def _brains(self) -> list[str]:
        """Return the names of the brains that may be opponents."""
        sides = [*self.rivals.values()] or [self._seen_by_rivals()]
        return list(dict.fromkeys(name for side in sides for name in side["members"]))

    def _can_begin(self, share: MatchSettings) -> bool:
        if share.match not in ("pfsp", "meta"):
            return True
        players = {name for name, first in self._opponents().items() if first} | {*self._brains()}
        return bool(players if share.against is None else players.intersection(share.against))


def _over(below: Any, above: Any) -> Any:
    """Merge two maps recursively. Values that are not maps are replaced: `above` overrides `below`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}


def expanded(settings: LeagueSettings) -> dict[str, Any]:
    """Return a `league` section with presets and defaults filled in, as plain data for YAML."""
    return {"league": settings.model_dump(mode="json", by_alias=True, exclude={"preset", "of", "learner", "rivals"})}
