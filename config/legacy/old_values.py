"""Input and output of a conversion: old values with their locations, notes, and the converted data.

The converted data is written as YAML with comments, which PyYAML and Headrace's reader parse identically.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from headrace.config.errors import KeyPath, Mistake, dotted
from headrace.config.fields import to_number
from headrace.config.yaml_reader import Document


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line in a file."""

    file: str
    line: int | None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class OldValue:
    """A value in an old file, with its location."""

    value: Any
    document: Document
    path: KeyPath = ()

    @property
    def place(self) -> SourceLocation:
        """The value's location."""
        return SourceLocation(self.document.name, self.document.line_of(self.path))

    def at(self, key: str | int) -> OldValue:
        """Return the value under a key or an index, which must exist."""
        return OldValue(self.value[key], self.document, (*self.path, key))

    def items(self) -> Iterator[tuple[str, OldValue]]:
        """Yield a map's keys and values. Yield nothing if the value is not a map."""
        if isinstance(self.value, dict):
            for key in self.value:
                yield key, self.at(key)


class Notes:
    """The warnings, mistakes, comments and origins that a conversion collects."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self.comments: dict[KeyPath, str] = {}
        """Comments for the converted file, keyed by the new path of the key that they explain."""
        self.origins: dict[KeyPath, SourceLocation] = {}
        """Locations of the old values, keyed by the new path of the converted value."""
        self._warnings: dict[tuple[str, str, str], set[int]] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning for each old key, in file order, which also lists the other lines where the key occurs."""
        first = {warning: min(lines, default=0) for warning, lines in self._warnings.items()}
        in_order = sorted(first, key=lambda warning: (warning[0], first[warning], *warning[1:]))
        return tuple(_write(*warning, sorted(self._warnings[warning])) for warning in in_order)

    def warn(self, old: OldValue | SourceLocation, key: str, message: str) -> None:
        """Warn about an old key. If a warning about the same key exists, only add a line number to that warning.

        Args:
            old: the value under the key, or its location.
            key: the key.
            message: what happened to the key.
        """
        place = old.place if isinstance(old, OldValue) else old
        lines = self._warnings.setdefault((place.file, key, message), set())
        if place.line is not None:
            lines.add(place.line)

    def wrong(self, old: OldValue, message: str) -> None:
        """Report a value that can't be converted."""
        mistake = Mistake(old.place.file, old.place.line, dotted(old.path), message)
        if mistake not in self.mistakes:  # a default is examined once for each behaviour that inherits the value
            self.mistakes.append(mistake)


def _write(file: str, key: str, message: str, lines: list[int]) -> str:
    others = lines[1:]
    named = ", ".join(map(str, others[:3])) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    also = f" (also in {'lines' if others[1:] else 'line'} {named})" if others else ""
    return f"{SourceLocation(file, lines[0] if lines else None)}: {key}: {message}{also}"


class Target:
    """A part of the converted data while it is being built: plain data at a path, with notes on its origin."""

    def __init__(self, notes: Notes, path: KeyPath = ()) -> None:
        self.notes = notes
        self.path = path
        self.data: dict[str, Any] = {}

    def put(self, keys: str, value: Any, source: OldValue | SourceLocation | None = None, comment: str = "") -> None:
        """Write a value at a dotted key, which must not contain names that users choose."""
        self.put_at(tuple(keys.split(".")), value, source, comment)

    def put_at(
        self, keys: tuple[str, ...], value: Any, source: OldValue | SourceLocation | None = None, comment: str = ""
    ) -> None:
        """Write a value.

        Args:
            keys: the value's path below this part.
            value: the value.
            source: the value's origin; None if the file has no counterpart for it.
            comment: comment next to the value in the converted file.
        """
        inside = self.data
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
        inside[keys[-1]] = value
        path = (*self.path, *keys)
        if source is not None:
            self.notes.origins[path] = source.place if isinstance(source, OldValue) else source
        if comment:
            self.notes.comments[path] = comment


_WORDS = {"yes": True, "on": True, "y": True, "no": False, "off": False, "n": False}


def truth(value: Any) -> Any:
    """Read `yes`, `off` and the like as YAML 1.1 does, the version of old files; return other values unchanged."""
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value


def integral(value: Any) -> Any:
    """Convert a float without a fraction to an integer, such as `5.0e5` to 500000. Return other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_number(value: Any) -> bool:
    """Return True for a number that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def above_zero(old: OldValue | None, otherwise: Any, notes: Notes) -> Any:
    """Return a number that must be greater than 0, or `otherwise` if it is missing or invalid.

    An invalid number is reported here, because the result of computing with it may look valid.
    """
    if old is None:
        return otherwise
    if is_number(old.value) and old.value > 0:
        return old.value
    notes.wrong(old, f"{old.value!r} is not valid; expected a number greater than 0")
    return otherwise


_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./ ()+\\-]*(?<! )")
_OTHERWISE = re.compile(
    r"~|null|true|false|yes|no|on|off|y|n|=|<<|[-+]?\.(inf|nan)|0[xo][0-9a-f_]+|0b[01_]+"
    r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|[-+]?\.?[0-9][0-9_.]*(e[-+]?[0-9]+)?",
    re.IGNORECASE,
)
_WIDTH = 120


def as_yaml(data: Mapping[str, Any], comments: Mapping[KeyPath, str]) -> str:
    """Return data as YAML.

    Args:
        data: maps with text keys, lists and scalars.
        comments: comments to write next to keys, keyed by path.
    """
    return "".join(f"{line}\n" for line in _map(data, (), "", comments))


def _map(data: Mapping[str, Any], path: KeyPath, indent: str, comments: Mapping[KeyPath, str]) -> Iterator[str]:
    for key, value in data.items():
        here = (*path, key)
        name = f"{indent}{_text(key)}:"
        yield from _entry(name, value, here, indent, comments)


def _entry(name: str, value: Any, path: KeyPath, indent: str, comments: Mapping[KeyPath, str]) -> Iterator[str]:
    comment = comments.get(path, "")
    if isinstance(value, Mapping) and value:
        yield from _commented(name, comment, indent)
        yield from _map(value, path, f"{indent}  ", comments)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        yield from _commented(name, comment, indent)
        for number, item in enumerate(value):
            yield from _item(item, (*path, number), f"{indent}  ", comments)
    else:
        yield from _commented(f"{name} {_flow(value)}", comment, indent)


def _item(item: Any, path: KeyPath, indent: str, comments: Mapping[KeyPath, str]) -> Iterator[str]:
    if not isinstance(item, Mapping) or not item:
        yield f"{indent}- {_flow(item)}"
        return
    lines = _map(item, path, f"{indent}  ", comments)
    first = next(lines)
    # A comment that does not fit next to the first key is placed above that key, and therefore after the dash.
    yield f"{indent}- {first.removeprefix(f'{indent}  ')}"
    yield from lines


def _commented(line: str, comment: str, indent: str) -> Iterator[str]:
    if not comment:
        yield line
    elif len(line) + len(comment) + 4 <= _WIDTH:
        yield f"{line}  # {comment}"
    else:
        yield f"{indent}# {comment}"
        yield line


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key)}: {_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return _float(value) if isinstance(value, float) else _text(value)


def _float(value: float) -> str:
    """Format a number with a dot before any exponent, because PyYAML would otherwise read it as a string."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    mantissa, sign, exponent = repr(value).partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{sign}{exponent}"


def _text(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and not _OTHERWISE.fullmatch(text) and to_number(text) is None
    return text if plain else yaml.safe_dump(text, default_style='"', width=math.inf, allow_unicode=True).strip()
