"""Writes plain data as YAML with comments, which PyYAML and Headrace's reader parse identically."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from headrace.config.errors import KeyPath
from headrace.config.fields import to_number

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
