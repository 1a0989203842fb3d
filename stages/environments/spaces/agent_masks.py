"""Agents' action masks in observations and infos, for groups of Gymnasium and PettingZoo environments.

`masks` reads masks; this module decides whether agents have any. An agent without a mask may choose anything. If the
observation and the info both have masks, both apply. A mask that first appears after the policy was made without masks
is an error.

Axis letters: n agents.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace.stages.environments.spaces.masks import MASK, MaskError, MaskReader, Masks
from headrace.stages.errors import BrokenEnvironmentError, StageError, Who

log = logging.getLogger(__name__)

_NAMES = {
    *("mask", "masks", "legal_moves", "valid_moves", "invalid_actions"),
    *("legal_actions", "valid_actions", "available_actions", "avail_actions"),
}
_LATE = (
    f"the infos now contain {MASK}, but at the first reset they did not, so the policy was made without masks and "
    f"would take forbidden actions; expected info[{MASK!r}] from reset() as well (all ones if everything is allowed), "
    "or the key in the observation space"
)


def like_masks(keys: Iterable[Any]) -> list[str]:
    """Return the keys that almost certainly hold a mask."""
    named = [key for key in keys if isinstance(key, str) and key.strip("_") != MASK]
    return [key for key in named if key in _NAMES or ("mask" in key and "action" in key)]


class AgentMasks:
    """One behaviour's action masks: whether its agents have any, and their content in observations and infos.

    Args:
        reader: reads masks for the agents' action space.
        observed: True if the agents' observation space has the key `action_mask`.
        owner: the environment's name, used in messages.

    Attributes:
        masked: True if agents have masks. The value is fixed once the spec is made.

    Raises:
        StageError: if the observations have masks, but the actions have no choices.
    """

    def __init__(self, reader: MaskReader, observed: bool, owner: str) -> None:
        self._reader = reader
        self._owner, self._warned = owner, False
        self.masked = observed
        if observed and not reader.width:
            raise StageError(
                f"{owner}: its observation space has the key {MASK!r}, but its actions have no choices that a mask "
                "could forbid; expected a mask of discrete actions: remove the key, or rename it if it is an "
                "observation"
            )

    def expect(self, info: Iterable[Any]) -> None:
        """Look for a mask among an info's keys, and warn about a mask under a different name.

        Must be called before the spec is made.
        """
        if not self._reader.width:
            return
        self.masked = self.masked or MASK in info
        if not self.masked and not self._warned and (found := like_masks(info)):
            self._warned = True
            log.warning(
                "%s: it has %r, which Headrace ignores; put action masks into the infos of reset and step under the "
                "key %r, with 1 for each allowed choice (docs/algorithms.md#actions)",
                *(self._owner, found[0], MASK),
            )

    def read(
        self,
        n: int,
        observed: Any,
        informed: Any,
        who: Who,
        there: Masks | None = None,
        deciding: Masks | None = None,
    ) -> Masks | None:
        """Return the masks [n, choices] of n agents; None if agents have none.

        Args:
            n: the number of agents.
            observed: the masks in the agents' observations; None if the observations have none.
            informed: the masks in the agents' infos; may be None or contain None.
            who: returns the beginning of a message about a row or, for None, about all rows.
            there: which agents have a mask in their infos, as in `MaskReader.read`.
            deciding: as in `MaskReader.read`.

        Raises:
            BrokenEnvironmentError: if a mask is invalid.
            StageError: if a mask appears although the spec has no masks.
        """
        allowed = None
        places = (f"{MASK} in the observation", observed, None), (f"info[{MASK!r}]", informed, there)
        for name, masks, known in places:
            if _is_nothing(masks):
                continue
            if not self.masked and self._reader.width:
                raise StageError(f"{who(None)}: {_LATE}")
            try:
                found = self._reader.read(masks, n, known, deciding)
                if allowed is not None:
                    found &= allowed
                    self._reader.check_choice(found, deciding)
            except MaskError as error:
                raise BrokenEnvironmentError(f"{who(error.row)}: {name}{error.at} {error.problem}") from error
            allowed = found
        return np.ones((n, self._reader.width), np.bool_) if self.masked and allowed is None else allowed


def _is_nothing(masks: Any) -> bool:
    if isinstance(masks, list) or (isinstance(masks, np.ndarray) and masks.dtype == object):
        return all(mask is None for mask in masks)
    return masks is None
