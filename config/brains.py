"""Brains, which choose the agents' actions: the table of brain kinds, and the settings that refer to brains.

A brain that does not learn can act for a behaviour or for some of its teams, in all games or in a fraction of them, or
as an opponent in self-play and in evaluations. In all these cases, the `use` key selects the brain. To add a kind, add
an entry here and write the function that the entry names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from headrace.config.errors import Finding, suggest
from headrace.config.fields import Float, Int, PlainMap, Settings, Text, as_tuple, is_reference
from headrace.config.paths import user_path
from headrace.config.tables import Table

LEARNING = "learning"
PLAYER = "player"
MODEL_SUFFIXES = (".pt", ".onnx")


@dataclass(frozen=True, slots=True)
class BrainKind:
    """One kind of brain. Its function is specified as `module:name` and is imported when a run needs it."""

    meaning: str
    """Description for the YAML reference."""
    maker: str | None
    """Function that takes a `BrainRequest` and returns the object that chooses actions. If the request has no spec yet,
    the function only checks what it can without a spec, and returns None. This field is None if the brain is a
    trainer's policy."""
    keys: tuple[str, ...] | None = ()
    """Keys that the brain accepts in `with`; None if the brain's own code checks them."""


BRAIN_KINDS: Table[BrainKind] = Table(
    learning=BrainKind("the trainer's newest policy", None),
    random=BrainKind(
        "random actions, uniform in [-1, 1] or among the allowed choices",
        "headrace.stages.brains:make_uniform",
    ),
    scripted=BrainKind(
        "the scripted player of a built-in game, or `module:Class` for your own",
        "headrace.stages.brains:make_script",
        None,
    ),
    model=BrainKind(
        "a trained policy: a `.pt` or `.onnx` file, or the policies of a run (`results/first`, `results/first@best`, "
        "`results/first/Ball@500000`); `with: {deterministic: true}` selects its most likely actions",
        "headrace.pipeline.policies.inference:make_model",
        ("deterministic",),
    ),
    player=BrainKind(
        "a person who plays with the keyboard on the live page, in every game of the run's only instance, which "
        "waits for the person; needs `--monitor-control`",
        "headrace.stages.exhibition.people:make_player",
    ),
)
"""The brain kinds, keyed by name; `kind_of` returns the kind that a value of `use` selects."""

SCRIPTED_PLAYERS: Mapping[str, tuple[str, ...]] = {
    "Volley": ("headrace.stages.games.volley:ScriptedPlayer",),
    "ConnectFour": ("headrace.stages.games.connect_four:TacticalPlayer",),
    "Pursuit": ("headrace.stages.games.pursuit:ScriptedPursuer", "headrace.stages.games.pursuit:ScriptedEvader"),
}
"""Maps each built-in game to its scripted player, as `module:Class`, or to one player per team if these differ."""


def kind_of(use: str) -> str | None:
    """Return the kind of brain that a value of `use` selects; None if the value does not name a brain."""
    if use in (LEARNING, "random", "scripted", PLAYER):
        return use
    if is_reference(use):
        return "scripted"
    looks_like_a_path = "/" in use or "\\" in use or "@" in use or use.endswith(MODEL_SUFFIXES)
    return "model" if looks_like_a_path else None


def check_use(use: str, more: Collection[str] = (), people: bool = False) -> str:
    """Check and return a value of `use`: a brain or one of the words in `more`.

    Args:
        use: the value to check.
        more: additional words that are allowed.
        people: True to allow a human player.

    Raises:
        ValueError: if the value is neither a brain nor one of the words.
    """
    if use == LEARNING:
        raise ValueError(
            "'learning' can't be in a list of brains: the trainer's policy plays the games that the listed brains "
            "don't; leave it out, and give the listed brains weights that add up to less than 1"
        )
    if use == PLAYER and not people:
        raise ValueError(
            "'player' is a person, so it can only be the single 'brain' of a behaviour, for all its games "
            "(docs/play.md); name another opponent, or set 'brain: {use: player, teams: [1]}' for that behaviour"
        )
    if use in more or kind_of(use) is not None:
        return user_path(use) if kind_of(use) == "model" else use
    left_out = (LEARNING,) if people else (LEARNING, PLAYER)
    words = [*more, *(word for word in BRAIN_KINDS if kind_of(word) == word and word not in left_out)]
    raise ValueError(
        f"'{use}' is not a brain; expected {', '.join(map(repr, words))}, 'module:Class' of a scripted player, or a "
        f"model: a .pt or .onnx file, or the folder of a run, such as results/first{suggest(use, words)}"
    )


def check_with(use: str, arguments: Mapping[str, object], named: str = "use") -> list[Finding]:
    """Find arguments that a brain does not accept, unless the brain's own code checks them."""
    accepted = BRAIN_KINDS[kind_of(use) or LEARNING].keys
    if accepted is None:
        return []
    key = "with" if named == "use" else f"{named}_with"
    takes = f"only {', '.join(map(repr, accepted))}" if accepted else "no arguments"
    findings = [
        Finding((key, name), f"'{use}' accepts {takes}; leave it out", ((named,),))
        for name in arguments
        if name not in accepted
    ]
    findings += [
        Finding((key, name), f"{value!r} is not valid; expected true or false")
        for name, value in arguments.items()
        if name == "deterministic" and name in accepted and not isinstance(value, bool)
    ]
    return findings


