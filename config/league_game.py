"""A run's leagues as one: the league of a game's only behaviour, or the leagues of all its behaviours combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.config.brains import MemberSettings
from headrace.config.league import START, LeagueSettings, LearnerSettings, MatchSettings
from headrace.config.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class LeagueGame:
    """All learners and brains of a run's leagues, each by its key.

    If one behaviour has a league, a key is the name of a learner or brain. If several have one, it is
    `<behaviour>.<name>`, as names of two behaviours may be the same.
    """

    home: str
    """The behaviour in whose folder the pool is: the first that has a league."""
    settings: LeagueSettings
    """The merged league: learners and brains are named by key, and `freeze` has explicit step counts."""
    sides: Mapping[str, str]
    """Key of a learner or brain → the environment's behaviour that it plays; empty if only one has a league."""
    learners: Mapping[str, str]
    """Key of a learner → the behaviour name that it learns under."""
    brains: Mapping[str, tuple[str, int]]
    """Key of a brain → the behaviour that lists it under `members`, and its index there."""

    @property
    def keys(self) -> dict[str, str]:
        """Behaviour name that a learner learns under → the learner's key."""
        return {name: key for key, name in self.learners.items()}

    def learner_name(self, key: str) -> str:
        """Return the behaviour name that a learner learns under, or learned under if it no longer exists."""
        return key if self.sides else f"{self.home}.{key}"


def league_game(config: RunConfig) -> LeagueGame:
    """Combine all of a run's leagues; there must be at least one."""
    leagues: dict[str, LeagueSettings] = {}
    for settings in config.behaviors.values():
        if settings.league is not None:
            leagues.setdefault(settings.league.of, settings.league)
    home, several = next(iter(leagues)), len(leagues) > 1
    learners: dict[str, LearnerSettings] = {}
    members: list[MemberSettings] = []
    sides: dict[str, str] = {}
    names, brains = {}, {}
    for of, league in leagues.items():
        prefix = f"{of}." if several else ""
        steps = {each: config.behavior_settings(f"{of}.{each}").max_steps for each in league.learners}
        for name, learner in league.for_steps(steps).learners.items():
            learners[prefix + name] = _among_rivals(of, learner, league.rivals) if several else learner
            names[prefix + name] = f"{of}.{name}"
        for index, member in enumerate(league.members):
            brains[prefix + member.name] = of, index
            members.append(member.model_copy(update={"name": prefix + member.name}))
        if several:
            sides |= dict.fromkeys([prefix + name for name in (*league.learners, *_names_of(league.members))], of)
    merged = leagues[home].model_copy(update={"learners": learners, "members": tuple(members)})
    return LeagueGame(home, merged, sides, names, brains)


def _names_of(members: tuple[MemberSettings, ...]) -> Iterator[str]:
    return (member.name for member in members)


def _among_rivals(of: str, learner: LearnerSettings, rivals: Mapping[str, Mapping[str, list[str]]]) -> LearnerSettings:
    """Return a copy of a learner in which `against` and `reset.to` name other players by key."""

    def keyed(share: MatchSettings) -> MatchSettings:
        if share.against is None:
            return share
        there = [
            f"{rival}.{name}"
            for rival, side in rivals.items()
            for name in (*side["learners"], *side["members"])
            if name in share.against
        ]
        return share.model_copy(update={"against": tuple(there)})

    reset = learner.reset
    if reset is not None and reset.to != START:
        reset = reset.model_copy(update={"to": f"{of}.{reset.to}"})
    return learner.model_copy(update={"matches": tuple(map(keyed, learner.matches)), "reset": reset})
