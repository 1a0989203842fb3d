"""Checks of leagues across several sections of the YAML. Checks within a single league are in its model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from headrace.config.errors import Finding, KeyPath
from headrace.config.league import LeagueSettings
from headrace.config.league_placement import placement_key, placement_of
from headrace.config.sections import Sections

_BEHAVIORS: KeyPath = ("behaviors",)
_DEFAULT: KeyPath = ("default_settings",)


def about_leagues(config: Sections) -> Iterator[Finding]:
    """Report settings that conflict with a league, where each actor plays for one learner."""
    if config.default_settings is not None and config.default_settings.league is not None:
        message = "is valid only under a behaviour, whose learners it defines; move it there"
        yield Finding((*_DEFAULT, "league"), message)
    leagues = {name: each.league for name, each in config.behaviors.items() if each.league is not None}
    learners = {name: league for name, league in leagues.items() if league.of}  # an invalid league has no learners
    pipeline, hosts = config.pipeline, config.pipeline.hosts
    path: KeyPath = ("pipeline", "hosts", "actors", "replicas")
    if pipeline.deterministic and hosts.actors.replicas not in (1, len(leagues)):
        message = f"{hosts.actors.replicas} conflicts with 'deterministic: true', which needs {max(1, len(leagues))}"
        more = "" if leagues else "; raise environment.num_envs instead"
        yield Finding(path, message + more, (("pipeline", "deterministic"),))
    if not learners or config.checkpoint_settings.inference:
        return
    first, found = next(iter(learners.items()))
    where: KeyPath = (*_BEHAVIORS, first, "league")
    for name, settings in config.behaviors.items():
        if settings.league is None:
            message = f"has no league, but {found.of} has one; add a `league` here, or remove the league of {found.of}"
            yield Finding((*_BEHAVIORS, name), message, (where,))
    yield from _about_common_keys(learners)
    yield from _about_placement(config, learners)
    yield from _about_teams(config, {each.of for each in learners.values()})
    for each in learners.values() if pipeline.deterministic else ():
        if (actors := each.learners[each.learner].actors) > 1:
            message = (
                f"{actors} conflicts with 'deterministic: true', which needs 1; raise environment.num_envs instead"
            )
            own = (*_BEHAVIORS, each.of, "league", "learners", each.learner, "actors")
            yield Finding(own, message, (("pipeline", "deterministic"),))
    wanted = sum(each.learners[each.learner].actors for each in learners.values())
    if not hosts.actors.is_auto("replicas") and hosts.actors.replicas not in (1, wanted):
        whose = ", ".join(dict.fromkeys(league.of for league in learners.values()))
        message = (
            f"{hosts.actors.replicas} conflicts with the league of {whose}, whose learners have {wanted} actors in "
            "total; leave it out"
        )
        yield Finding(path, message, (path, where))
    if pipeline.inference == "central":
        message = "'central' can't be combined with a league, whose actors run their own policies; leave it out"
        yield Finding(("pipeline", "inference"), message, (where,))
    resets = any(each.learners[each.learner].reset for each in learners.values())
    for key, several in (("learners", hosts.learners.replicas > 1), ("replay", hosts.replay.kind is not None)):
        if resets and several:
            message = "can't be combined with league learners that are reset; leave it out"
            yield Finding(("pipeline", "hosts", key), message, (where,))


def _about_common_keys(learners: Mapping[str, LeagueSettings]) -> Iterator[Finding]:
    """Report keys that differ between leagues but must not, because all leagues in a run share one payoff table."""
    (name, first), *others = learners.items()
    for other, league in others:
        for key in ("payoff", "decay", "meta_solver", "rating", "learning", "turn_steps", "quality_rate"):
            mine, theirs = getattr(league, key), getattr(first, key)
            if mine != theirs:
                message = (
                    f"{mine!r} here, but {theirs!r} in the league of {first.of}; all leagues of a game must use "
                    "the same value"
                )
                yield Finding((*_BEHAVIORS, other, "league", key), message)
    if not others and first.learning == "turns":
        message = f"'turns' needs several learners, but {name} is the only one; leave it out"
        yield Finding((*_BEHAVIORS, name, "league", "learning"), message)
    if len(first.rivals) > 1 and first.meta_solver is not None:
        message = (
            f"'{first.meta_solver}' supports games of one or two behaviours, but {1 + len(first.rivals)} have leagues"
        )
        yield Finding((*_BEHAVIORS, name, "league", "meta_solver"), f"{message}; leave it out")


def _about_placement(config: Sections, learners: Iterable[str]) -> Iterator[Finding]:
    """Report learners that request resources for hosts whose kind can't request resources."""
    for name in learners:
        key = placement_key(config, name)
        for finding in placement_of(config, name).not_on_ray(config.pipeline.hosts):
            yield Finding((*key, *finding.path), finding.message, finding.involves)


def _about_teams(config: Sections, sides: Collection[str]) -> Iterator[Finding]:
    """Report teams that several behaviours with leagues share.

    If roles define teams, also report behaviours with several teams.
    """
    environment = config.environment
    if environment is None or len(sides) < 2:
        return
    alone = environment.kind == "open_spiel"  # each player is a team, unless the YAML defines teams
    seen: dict[str | int, str] = {}
    for pattern, role in environment.behaviors.items():
        team = role.team if role.team is not None or alone else 0
        of = role.behavior or environment.behavior
        if team is None or of is None or of not in sides:
            continue
        other = next((name for there, name in seen.items() if (there == team) != (name == of)), None)
        seen[team] = of
        if other is None and team != "each":
            continue
        fault = f"{of} has several teams" if other in (None, of) else f"{of} and {other} both have team {team}"
        message = (
            f"{fault}, but leagues of several behaviours are for games in which each team has a different behaviour; "
            "give the agents of all teams the same behaviour, or each team a different one"
        )
        yield Finding(("environment", "behaviors", pattern), message)
