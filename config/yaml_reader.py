"""Reads YAML as plain data with line numbers.

PyYAML's own loader reads `1e-4` and `5e6` as strings, `on` and `no` as bools, and `12:30` as a number in base 60, and
silently uses the last of duplicate keys. Here PyYAML only parses (`compose`), and scalars follow the rules of YAML 1.2
(with `1_000` as a number). Keys are always text.

ML-Agents 0.19 and 0.20 wrote Python tags into `configuration.yaml`. Tags of ML-Agents' classes are read as plain data,
and no class is ever instantiated.

A file's size, its depth and the number of its values, with aliases expanded, are limited, because a few lines of
aliases could otherwise expand beyond any memory.
"""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from headrace.config.errors import ConfigError, KeyPath, Mistake, dotted
from headrace.config.fields import to_number, within_64_bits

MAX_BYTES = 1_000_000
"""Maximum size of a file in bytes."""
MAX_VALUES = 20_000
"""Maximum number of keys and values in a file, and of values once every alias is expanded."""
MAX_KEY = 1000
"""Maximum length of a key in characters."""
MAX_DEPTH = 50
"""Maximum number of maps and lists around a value."""

_NAMES = {("checkpoint_settings", "run_id"), ("checkpoint_settings", "initialize_from"), ("environment", "id")}
"""Keys whose values are names, which stay as written even if they look like numbers: run `007`, `2024_01_05`, `1e3`."""
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_PLAIN = "plain"
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TAGGED = {("int", int), ("float", float), ("bool", bool), ("null", type(None))}
_BASED = re.compile(r"0o[0-7]{1,99}|0x[0-9a-fA-F]{1,99}")
_NULLS = ("", "~", "null", "Null", "NULL")
_INFINITIES = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


_SPACES = r"[\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff]"
_ODD = re.compile(rf"(?:^|(?<=[ :,{{\[-])){_SPACES}|{_SPACES}$")
"""A character that looks like a space, or like nothing, where YAML needs a space."""


def _odd_space(found: re.Match[str] | None) -> str:
    assert found is not None, "the caller searched"
    character = found[0]
    return (
        f"the character U+{ord(character):04X} ({unicodedata.name(character).lower()}), which is not a space in YAML: "
        "replace each one with a space (text copied from web pages contains such characters)"
    )


class _LimitError(Exception):
    """Raised for a file that Headrace does not read further; the message completes "the file …"."""

    def __init__(self, mark: Any, message: str) -> None:
        super().__init__(message)
        self.line = mark.line + 1


class _Composer(yaml.SafeLoader):
    """PyYAML's parser with limits, which resolves only the merge key and plain scalars without a tag."""

    # PyYAML's stubs declare this per instance, but the loader reads it from the class.
    yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
        "<": [(_MERGE, re.compile(r"<<\Z"))],
        None: [(_PLAIN, re.compile(""))],
    }
    _depth = -1
    _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_VALUES or self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            if self._depth > MAX_DEPTH:
                raise _LimitError(
                    mark, f"is nested too deeply: at most {MAX_DEPTH} levels of maps and lists are allowed"
                )
            raise _LimitError(mark, f"is too large: a file can have at most {MAX_VALUES:,} keys and values")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and node.style is None and (odd := _ODD.search(node.value)):
            raise _LimitError(node.start_mark, f"has {_odd_space(odd)}")
        self._depth -= 1
        return node


@dataclass(frozen=True, slots=True)
class _Value:
    """A parsed value: a map or list of other values, or a scalar."""

    line: int
    """Line of the value's key, starting at 1; for a value without a key, the line of the value itself."""
    content: Any

    def at(self, part: str | int) -> _Value | None:
        """Return the value under a key or index, or None if there is none."""
        if isinstance(self.content, dict):
            return self.content.get(part)
        inside = isinstance(self.content, list) and part in range(len(self.content))
        return self.content[part] if inside else None

    def plain(self) -> Any:
        if isinstance(self.content, dict):
            return {key: value.plain() for key, value in self.content.items()}
        return [value.plain() for value in self.content] if isinstance(self.content, list) else self.content


