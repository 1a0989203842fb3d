"""Mistakes in a configuration. A single `ConfigError` reports all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value in the YAML: the keys and list indices that lead to it from the top level."""


def dotted(path: KeyPath) -> str:
    """Return a path in the form that `--set` takes: `behaviors.Tennis.max_steps`, `pipeline.stages.0.use`."""
    return ".".join(map(str, path))


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean '…'?` for a word that is close to a known word, otherwise an empty string."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


SET = "--set"
"""Option that overrides a key in the file. Messages about an overridden key begin with this option, not with the file
name."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a configuration."""

    file: str
    """The file name that the user gave, `--set key=value` for an override, or empty for plain data."""
    line: int | None
    """Line number in the file, starting at 1; None if the mistake is not on a particular line."""
    path: str
    """Dotted path of the key; empty if the mistake concerns the entire file."""
    message: str
    """What the mistake is, what was expected, and how to fix it."""

    @property
    def place(self) -> str:
        """The mistake's location: `file:line`, or only the file or override if the line is unknown.

        Empty for plain data.
        """
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.path, self.message) if part)


Locate: TypeAlias = Callable[[KeyPath, str], Mistake]
"""Function that takes a key's path and a message, and returns a `Mistake` with the key's location."""


def nowhere(path: KeyPath, message: str) -> Mistake:
    """Return a `Mistake` without a location, for plain data."""
    return Mistake("", None, dotted(path), message)


class ConfigError(Exception):
    """Raised if a configuration can't be used; `mistakes` lists the reasons, and `str()` shows them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: a mistake or a warning, without file and line."""

    path: KeyPath
    """Path of the key at fault: relative to the model that ran the check, or, after validation, to the top level of the
    YAML."""
    message: str
    involves: tuple[KeyPath, ...] = ()
    """Other keys that the check depends on. If one of them is invalid, the finding is dropped."""
    warns: bool = False
    """True for a warning: the value is valid, but the run does something else than the user probably wants."""
    meant: str = ""
    """For a misspelt key: the key that was probably meant."""

    @property
    def intended(self) -> KeyPath:
        """The path with the key that was probably meant."""
        return (*self.path[:-1], self.meant)

    def below(self, path: KeyPath) -> Finding:
        """Return the finding with its paths relative to a model that has this finding's model at `path`."""
        return replace(self, path=(*path, *self.path), involves=tuple((*path, *other) for other in self.involves))


class FindingsError(ValueError):
    """Raised in a pydantic validator for one or more findings about particular keys."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{dotted(finding.path)}: {finding.message}" for finding in self.findings))
