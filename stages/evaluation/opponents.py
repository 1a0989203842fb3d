"""Opponents in evaluations: whom an evaluated policy plays against; `headrace.config.opponents` has their table.

Opponents are the agents of other teams; where an environment has one team only, those of other behaviours. Its mates
always act by their own newest policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from headrace.config import RunConfig
from headrace.config.errors import dotted
from headrace.config.opponents import EVALUATION_OPPONENTS, EvaluationSettings
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import check_brain, make_brain
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.errors import LoadError
from headrace.stages.evaluation.players import SEED, GreedyPlayer, Player
from headrace.stages.plugins import check_arguments, construct, find_class

_KEY = ("evaluation", "opponents")

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


class BrainOpponents:
    """A brain that does not learn: one for each behaviour id and evaluation.

    Args:
        request: which brain.
    """

    everyone_counts = False

    def __init__(self, request: BrainRequest) -> None:
        self._request = request

    def player(self, spec: BehaviorSpec, newest: PolicyUpdate | None, play: PlayPolicy) -> Player:
        """Make a brain.

        Raises:
            StageError: if that fails.
        """
        return GreedyPlayer(make_brain(replace(self._request, spec=spec)), spec)


def make_opponents(config: RunConfig, store: SnapshotStore) -> EvaluationOpponents:
    """Make the opponents that the YAML names.

    Raises:
        LoadError: if a brain can't be made.
    """
    settings = config.evaluation
    assert settings is not None, "asked for by evaluation alone"
    built_in = EVALUATION_OPPONENTS.get(settings.opponents)
    if built_in is None:
        request = _request(config, settings)
        for mistake in check_brain(request):
            raise mistake
        return BrainOpponents(request)
    where, use = dotted(_KEY), settings.opponents
    made = find_class(where, built_in.implementation, None)
    arguments = check_arguments(where, use, made, {}, {"store": store})
    opponents: EvaluationOpponents = construct(where, use, made, arguments)
    return opponents


def check_opponents(config: RunConfig) -> list[LoadError]:
    """Find the mistake for which the opponents can't be made, as far as is known without making them."""
    settings = config.evaluation
    if settings is None or settings.opponents in EVALUATION_OPPONENTS:
        return []
    return check_brain(_request(config, settings))


def _request(config: RunConfig, settings: EvaluationSettings) -> BrainRequest:
    return BrainRequest(
        settings.opponents,
        settings.opponents_with,
        _KEY,
        ("evaluation", "opponents_with"),
        config.source_folder,
        config.builtin_game,
        SEED,
    )
