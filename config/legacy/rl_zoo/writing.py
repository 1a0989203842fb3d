"""The result of converting an entry: Headrace's keys with the original ones as comments, and settings left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config.errors import suggest
from headrace.config.legacy.old_values import Notes, OldValue, Target
from headrace.config.legacy.rl_zoo.expressions import Name, read_expression
from headrace.config.legacy.rl_zoo.keys import IDLE, Key

_LONGEST = 60


@dataclass(frozen=True, slots=True)
class EntryValue:
    """The value of a Stable-Baselines3 key, either from the entry or by default."""

    key: str
    value: Any
    old: OldValue
    """The enclosing value in the file, used for its location."""
    written: bool = True
    """True if the entry contains the value; False if it is a default."""

    def __str__(self) -> str:
        return f"{in_words(self.key)}: {in_words(self.value)}"


class Writing:
    """A run that is being built from an entry.

    Args:
        notes: receives warnings, mistakes, comments and origins.
        behavior: the name of the only behaviour.
        whole: the entire entry, which is recorded as the origin of defaults.
    """

    def __init__(self, notes: Notes, behavior: str, whole: OldValue) -> None:
        self._notes = notes
        self._whole = whole
        self.top = Target(notes)
        self.own = Target(notes, ("behaviors", behavior))
        self.left_out: list[str] = []
        """Settings without a counterpart, each with the reason."""
        self.otherwise: list[str] = []
        """Differences from Stable-Baselines3 in settings that the entry does not mention."""
        self.idle: list[str] = []
        """Keys that have no effect on learning."""

    def default(self, key: str, value: Any) -> EntryValue:
        """Return one of Stable-Baselines3's defaults."""
        return EntryValue(key, value, self._whole, written=False)

    def put(
        self, to: str, value: Any, given: EntryValue, comment: str = "", *, top: bool = False, note: str = ""
    ) -> None:
        """Write a value. Its comment states its origin unless another comment is given, followed by the note."""
        origin = in_words(given.key) if given.value == value else str(given)
        origin = origin if given.written else f"their default for {given.key}"
        (self.top if top else self.own).put(to, value, given.old, f"{comment or origin}{note and f'; {note}'}")

    def leave_out(self, given: EntryValue, why: str) -> None:
        """Report a setting without a counterpart."""
        self.left_out.append(f"{given}: {why}")
        self._notes.warn(given.old, str(given), f"has no equivalent: {why}")

    def wrong(self, given: EntryValue, why: str) -> None:
        """Report a value that can't be read."""
        self._notes.wrong(given.old, why if given.old.path[-1:] == (given.key,) else f"{given.key}: {why}")

    def expression(self, given: EntryValue) -> dict[str, EntryValue]:
        """Read a map, which may be a Python expression; return its values, keyed by name."""
        value = given.value
        try:
            value = read_expression(value) if isinstance(value, str) else value
        except ValueError as error:
            self.wrong(given, str(error))
            return {}
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(given, f"{in_words(value)} is not valid; expected a map, or dict(…) in quotes")
            return {}
        return {key: EntryValue(f"{given.key}.{key}", inner, given.old) for key, inner in value.items()}

    def settle(
        self, table: Mapping[str, Key], given: Mapping[str, EntryValue], beside: Mapping[str, EntryValue]
    ) -> None:
        """Write all keys in a table; `beside` contains other values that keys may depend on."""
        around = {**beside, **given}
        for name, key in table.items():
            found = given.get(name) or self.default(name, key.default)
            if key.needs and not (key.needs in around and around[key.needs].value):
                self.idle += [in_words(found.key)] if found.written else []
            else:
                self._settle(key, found)
        for name, found in given.items():
            if name not in table:
                self.leave_out(found, f"it is an unknown key{suggest(name, table)}")

    def _settle(self, key: Key, given: EntryValue) -> None:
        value = given.value
        if key.to is None:
            if value == (key.default if key.here is None else key.here):
                return
            if given.written:
                self.leave_out(given, key.why)
            else:
                self.otherwise.append(f"{given}: {key.why}")
            return
        falls = _fall(value) if key.falls else None
        try:
            ours = key.write(value) if falls is None else falls
            second = key.also[1](value) if key.also else None
        except ValueError as error:
            self.leave_out(given, str(error))
            if given.written and key.default is not None:
                self._settle(key, self.default(given.key, key.default))
            return
        if key.to == IDLE:
            self.idle += [in_words(given.key)] if given.written else []
        elif ours is not None and not (key.top and ours == key.default):
            self.put(key.to, ours, given, top=key.top, note=key.note)
            if key.also and second is not None:
                self.put(key.also[0], second, given)
            if key.falls:
                self.own.put(f"{key.to}_schedule", "constant" if falls is None else "linear", given.old)


def _fall(value: Any) -> float | None:
    """Return the initial value of `lin_…`, which falls to 0; None for any other value."""
    try:
        return float(value.removeprefix("lin_")) if isinstance(value, str) and value.startswith("lin_") else None
    except ValueError:
        return None


def in_words(value: Any) -> str:
    """Return a Stable-Baselines3 value as text for a comment, on one line and shortened."""
    if isinstance(value, str):
        text = value if isinstance(value, Name) or (value.isprintable() and value) else ascii(value)
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{in_words(key)}: {in_words(inner)}' for key, inner in value.items())}}}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(in_words, value))}]"
    elif value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    else:
        text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
