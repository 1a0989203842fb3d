"""A league resumes from what each earlier version wrote, and refuses by name what it can't read."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from league_world import FIRST, LEARNERS, OTHER, World, played
from virtual_time import until_blocked

from headrace.pipeline.control.messages import BeginAnew
from headrace.pipeline.run_folder.checkpoint import pack_state, unpack_state
from headrace.stages.errors import StageError
from headrace.stages.league.pool import unpacked
from headrace.stages.plain_state import policy_state

pytestmark = pytest.mark.virtual_time
COPYING = {**LEARNERS, "exploiter": {**LEARNERS["exploiter"], "reset": {"to": "main"}}}
RECENT, SQUARES = slice(5, 7), slice(9, 10)
"""Columns in a row of payoffs."""


async def saved_in(folder: Path) -> dict[str, Any]:
    """A league's part of a checkpoint, after some games, two freezes and a reset."""
    world = World(folder, learners=COPYING)
    for behavior, step in ((FIRST, 0), (OTHER, 0), (FIRST, 90), (OTHER, 100)):
        world.policy(behavior, step)
        await until_blocked()
        world.part.games_ended(OTHER, played(5))
    world.checkpoint(1)
    state: dict[str, Any] = unpack_state(pack_state(world.saved[1]))
    assert (state["resets"].keys(), state["Duel"]["newest"].keys()) == ({OTHER}, {"main"})
    assert state["Duel"]["payoffs"]["pairs"]
    return state


def without_numbers(state: dict[str, Any]) -> None:
    """Until resets had numbers, they had the version of the policy."""
    state["resets"][OTHER]["version"] = state["resets"][OTHER].pop("number")


def without_squares(state: dict[str, Any]) -> None:
    """Until the rating of members depended on variances, and of several behaviours only one could have a league."""
    without_numbers(state)
    for pair in state["Duel"]["payoffs"]["pairs"]:
        del pair[SQUARES]
    for member in state["Duel"]["members"]:
        del member["behavior"]


def first_of_all(state: dict[str, Any]) -> None:
    """The first leagues that ran: members inherited all results, and policies were dictionaries."""
    without_squares(state)
    for pair in state["Duel"]["payoffs"]["pairs"]:
        del pair[RECENT]
    newest = state["Duel"]["newest"]
    newest["main"] = policy_state(unpacked(newest["main"]))


@pytest.mark.parametrize("older", [without_numbers, without_squares, first_of_all])
async def test_a_league_resumes_from_earlier_forms(tmp_path, older: Callable[[dict[str, Any]], None]):
    state = await saved_in(tmp_path)
    former = deepcopy(state)
    older(former)
    resumed = World(tmp_path, unpack_state(pack_state(former)), COPYING)
    resumed.part.learner_ready(OTHER)
    (reset,) = resumed.told[OTHER]
    assert reset == BeginAnew(100, state["resets"][OTHER]["weights"])
    resumed.checkpoint(2)
    again = resumed.saved[2]
    expected = deepcopy(state)
    for pair in expected["Duel"]["payoffs"]["pairs"] if older is not without_numbers else ():
        pair[SQUARES] = [pair[4]]  # as if all games were won or lost
        if older is first_of_all:
            pair[RECENT] = pair[3:5]
    assert again == expected


async def test_where_payoffs_are_returns_unknown_squares_are_the_largest(tmp_path):
    world = World(tmp_path, learners=COPYING, payoff="mean_return")
    for behavior in (FIRST, OTHER):
        world.policy(behavior, 0)
        await until_blocked()
    world.part.games_ended(OTHER, played(5, returns=3.0))
    world.checkpoint(1)
    state = unpack_state(pack_state(world.saved[1]))
    known = deepcopy(state["Duel"]["payoffs"]["pairs"])
    for pair in state["Duel"]["payoffs"]["pairs"]:
        del pair[SQUARES]
    resumed = World(tmp_path, state, COPYING, payoff="mean_return")
    resumed.checkpoint(2)
    for pair, expected in zip(resumed.saved[2]["Duel"]["payoffs"]["pairs"], known, strict=True):
        assert pair == pytest.approx(expected), "each game was worth 3 or -3"


@pytest.mark.parametrize("found", [("Duel", "Other"), ("Other",)])
async def test_a_part_of_other_leagues_is_refused_before_the_pool_changes(tmp_path, found):
    state = await saved_in(tmp_path)
    pool = {file.name: file.read_bytes() for file in (tmp_path / "Duel" / "league").iterdir()}
    league = state.pop("Duel")
    with pytest.raises(StageError, match=f"belongs to {', '.join(found)}, but should belong to Duel"):
        World(tmp_path, {**state, **dict.fromkeys(found, league)}, COPYING)
    assert {file.name: file.read_bytes() for file in (tmp_path / "Duel" / "league").iterdir()} == pool


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda state: state["Duel"].pop("progress"), "KeyError: 'progress'"),
        (lambda state: state["resets"][OTHER].update(late=True), "unexpected keyword argument 'late'"),
        (lambda state: state["Duel"]["members"][0].update(late=True), "unexpected keyword argument 'late'"),
        (lambda state: state["Duel"]["payoffs"].update(pairs=[[0, 1]]), "not enough values to unpack"),
    ],
)
async def test_a_part_of_no_known_form_is_refused(tmp_path, spoil, named):
    state = await saved_in(tmp_path)
    spoil(state)
    with pytest.raises(StageError) as refused:
        World(tmp_path, state, COPYING)
    assert named in str(refused.value)
    assert str(refused.value).startswith("the league's part of the checkpoint can't be read: ")
    assert "--initialize-from" in str(refused.value)