class Document:
    """One YAML document: its plain data, and the line of each value."""

    def __init__(self, name: str, root: yaml.Node | None, at: KeyPath = (), *, last_counts: bool = False) -> None:
        reader = _Reader(name, last_counts=last_counts)
        self._root = root
        self._top = None if root is None else reader.value(root, at, _line(root))
        self.name = name
        """Name of the file, as the user specified it."""
        self.data = None if self._top is None else self._top.plain()
        """The content as plain data: dicts with text keys, lists, and scalars."""
        self.text = ""
        self.mistakes = tuple(reader.mistakes)
        """Mistakes that do not prevent reading the rest, such as duplicate keys."""
        self.tagged = reader.tagged
        """True if the text contains Python tags."""
        self.repeated = tuple(reader.repeated) if last_counts else ()
        """Warnings about duplicate keys, if the last occurrence of each key is used."""

    def last_of_repeated(self) -> Document:
        """Read the text again, using the last of any duplicate keys, as PyYAML does."""
        return Document(self.name, self._root, last_counts=True)

    def has(self, path: KeyPath) -> bool:
        """Return True if there is a value at a path."""
        value = self._top
        for part in path:
            value = None if value is None else value.at(part)
        return value is not None

    def line_of(self, path: KeyPath) -> int | None:
        """Return the line, counted from 1, of a key or of the nearest enclosing value; None for an empty file."""
        if self._top is None:
            return None
        value = self._top
        for part in path:
            inner = value.at(part)
            if inner is None:
                break
            value = inner
        return value.line