def drawn(shares: Sequence[float], at: float) -> int:
    """Return the index of the share that a number from [0, 1) falls into; -1 if it falls into none."""
    for index, share in enumerate(shares):
        if at < share:
            return index
        at -= share
    return len(shares) - 1 if fills(shares) else -1


def fills(shares: Sequence[float]) -> bool:
    """Return True if the shares add up to 1."""
    return sum(shares) > 1 - _ROUNDING


_ROUNDING = 1e-5
"""Tolerance for rounding errors: three shares of 0.333333 count as adding up to 1."""


def meanings(*left_out: str) -> str:
    """Return a description of each kind for the YAML reference."""
    return "; ".join(f"`{name}`: {kind.meaning}" for name, kind in BRAIN_KINDS.items() if name not in left_out)


class MemberSettings(Settings):
    """A brain that does not learn."""

    use: Annotated[Text, BeforeValidator(lambda value: check_use(value) if isinstance(value, str) else value)] = Field(
        description=f"{meanings(LEARNING, PLAYER)}."
    )
    with_: PlainMap = Field(default_factory=dict, alias="with", description="Keyword arguments for the brain.")
    name: Text = Field(
        "",
        min_length=1,
        description="The brain's name in ratings and logs; must be unique.",
        json_schema_extra={"default_text": "`use`"},
    )

    def _mistakes(self) -> list[Finding]:
        return check_with(self.use, self.with_)

    def _derive(self) -> None:
        if not self._is_set("name"):
            self._fill(name=self.use)


class BrainSettings(MemberSettings):
    """A brain that does not learn, and the fraction of the games that it plays."""

    weight: Float = Field(
        1.0, gt=0, le=1, description="The brain's share of the games, drawn for each game: 0.2 is a fifth of them."
    )


class OwnBrainSettings(BrainSettings):
    """A brain that chooses the actions of a behaviour's agents, or of some of its teams, in a fraction of the games."""

    use: Annotated[
        Text, BeforeValidator(lambda value: check_use(value, people=True) if isinstance(value, str) else value)
    ] = Field(description=f"{meanings(LEARNING)}.")
    teams: Annotated[tuple[Int, ...] | None, BeforeValidator(as_tuple)] = Field(
        None, min_length=1, description="Ids of the teams that the brain controls; null: all teams."
    )


def as_brains(value: object) -> object:
    """Normalise a value of `brain`: return an empty list for `learning`, otherwise a list of brains."""
    if value in (LEARNING, {"use": LEARNING}):
        return ()
    if isinstance(value, str):
        return ({"use": value},)
    return (value,) if isinstance(value, Mapping | BrainSettings) else as_tuple(value)


def check_brains(brains: Sequence[BrainSettings], key: str) -> list[Finding]:
    """Find conflicting settings in a list of brains."""
    findings = []
    for index, brain in enumerate(brains):
        if brain.name in [before.name for before in brains[:index]]:
            message = f"'{brain.name}' is the name of several brains; give each one a unique `name`"
            findings.append(Finding((key, index, "name" if brain._is_set("name") else "use"), message))
    teams = {team for brain in brains for team in (getattr(brain, "teams", None) or ())} | {None}
    for team in sorted(teams, key=str):
        total = sum(brain.weight for brain in brains_of_team(brains, team))
        if total > 1 + _ROUNDING:
            which = "" if team is None else f" of team {team}"
            message = f"the weights{which} are shares of the games and add up to {total:g}; expected at most 1"
            return [*findings, Finding((key,), message)]
    return findings


def brains_of_team(brains: Sequence[BrainSettings], team: int | None) -> list[BrainSettings]:
    """Return the brains that act for a team; None means any team that no brain names."""
    return [brain for brain in brains if (teams := getattr(brain, "teams", None)) is None or (team in teams)]


def play_all_games(block: Mapping[str, object]) -> bool:
    """Return True if brains that do not learn play all games of a behaviour, whose block is given as plain data."""
    try:
        listed: Any = as_tuple(as_brains(block.get("brain") or ()))
        brains = [OwnBrainSettings.model_validate(brain) for brain in listed]
    except (TypeError, ValueError):  # a later version's, or another program's
        return False
    return bool(brains) and leave_nobody_to_learn(brains)


def leave_nobody_to_learn(brains: Sequence[OwnBrainSettings]) -> bool:
    """Return True if brains play every game for every team (or for each of teams 0 to n, if only those are named)."""
    named = {team for brain in brains for team in brain.teams or ()}
    teams = sorted(named) if named == set(range(len(named))) and len(named) > 1 else [None]
    return all(fills([brain.weight for brain in brains_of_team(brains, team)]) for team in teams)
