"""The keys that a person is holding down, and their translation to an agent's action."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings, KeySettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import StageError

_ARROWS = ("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"), ("a", "d"), ("s", "w")
"""Pairs of keys that decrease and increase a value, for each of the first continuous actions."""
_DIGITS = "1234567890"
_TOGETHER = "+"
"""Separator between the names of keys that are pressed together."""


def keys_of(
    spec: BehaviorSpec, configured: Mapping[str, KeyMapSettings], usual: Mapping[str, KeyMapSettings]
) -> KeyMapSettings:
    """Return a behaviour id's keys.

    These are the YAML's keys for the id or its name, otherwise the game's default keys, otherwise arrows and digits.

    Args:
        spec: the behaviour id's spec.
        configured: the keys in `environment.keys`.
        usual: the game's default keys, keyed by behaviour id.

    Raises:
        StageError: if the YAML's keys do not fit the behaviour's actions.
    """
    for key in (spec.behavior_id, spec.name):
        if key in configured:
            check_keys(configured[key], choosable(spec), f"environment.keys.{key}", ("environment", "keys", key))
            return configured[key]
    return usual.get(spec.behavior_id) or default_keys(choosable(spec), spec.actions.masked)


def choosable(spec: BehaviorSpec) -> ActionSpec:
    """Return the actions that a person controls: all except a learned action repeat."""
    actions = spec.actions
    learned = spec.action_repeat == "learned"
    return ActionSpec(actions.continuous_size, actions.discrete_branches[:-1] if learned else actions.discrete_branches)


def default_keys(actions: ActionSpec, masked: bool = False) -> KeyMapSettings:
    """Return arrow keys for continuous actions and for branches with two choices, and digits for larger branches.

    An environment with masks is usually a board game, so if each choice has a key, the game waits for a key press.
    """
    press: dict[str, KeySettings] = {}
    for index, pair in enumerate(_ARROWS[: actions.continuous_size]):
        press |= {key: KeySettings(index=index, value=value) for key, value in zip(pair, (-1.0, 1.0), strict=True)}
    if actions.discrete_branches:
        choices = actions.discrete_branches[0]
        keys = _ARROWS[0] if choices == 2 and not actions.continuous_size else _DIGITS[:choices]
        press |= {key: KeySettings(branch=0, value=choice) for choice, key in enumerate(keys)}
    each_has_a_key = len(press) == sum(actions.discrete_branches) and not actions.continuous_size
    return KeyMapSettings(press=press, wait=masked and each_has_a_key)


def buttons(keys: KeyMapSettings) -> list[list[str]]:
    """Return the keys grouped by effect, one group per button of a page.

    A key that only has an effect together with others gets a button too.
    """
    found: dict[KeySettings, list[str]] = {}
    for key, does in keys.press.items():
        if len(key) == 1 or _TOGETHER not in key:
            found.setdefault(does, []).append(key)
    parts = [part for key in keys.press if len(key) > 1 for part in key.split(_TOGETHER)]
    return [*found.values(), *([part] for part in dict.fromkeys(parts) if part not in keys.press)]


def check_keys(keys: KeyMapSettings, actions: ActionSpec, where: str, path: tuple[str, ...] = ()) -> None:
    """Check that keys refer to existing actions.

    Raises:
        StageError: if a key refers to an action that does not exist.
    """
    branches = actions.discrete_branches
    for key, does in keys.press.items():
        if does.index is not None and does.index >= actions.continuous_size:
            raise StageError(f"{where}.press.{key}: continuous action {does.index} does not exist: {actions}", key=path)
        if does.branch is not None and (does.branch >= len(branches) or does.value >= branches[does.branch]):
            raise StageError(
                f"{where}.press.{key}: branch {does.branch} has no choice {does.value:g}: {actions}", key=path
            )
    if keys.rest and (
        len(keys.rest) != len(branches) or any(not 0 <= at < of for at, of in zip(keys.rest, branches, strict=True))
    ):
        raise StageError(f"{where}.rest: {list(keys.rest)} is not a choice for each branch: {actions}", key=path)


def action_of(
    keys: KeyMapSettings, pressed: Collection[str], spec: BehaviorSpec, allowed: NDArray[np.bool_] | None
) -> ActionBatch | None:
    """Return one agent's action; None if the game is waiting for a key and no permitted key is pressed.

    Args:
        keys: the agent's keys.
        pressed: the pressed keys.
        spec: the agent's behaviour.
        allowed: [sum of branches] the agent's action mask; None permits all choices.
    """
    actions = spec.actions
    continuous = np.zeros((1, actions.continuous_size), np.float32)
    discrete = np.zeros((1, len(actions.discrete_branches)), np.int32)
    discrete[0, : len(keys.rest)] = keys.rest
    chosen = False
    for key, does in keys.press.items():
        if not set(key.split(_TOGETHER) if len(key) > 1 else key).issubset(pressed):
            continue
        if does.index is not None:
            continuous[0, does.index] += does.value
            chosen = True
        elif does.branch is not None and _may(actions, does.branch, int(does.value), allowed):
            discrete[0, does.branch] = int(does.value)
            chosen = True
    if keys.wait and not chosen:
        return None
    bounded = [index for index in range(actions.continuous_size) if index not in actions.unbounded]
    continuous[0, bounded] = continuous[0, bounded].clip(-1, 1)
    if allowed is not None:
        for branch, choices in enumerate(actions.discrete_branches):
            if not _may(actions, branch, int(discrete[0, branch]), allowed):  # the mask forbids the rest action
                discrete[0, branch] = next(c for c in range(choices) if _may(actions, branch, c, allowed))
    return ActionBatch(continuous, discrete)


def _may(actions: ActionSpec, branch: int, choice: int, allowed: NDArray[np.bool_] | None) -> bool:
    return allowed is None or bool(allowed[sum(actions.discrete_branches[:branch]) + choice])


# The keys that a person is holding down, as far as known: messages may be late, duplicated or lost.

LATE_S = 1.5
"""Seconds without a message after which no key counts as pressed; the page sends several messages a second."""
AWAY_S = 5.0
"""Seconds without a message after which the person counts as gone and the policy takes over."""
MOST_KEYS = 16


class HeldKeys:
    """The keys that one person is holding down.

    Args:
        clock: seconds on a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: frozenset[str] = frozenset()
        self._tapped: set[str] = set()
        self._number = -1
        self._heard = clock()

    def hear(self, number: int, held: Collection[str]) -> None:
        """Receive a message.

        Args:
            number: sequence number that increases with each of a person's messages; older or repeated messages are
                ignored.
            held: all keys that the person is holding down.
        """
        if number <= self._number:
            return
        self._number, self._heard = number, self._clock()
        now = frozenset(sorted(held)[:MOST_KEYS])
        self._tapped |= now - self._held
        self._held = now

    @property
    def there(self) -> bool:
        """True unless the person has left or the connection is lost."""
        return self._clock() - self._heard < AWAY_S

    @property
    def late(self) -> bool:
        """True if no key counts because no message has arrived for a while."""
        return self._clock() - self._heard >= LATE_S

    @property
    def pressed(self) -> frozenset[str]:
        """The keys that count: those being held down, and those tapped since the last decision."""
        return frozenset() if self.late else self._held | self._tapped

    @property
    def tapped(self) -> frozenset[str]:
        """The keys in `pressed` that were newly pressed since the last decision."""
        return frozenset(self._tapped) if self.pressed else frozenset()

    def decided(self) -> None:
        """Record that a decision has used the keys, so a tap counts only once."""
        self._tapped.clear()