def read_file(path: Path) -> Document:
    """Read a YAML file; `-` is standard input. A pipe can be read only once.

    Raises:
        ConfigError: if the file can't be read, is not UTF-8, or is not YAML.
    """
    name = str(path)
    try:
        with open(0 if name == "-" else path, "rb", closefd=name != "-") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError([Mistake(name, None, "", f"no such file ({path.absolute()})")]) from error
    except OSError as error:
        raise ConfigError([Mistake(name, None, "", f"can't be read: {error.strerror}")]) from error
    if len(raw) > MAX_BYTES:
        message = f"is too large for a configuration file; the limit is {MAX_BYTES:,} bytes"
        raise ConfigError([Mistake(name, None, "", message)])
    try:
        by_powershell = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's `>` writes UTF-16
        text = raw.decode("utf-16" if by_powershell else "utf-8-sig")
        if path.suffix.lower() == ".json":
            text = text.replace("\t", " ")  # JSON allows tabs between tokens, YAML does not
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 (byte {raw[error.start]:#04x}); save the file as UTF-8"
        raise ConfigError([Mistake(name, line, "", message)]) from error
    return read_text(text, name)


def read_text(text: str, name: str, at: KeyPath = ()) -> Document:
    """Read YAML from a string.

    Args:
        text: the YAML.
        name: the text's name in messages.
        at: the key path where the text belongs in a file.

    Raises:
        ConfigError: if the text is not YAML.
    """
    try:
        document = Document(name, yaml.compose(text, Loader=_Composer), at)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax(error, text, name)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character {error.character!r} is not allowed in YAML"
        raise ConfigError([Mistake(name, line, "", message)]) from error
    except _LimitError as error:
        raise ConfigError([Mistake(name, error.line, "", str(error))]) from error
    except RecursionError as error:
        raise ConfigError([Mistake(name, None, "", "has a value that contains itself through an alias")]) from error
    document.text = text
    return document


def _syntax(error: yaml.MarkedYAMLError, text: str, name: str) -> Mistake:
    """Describe a syntax error, its line, and how to fix it."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    words = ", ".join(part for part in (error.context, error.problem) if part)
    problem, hint = error.problem or "", ""
    lines = text.splitlines()
    odd_lines = [number for number, content in enumerate(lines[:line], 1) if _ODD.search(content)]
    if odd_lines:
        line = odd_lines[0]
        hint = f"it has {_odd_space(_ODD.search(lines[line - 1]))}"
    elif "'\\t'" in problem:
        hint = "indent with spaces"
    elif "cannot start any token" in problem or "undefined alias" in problem or "directive" in words:
        hint = "put text that begins with this character in quotes"
    elif "double-quoted" in (error.context or "") and "escape" in problem:
        hint = "a backslash in double quotes starts an escape sequence: write paths in single quotes, or with /"
    elif "could not find expected ':'" in problem and error.context_mark:
        line = error.context_mark.line + 1  # the key's line, because the parser notices the error only later
        hint = "write a space after ':'" if _joined(lines[line - 1]) else "write ': ' after a key"
    elif ("mapping values" in problem or "<block mapping start>" in problem) and error.problem_mark:
        line, hint = _about_columns(lines, error.problem_mark.line + 1, error.problem_mark.column)
    return Mistake(name, line, "", f"is not YAML: {words}{hint and '; '}{hint}")


_KEY = re.compile(r"(?P<indent>(?:- |[ ])*)(?P<key>[^\s#:'\"{[][^\s:]*):(?P<rest>.*)")


def _about_columns(lines: list[str], line: int, column: int) -> tuple[int, str]:
    """Return the line to correct, and how: a space or quotes are missing, or a key is indented wrongly."""
    before = next((n for n in range(line - 1, 0, -1) if lines[n - 1].partition("#")[0].strip()), line)
    here, above = _KEY.match(lines[line - 1]), _KEY.match(lines[before - 1])
    if _joined(lines[before - 1]):
        return before, "write a space after ':'"
    if here is None or above is None or len(here["indent"]) == len(above["indent"]) or column > here.end("key"):
        return line, "put text that contains ': ' in quotes"
    columns = [len(match["indent"]) + 1 for match in (here, above)]
    return line, (
        f"'{here['key']}' starts in column {columns[0]}, but '{above['key']}' before it, in line {before}, starts in "
        f"column {columns[1]}: start keys of the same level in the same column"
    )


def _joined(line: str) -> bool:
    """Return True for a line such as `num_envs:64`, in which the space after the colon is missing."""
    match = _KEY.match(line)
    return match is not None and match["rest"][:1] not in ("", " ")


class _Reader:
    """Converts nodes to plain data, and collects mistakes."""

    def __init__(self, name: str, *, last_counts: bool = False) -> None:
        self.mistakes: list[Mistake] = []
        self.repeated: list[Mistake] = self.mistakes
        if last_counts:  # in that case a duplicate only causes a warning
            self.repeated = []
        self.tagged = False
        self._name = name
        self._last_counts = last_counts
        self._open: set[int] = set()  # nodes being read: an alias to one of them would recurse forever
        self._values = 0

    def value(self, node: yaml.Node, path: KeyPath, line: int) -> _Value:
        self._values += 1
        if self._values > MAX_VALUES:
            text = f"has aliases that expand to more than {MAX_VALUES:,} values"
            raise _LimitError(node.start_mark, text)
        if len(path) > MAX_DEPTH:
            raise _LimitError(
                node.start_mark, f"has aliases that nest too deeply: at most {MAX_DEPTH} levels are allowed"
            )
        if id(node) in self._open:
            self._wrong(node, path, "contains itself through an alias")
            return _Value(line, None)
        self._open.add(given := id(node))
        try:
            plain = _untagged(node)
            self.tagged |= plain is not node
            node = plain
            if isinstance(node, yaml.MappingNode):
                return _Value(line, self._map(node, path))
            if isinstance(node, yaml.SequenceNode):
                self._expect_tag(node, path, "seq")
                items = [self.value(item, (*path, index), _line(item)) for index, item in enumerate(node.value)]
                return _Value(line, items)
            return _Value(line, self._scalar(node, path))
        finally:
            self._open.discard(given)

    def _map(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, _Value]:
        self._expect_tag(node, path, "map")
        entries: dict[str, _Value] = {}
        merged: dict[str, _Value] = {}
        lines: dict[str, int] = {}
        for written, value in node.value:
            key = _untagged(written)
            if not isinstance(key, yaml.ScalarNode) or len(key.value) > MAX_KEY:
                kind = "a map or list" if not isinstance(key, yaml.ScalarNode) else f"{len(key.value):,} characters"
                self._wrong(key, path, f"a key must be a single word, not {kind}")
                continue
            if key.tag == _MERGE:
                merged = self._merged(value, path) | merged
                continue
            if key.value in entries:
                message = f"appears twice here (first in line {lines[key.value]})"
                self.repeated.append(self._mistake(key, (*path, key.value), message))
                if not self._last_counts:
                    continue
            lines.setdefault(key.value, _line(key))
            entries[key.value] = self.value(value, (*path, key.value), _line(key))
        return merged | entries

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, _Value]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, _Value] = {}
        for source in sources:
            if isinstance(source, yaml.MappingNode):
                merged = (
                    self.value(source, path, _line(source)).content or {}
                ) | merged  # the earlier source wins, and a recursive one adds nothing
            else:
                self._wrong(source, path, "'<<' takes a map, or a list of maps")
        return merged

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_TAG)
        if kind == "str" or node.tag == _MERGE:
            return text
        read = _plain_scalar(text)
        if kind == _PLAIN or (kind, type(read)) in _TAGGED:
            return text if path in _NAMES and type(read) in (int, float) else read
        if kind == "float" and type(read) is int:
            return float(read)
        self._wrong(node, path, f"the tag '{node.tag}' is not valid for '{text}'; leave it out")
        return text

    def _expect_tag(self, node: yaml.Node, path: KeyPath, kind: str) -> None:
        if node.tag != f"{_TAG}{kind}":
            self._wrong(node, path, f"the tag '{node.tag}' is not supported here; leave it out")

    def _wrong(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.mistakes.append(self._mistake(node, path, message))

    def _mistake(self, node: yaml.Node, path: KeyPath, message: str) -> Mistake:
        return Mistake(self._name, _line(node), dotted(path), message)


_OF_ML_AGENTS = re.compile(rf"{_TAG}python/(object|name)(/apply|/new)?:(mlagents|collections)\.[\w.]+")
_PYTHONS = {
    **dict.fromkeys(("tuple", "list"), f"{_TAG}seq"),
    **dict.fromkeys(("str", "unicode"), f"{_TAG}str"),
    **dict.fromkeys(("int", "long", "float", "bool", "none"), _PLAIN),
    "dict": f"{_TAG}map",
}
"""Python tags for plain data, with the equivalent YAML tags."""


def _untagged(node: yaml.Node) -> yaml.Node:
    """Return the plain form of a node with a Python tag, or the node itself if its tag is unknown."""
    builtin = _PYTHONS.get(node.tag.removeprefix(f"{_TAG}python/"))
    if builtin is not None:
        return _retagged(node, builtin)
    match = _OF_ML_AGENTS.fullmatch(node.tag)
    if match is None:
        return node
    if isinstance(node, yaml.ScalarNode):  # a class or function, by name
        return yaml.ScalarNode(_PLAIN, "", node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode):  # the value of an enum member
        return _untagged(node.value[0]) if len(node.value) == 1 else _retagged(node, f"{_TAG}seq")
    if match[2]:
        parts = {key.value: value for key, value in node.value}
        content = parts.get("dictitems", parts.get("state"))
        return (
            yaml.MappingNode(f"{_TAG}map", [], node.start_mark, node.end_mark)
            if content is None
            else _untagged(content)
        )
    return _retagged(node, f"{_TAG}map")


def _retagged(node: yaml.Node, tag: str) -> yaml.Node:
    return type(node)(tag, node.value, node.start_mark, node.end_mark)


def _plain_scalar(text: str) -> Any:
    if text in _BOOLS:
        return _BOOLS[text]
    if text in _NULLS:
        return None
    if text.lower() in _INFINITIES:
        return _INFINITIES[text.lower()]
    if _BASED.fullmatch(text):
        return within_64_bits(int(text, 0))
    number = to_number(text)
    return text if number is None else number


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line
