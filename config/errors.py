"""Mistakes in a configuration, reported all together in one `ConfigError`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The place of a value: the keys (and list indices) from the top of the YAML down to it."""


def dotted(path: KeyPath) -> str:
    """Write a path as `--set` takes it: `behaviors.Tennis.max_steps`, `pipeline.stages.0.use`."""
    return ".".join(map(str, path))


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean '…'?` for a word that is close to a known one, else nothing."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


SET = "--set"
"""The option that sets a key in the file's place: the place of such a key begins with it."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a configuration."""

    file: str
    """The file as the user named it, `--set key=value` for an override, or empty for plain data."""
    line: int | None
    """Line in the file, from 1; None where there is none."""
    path: str
    """Dotted path of the key; empty for the whole file."""
    message: str
    """The mistake, what was expected, and how to mend it."""

    @property
    def place(self) -> str:
        """`file:line`, the file or override alone, or nothing."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.path, self.message) if part)


Locate: TypeAlias = Callable[[KeyPath, str], Mistake]
"""Function that makes a mistake of a key and a message, and knows the places of keys."""


def nowhere(path: KeyPath, message: str) -> Mistake:
    """Make a mistake in plain data, which stands in no file."""
    return Mistake("", None, dotted(path), message)


class ConfigError(Exception):
    """A configuration cannot be used; `mistakes` holds all reasons, and `str()` shows them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check: a `Mistake` or a warning whose file and line are not yet known."""

    path: KeyPath
    """The key to blame, relative to the model that checks; absolute once it left the validation."""
    message: str
    involves: tuple[KeyPath, ...] = ()
    """Other keys that were looked at; if one of them is wrong itself, this finding is void."""


class FindingsError(ValueError):
    """Raised inside a pydantic validator that blames particular keys, several at once if need be."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{dotted(finding.path)}: {finding.message}" for finding in self.findings))
