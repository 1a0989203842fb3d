"""Combines all leagues of a run into one, because several behaviours may each have a league."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.config.brains import MemberSettings
from headrace.config.league import START, LeagueSettings, LearnerSettings, MatchSettings
from headrace.config.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class LeagueGame:
    """All learners and brains in a run's leagues, each identified by a key.

    If only one behaviour has a league, a key is the name of a learner or brain. If several behaviours have leagues, a
    key is `<behaviour>.<name>`, because two behaviours may use the same name.
    """

    home: str
    """The behaviour whose folder contains the pool: the first behaviour that has a league."""
    settings: LeagueSettings
    """The merged league, in which keys name learners and brains, and `freeze` has explicit step counts."""
    sides: Mapping[str, str]
    """Maps the key of each learner or brain to the environment's behaviour that it plays; empty if there is only one
    league."""
    learners: Mapping[str, str]
    """Maps a learner's key to the learner's behaviour name, `<behaviour>.<learner>`."""
    brains: Mapping[str, tuple[str, int]]
    """Maps a brain's key to the behaviour that lists the brain under `members`, and the brain's index there."""

    @property
    def keys(self) -> dict[str, str]:
        """Maps each learner's behaviour name to the learner's key."""
        return {name: key for key, name in self.learners.items()}

    def learner_name(self, key: str) -> str:
        """Return the behaviour name of the learner with this key, even if the learner no longer exists."""
        return key if self.sides else f"{self.home}.{key}"


def league_game(config: RunConfig) -> LeagueGame:
    """Combine all leagues in a run. Call this only if the run has a league."""
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
        steps = {name: config.behavior_settings(f"{of}.{name}").max_steps for name in league.learners}
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
        opponents = [
            f"{rival}.{name}"
            for rival, side in rivals.items()
            for name in (*side["learners"], *side["members"])
            if name in share.against
        ]
        return share.model_copy(update={"against": tuple(opponents)})

    reset = learner.reset
    if reset is not None and reset.to != START:
        reset = reset.model_copy(update={"to": f"{of}.{reset.to}"})
    return learner.model_copy(update={"matches": tuple(map(keyed, learner.matches)), "reset": reset})
