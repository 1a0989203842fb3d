"""Reads the leagues in a run's folder: the learners, the pool members and the mixture of members."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.config.brains import kind_of
from headrace.config.errors import suggest
from headrace.config.file_names import file_name
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.reporting.league_files import REPORT
from headrace.pipeline.run_folder.folder import read_configuration
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.stages.errors import StageError, error_summary
from headrace.stages.league.pool import FOLDER, SUFFIX, Member, Pool

_MEMBER = re.compile(r"member-(\d+)")


def learners_in(run_folder: Path) -> dict[str, list[str]]:
    """Return the names of each league's learners, keyed by behaviour; the first learner is the main one."""
    found: dict[str, list[str]] = {}
    if any(run_folder.glob(f"*/{FOLDER}")):
        behaviors = read_configuration(run_folder).get("behaviors")
        for name, settings in behaviors.items() if isinstance(behaviors, Mapping) else ():
            league = settings.get("league") if isinstance(settings, Mapping) else None
            if isinstance(league, Mapping) and league.get("of"):
                found.setdefault(str(league["of"]), []).append(str(name))
    return found


def learner_meant(reference: str, of: str, learners: Sequence[str], behavior: str | None) -> str:
    """Return the league learner that a behaviour name refers to; the first learner if none has that name.

    Args:
        reference: the run's reference, for the message.
        of: the league's behaviour.
        learners: the names of the league's learners.
        behavior: the name; None if none was given.

    Raises:
        RunError: if the name has the form of a learner's name but the league has no such learner.
    """
    if behavior in learners:
        return str(behavior)
    if behavior is not None and behavior.startswith(f"{of}."):
        raise RunError(
            f"{reference}: the league of {of} has no learner {behavior}; expected {', '.join(learners)}"
            f"{suggest(behavior, learners)}"
        )
    return learners[0]


def league_of(run_folder: Path, name: str) -> str | None:
    """Return the behaviour whose league a name refers to; None if it has no league.

    The name may be that of the behaviour, of a learner, or of the folder of either one.
    """
    leagues = learners_in(run_folder).items()
    return next((of for of, learners in leagues if name in {of, *learners, *map(file_name, (of, *learners))}), None)


def member_number(choice: str) -> int | None:
    """Return the number in a name like `member-3`; None for other names."""
    found = _MEMBER.fullmatch(choice)
    return None if found is None else int(found[1])


def pool_folder(run_folder: Path) -> Path:
    """Return the pool folder that a run's leagues share. It is in the folder of the first behaviour with a league."""
    return behavior_folder(run_folder, next(iter(learners_in(run_folder)))) / FOLDER


def members_in(folder: Path) -> list[Member]:
    """Return all members of a pool, for every behaviour with a league.

    Raises:
        RunError: if the pool's index can't be read.
    """
    try:
        return [*Pool(folder).members]
    except StageError as error:
        raise RunError(str(error)) from error


def member_file(run_folder: Path, behavior: str, number: int) -> Path:
    """Return the file of a pool member.

    Args:
        run_folder: the run's folder.
        behavior: the name of the league's behaviour or of one of its learners.
        number: the member's number.

    Raises:
        RunError: if the league or the member does not exist, or the member has no file in the pool.
    """
    of = league_of(run_folder, behavior)
    if of is None:
        raise RunError(f"@member-{number}: {run_folder / behavior} does not belong to a league, so it has no pool")
    folder = pool_folder(run_folder)
    members = members_in(folder)
    if number >= len(members):
        there = f"available: member-0 to member-{len(members) - 1}" if members else "the pool is empty"
        raise RunError(f"{folder} holds no member-{number}; {there}")
    member = members[number]
    if member.behavior not in ("", of):
        raise RunError(
            f"member-{number} of {folder} plays {member.behavior}, not {of}; choose a member that plays {of}"
        )
    if member.use:
        raise RunError(
            f"member-{number} of {folder} is {member.name}, which was not trained there; use {member.use} instead"
        )
    return folder / member.path


def is_member(path: Path) -> bool:
    """Return True if a file has the suffix of pool members' files."""
    return path.suffix == SUFFIX


def member_of(path: Path) -> Member:
    """Return the pool's entry for the member that has this file.

    Raises:
        RunError: if the pool in the file's folder has no member with this file.
    """
    found = next((each for each in members_in(path.parent) if each.path == path.name), None)
    if found is None:
        raise RunError(f"{path} is not a member of the pool in its folder")
    return found


def mixture_in(path: Path, behavior: str | None = None) -> tuple[str, list[tuple[str, float]]]:
    """Return a league's behaviour and, for each member of its mixture, a model reference and the member's probability.

    Args:
        path: a run's folder, or the folder of the league's behaviour in it.
        behavior: the league's behaviour, if the run has several leagues.

    Raises:
        RunError: if there is no league, its mixture is missing or empty, or a member can't be loaded.
    """
    own, inside = path.resolve(), learners_in(path)
    run_folder, leagues = (
        (path, [*inside]) if inside else (own.parent, [own.name] * (own.name in learners_in(own.parent)))
    )
    found = [of for of in leagues if behavior in (None, of)]
    if len(found) != 1:
        there = f"its leagues are for {', '.join(leagues)}" if leagues else "no behaviour there has a league"
        raise RunError(f"{path} has no mixture{f' for {behavior}' if behavior else ''}: {there}")
    folder = pool_folder(run_folder)
    report, members = folder.parent / REPORT, members_in(folder)
    try:
        mixture = ((int(number), float(share)) for number, share in json.loads(report.read_bytes())["mixture"])
        shares = {number: share for number, share in mixture if members[number].behavior in ("", found[0])}
        uses = {number: members[number].use or str(member_file(run_folder, found[0], number)) for number in shares}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{report}, which holds the league's mixture, can't be read: {error_summary(error)}") from error
    if not shares:
        raise RunError(f"{report}: the mixture has no members yet")
    for number, use in uses.items():
        if kind_of(use) != "model":
            raise RunError(
                f"member-{number} of the mixture is {members[number].name} ({use}), which is not a loadable policy"
            )
    return found[0], [(uses[number], share) for number, share in shares.items()]
