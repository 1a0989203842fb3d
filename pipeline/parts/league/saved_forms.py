"""Converts a league's part of a checkpoint from the forms that earlier versions of Headrace wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.config.league_game import LeagueGame
from headrace.pipeline.run_folder.checkpoint import MENDING
from headrace.stages.errors import StageError, error_summary
from headrace.stages.league.pool import packed
from headrace.stages.plain_state import policy_from_state

_OWN_KEYS = {"resets", "turns", "freezes"}
"""The part's keys, in addition to the league's behaviour."""
_WITHOUT_RECENT, _WITHOUT_SQUARES = 7, 9
"""Lengths of a payoff row in earlier versions: 7 without recent results and sums of squares, 9 without sums of squares.
"""


def in_present_form(saved: Mapping[str, Any], game: LeagueGame) -> dict[str, Any]:
    """Return a league's part of a checkpoint in the form that this version writes.

    Raises:
        StageError: if the part belongs to another behaviour, or to several leagues with separate pools.
    """
    found = sorted(saved.keys() - _OWN_KEYS)
    if found not in ([], [game.home]):
        raise StageError(
            f"the league's part of the checkpoint belongs to {', '.join(found)}, but should belong to {game.home}, the "
            "first behaviour with a league. If the order of the behaviours has changed, restore the previous order. A "
            "checkpoint of several leagues with separate pools can't be resumed: start a new run with a different "
            "--run-id from this run's newest policies, with --initialize-from"
        )
    present = dict(saved)
    if "resets" in saved:
        present["resets"] = {name: _reset(**reset) for name, reset in saved["resets"].items()}
    if game.home in saved:
        league = present[game.home] = dict(saved[game.home])
        payoffs, by_return = league["payoffs"], game.settings.payoff == "mean_return"
        largest = max(map(abs, payoffs["range"])) ** 2 if by_return else None
        league["payoffs"] = {**payoffs, "pairs": [_pair(row, largest) for row in payoffs["pairs"]]}
        league["newest"] = {name: _policy(policy) for name, policy in league["newest"].items()}
    return present


@contextmanager
def refusing_other_forms() -> Iterator[None]:
    """Report a part in an unknown form as a `StageError`.

    Raises:
        StageError: if reading the part in this context fails.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StageError(
            f"the league's part of the checkpoint can't be read: {error_summary(error)}. Another version of Headrace "
            f"may have written it: resume the run with that version; or {MENDING}"
        ) from error


def _reset(weights: bytes | None, number: int | None = None, version: int | None = None) -> dict[str, Any]:
    """Return the fields of `BeginAnew`; earlier versions called `number` `version`."""
    return {"number": version if number is None else number, "weights": weights}


def _pair(row: Sequence[Any], largest: float | None) -> list[Any]:
    """Convert a pair's row of payoffs to the present form.

    Args:
        row: the row, as any version wrote it.
        largest: the largest squared value of a game; None if values are 0, 0.5 or 1.
    """
    players, (games, weight, total, *others) = row[:2], row[2:]
    if len(row) == _WITHOUT_RECENT:  # new members inherited all their learner's results
        others = [weight, total, *others]
    if len(row) <= _WITHOUT_SQUARES:  # unknown, so the maximum possible
        others = [*others, total if largest is None else weight * largest]
    return [*players, games, weight, total, *others]


def _policy(policy: bytes | Mapping[str, Any]) -> bytes:
    """Return a packed policy; earlier versions wrote a dictionary instead."""
    if not isinstance(policy, Mapping):
        return policy
    update = policy_from_state(policy)
    assert update is not None, "there is a policy"
    return packed(update)
