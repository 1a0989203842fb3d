"""Opponents in evaluations: whom an evaluated policy plays against; `config.evaluation` has the table of built-in ones.

Opponents are the agents of other teams; where an environment has one team only, those of other behaviours. Its mates
always act by their own newest policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from config import RunConfig
from config.evaluation import EVALUATION_OPPONENTS
from queues.messages import PolicyUpdate
from queues.specs import BehaviorSpec
from stages.errors import LoadError, blaming
from stages.evaluation.players import SEED, Player, ScriptPlayer, UniformPlayer
from stages.plugins import check_arguments, construct, find_class

_WHERE = "evaluation.opponents"

PlayPolicy = Callable[[BehaviorSpec, PolicyUpdate | None], Player]
"""Makes a player by a policy; None for a policy that is not known yet."""


class EvaluationOpponents(Protocol):
    """Gives the agents of each opponent behaviour id a player."""

    everyone_counts: bool
    """True if the evaluated policy plays for all teams at once; else for one after the other, in games of its own."""

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make a player for one evaluation.

        Args:
            spec: the behaviour id.
            newest: the newest policy of its behaviour; None if there is none yet.
            play: makes a player by a policy.
        """
        ...


class SnapshotStore(Protocol):
    """Keeps the policies that are played against, beyond the end of a run that is resumed."""

    def read(self, behavior: str) -> PolicyUpdate | None:
        """Return the policy kept for a behaviour name; None if there is none."""
        ...

    def keep(self, policy: PolicyUpdate, spec: BehaviorSpec) -> None:
        """Keep a policy of a behaviour."""
        ...


class NewestOpponents:
    """The newest policies."""

    everyone_counts = True

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Play the newest policy."""
        return play(spec, newest)


class SnapshotOpponents:
    """The policies as they were when they were first played against: the same all along, so scores can be compared.

    Args:
        store: keeps them.
    """

    everyone_counts = False

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._kept: dict[str, PolicyUpdate] = {}

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Play the snapshot, and make it of the newest policy if there is none."""
        if spec.name not in self._kept:
            kept = self._store.read(spec.name)
            if kept is None and newest is not None:
                self._store.keep(newest, spec)
                kept = newest
            if kept is None:
                return play(spec, None)
            self._kept[spec.name] = kept
        return play(spec, self._kept[spec.name])


class RandomOpponents:
    """Actions at random."""

    everyone_counts = False

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Play at random."""
        return UniformPlayer(spec)


class ScriptedOpponents:
    """A class of the user's, or a game's scripted player: an object of it for each behaviour id and evaluation.

    Args:
        use: `module:Class`, for messages.
        made: the class; takes `spec` (the `BehaviorSpec`) and `seed` if it has such parameters.
        given: the keyword arguments of the YAML.
    """

    everyone_counts = False

    def __init__(self, use: str, made: type[Any], given: Mapping[str, Any]) -> None:
        self._use = use
        self._made = made
        self._given = given

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make an object of the class.

        Raises:
            LoadError: if that raises.
        """
        arguments = check_arguments(_WHERE, self._use, self._made, self._given, {"spec": spec, "seed": SEED})
        return ScriptPlayer(construct(_WHERE, self._use, self._made, arguments), spec, f"{_WHERE}: {self._use}")


def make_opponents(config: RunConfig, store: SnapshotStore) -> EvaluationOpponents:
    """Make the opponents that the YAML names.

    Raises:
        LoadError: if a class can't be imported, is no player, or does not take its arguments.
    """
    settings = config.evaluation
    assert settings is not None, "asked for by evaluation alone"
    built_in = EVALUATION_OPPONENTS.get(settings.opponents)
    if built_in is None:
        return ScriptedOpponents(settings.opponents, _find_script(config), settings.opponents_with)
    made = find_class(_WHERE, built_in.implementation, None)
    opponents: EvaluationOpponents = construct(
        _WHERE, settings.opponents, made, check_arguments(_WHERE, settings.opponents, made, {}, {"store": store})
    )
    return opponents


def check_opponents(config: RunConfig) -> list[LoadError]:
    """Find the mistake for which the opponents can't be made, as far as is known without making them."""
    if config.evaluation is None or config.evaluation.opponents in EVALUATION_OPPONENTS:
        return []
    try:
        _find_script(config)
    except LoadError as error:
        return [error]
    return []


def _find_script(config: RunConfig) -> type[Any]:
    assert config.evaluation is not None, "asked for by evaluation alone"
    settings = config.evaluation
    with blaming("evaluation", "opponents"):
        made = find_class(_WHERE, settings.opponents, config.source_folder)
        if not any("__call__" in base.__dict__ for base in made.__mro__):
            raise LoadError(
                f"{_WHERE}: {settings.opponents} is no player: it has no method "
                "__call__(self, observations), or __call__(self, observations, masks) where actions are masked"
            )
    with blaming("evaluation", "opponents_with"):
        check_arguments(_WHERE, settings.opponents, made, settings.opponents_with, {"spec": None, "seed": SEED})
    return made
