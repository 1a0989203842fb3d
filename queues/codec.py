"""Converts messages to a plain header and a list of arrays, and back: the form that slabs and stream files share.

The header consists of dicts, sequences, strings and numbers, so msgpack can write it. It gives each array's offset,
dtype and shape, so `build` needs only the header and one buffer. Nothing is pickled.

`pack` and `unpack` convert plain data to msgpack for internal use, and preserve non-UTF-8 paths and lone surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from math import prod
from typing import Any, get_args

import msgpack
import numpy as np

from headrace.queues.errors import ShapeError
from headrace.queues.messages import Array, Columns, Message, PolicyAnswer, PolicyQuestion

ALIGNMENT = 64
"""Arrays start at multiples of this many bytes, so views of them are aligned."""

_ALLOWED_KINDS = "biuf"
_MESSAGES = {kind.__name__: kind for kind in get_args(Message)}
_PARTS = {"tuple[PolicyQuestion, ...]": PolicyQuestion, "tuple[PolicyAnswer, ...]": PolicyAnswer}
"""Maps annotations to the classes of a message's parts, which are converted like messages."""
_FIELDS = {
    kind: [(field.name, str(field.type)) for field in fields(kind)] for kind in (*_MESSAGES.values(), *_PARTS.values())
}
"""Name and annotation of each field."""


def describe(message: Message) -> tuple[dict[str, Any], list[Array]]:
    """Return a message's header, and its arrays (C-contiguous) in the header's order.

    Raises:
        TypeError: if the object is not a pipeline message.
    """
    if type(message).__name__ not in _MESSAGES:
        raise TypeError(f"not a pipeline message: {type(message).__name__}")
    named: list[tuple[str, Array]] = []
    plain = _take_apart(message, "", named)
    arrays = [np.ascontiguousarray(array) for _, array in named]
    table = [[name, array.dtype.str, list(array.shape)] for (name, _), array in zip(named, arrays, strict=True)]
    return {"type": type(message).__name__, "fields": plain, "arrays": table}, arrays


def _take_apart(message: Any, at: str, named: list[tuple[str, Array]]) -> dict[str, Any]:
    """Return the plain fields of a message or part; add its arrays to `named`, each under its path below `at`."""
    plain: dict[str, Any] = {}
    for key, kind in _FIELDS[type(message)]:
        value = getattr(message, key)
        if kind == "Columns":
            named += [(f"{at}{key}/{name}", array) for name, array in value.items()]
        elif kind == "tuple[Array, ...]":
            named += [(f"{at}{key}/{i}", array) for i, array in enumerate(value)]
        elif kind in _PARTS:
            plain[key] = [_take_apart(part, f"{at}{key}/{i}/", named) for i, part in enumerate(value)]
        elif isinstance(value, np.ndarray):
            named.append((f"{at}{key}", value))
        elif value is not None:  # an array that a message may omit
            plain[key] = value
    return plain


def offsets(header: Mapping[str, Any]) -> tuple[list[int], int]:
    """Return the offset of each array in the buffer, and the buffer's size in bytes.

    Raises:
        ShapeError: if the header lists an array with a negative size or a non-numeric dtype.
    """
    starts, at = [], 0
    for name, dtype, shape in header["arrays"]:
        starts.append(at)
        kind = _dtype(dtype)
        if kind.kind not in _ALLOWED_KINDS or (shape and min(shape) < 0):
            raise ShapeError(f"array {name!r}: dtype {dtype!r} and shape {shape} can't be sent in a message")
        at += aligned(prod(shape) * kind.itemsize)
    return starts, at


_dtype = lru_cache(maxsize=64)(np.dtype)
"""Returns the NumPy dtype with a given name; cached, because messages use only a few dtypes."""


def aligned(size: int) -> int:
    """Return the number of bytes that an array of `size` bytes takes up, including padding."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def write_arrays(arrays: Sequence[Array], starts: Sequence[int], buffer: memoryview) -> None:
    """Copy the arrays to their offsets in the buffer."""
    for array, start in zip(arrays, starts, strict=True):
        target = np.frombuffer(buffer, array.dtype, array.size, start)
        target[:] = array.reshape(-1)


def read_arrays(header: Mapping[str, Any], buffer: Any) -> list[Array]:
    """Return views into the buffer, one per array in the header; the views keep the buffer alive.

    Raises:
        ShapeError: if the buffer is smaller than the header claims.
    """
    starts, total = offsets(header)
    size = memoryview(buffer).nbytes
    if size < total:
        raise ShapeError(f"the header claims {total} bytes of arrays, but the message has {size}")
    return [
        np.ndarray(shape, _dtype(dtype), buffer, start)
        for (_, dtype, shape), start in zip(header["arrays"], starts, strict=True)
    ]


def build(header: Mapping[str, Any], arrays: Sequence[Array]) -> Message:
    """Rebuild a message from the header and arrays that `describe` returned.

    Raises:
        ShapeError: if the header does not describe a message, or the arrays do not fit together.
    """
    try:
        if header["type"] not in _MESSAGES:
            raise ShapeError(f"unknown message type {header['type']!r}")
        named = {row[0]: array for row, array in zip(header["arrays"], arrays, strict=True)}
        message: Message = _put_together(_MESSAGES[header["type"]], header["fields"], "", named)
        return message
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ShapeError(f"not a message header: {error!r}") from error


def _put_together(kind: type[Any], plain: Mapping[str, Any], at: str, named: Mapping[str, Array]) -> Any:
    values = {key: _as_tuples(value) for key, value in plain.items()}
    for key, annotation in _FIELDS[kind]:
        if annotation in _PARTS:
            part, parts = _PARTS[annotation], plain[key]
            values[key] = tuple(_put_together(part, one, f"{at}{key}/{i}/", named) for i, one in enumerate(parts))
        elif annotation in ("Columns", "tuple[Array, ...]"):
            columns: Columns = _below(f"{at}{key}/", named)
            values[key] = columns if annotation == "Columns" else tuple(columns.values())
        elif f"{at}{key}" in named:
            values[key] = named[f"{at}{key}"]
    return kind(**values)


def _below(prefix: str, named: Mapping[str, Array]) -> Columns:
    return {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}


def _as_tuples(value: Any) -> Any:
    """Return a value with its lists as tuples, as before msgpack."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


pack = partial(msgpack.packb, use_bin_type=True, unicode_errors="surrogatepass")
unpack = partial(msgpack.unpackb, raw=False, strict_map_key=False, unicode_errors="surrogatepass")
