"""Mistakes in a configuration, all reported in one `ConfigError`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value: the keys (and list indices) that lead to it from the top of the YAML."""


def dotted(path: KeyPath) -> str:
    """Write a path as `--set` takes it: `behaviors.Tennis.max_steps`, `pipeline.stages.0.use`."""
    return ".".join(map(str, path))


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean '…'?` for a word that is close to a known one, else an empty string."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


SET = "--set"
"""The option that overrides a key in the file; the key's place then starts with this option."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a configuration."""

    file: str
    """The file as the user named it, `--set key=value` for an override, or empty for plain data."""
    line: int | None
    """Line in the file, from 1; None if there is none."""
    path: str
    """Dotted path of the key; empty for the whole file."""
    message: str
    """The mistake, the expected value, and the fix."""

    @property
    def place(self) -> str:
        """`file:line`; without a line, only the file or override, or an empty string."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.path, self.message) if part)


Locate: TypeAlias = Callable[[KeyPath, str], Mistake]
"""Function that takes a key and a message, and returns a mistake with the key's place."""


def nowhere(path: KeyPath, message: str) -> Mistake:
    """Make a mistake in plain data, which has no file."""
    return Mistake("", None, dotted(path), message)


class ConfigError(Exception):
    """A configuration is unusable; `mistakes` holds all reasons, and `str()` shows them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: a `Mistake` or a warning without its file and line."""

    path: KeyPath
    """The key at fault, relative to the model whose check found it; absolute after validation."""
    message: str
    involves: tuple[KeyPath, ...] = ()
    """Other keys on which the check depends; if one of these is invalid, this finding is dropped."""


class FindingsError(ValueError):
    """Raised inside a pydantic validator that finds particular keys at fault, possibly several."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{dotted(finding.path)}: {finding.message}" for finding in self.findings))
