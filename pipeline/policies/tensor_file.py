"""Reads `.pt` files, which may come from strangers. No other module reads them.

A `.pt` file is an archive: a pickle of plain values that refers to entries with the tensors' bytes. Headrace walks the
pickle's opcodes itself, so nothing is unpickled, and memory and time are proportional to the size of the file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from headrace.queues.archive import UNREADABLE, ArchiveError, open_archive
from headrace.queues.disks import answered
from headrace.queues.messages import Array

MAX_PICKLE_BYTES = 1 << 20
"""Maximum size of the pickle in bytes; a tensor takes about 200. As Python objects, it takes up to 60 times as much."""
_DEEPEST, _NESTING = 30, {dict, list, tuple}
"""Maximum number of values of these types within each other."""
_VIEWS = 2
"""How many times the tensors may use each byte of the file: ML-Agents' shared critics repeat the policy's tensors."""


class _Named(NamedTuple):
    """A function or class that a pickle names."""

    name: str


_TENSOR, _DICT = _Named("torch._utils _rebuild_tensor_v2"), _Named("collections OrderedDict")
_DTYPES = {
    _Named(f"torch {name}Storage"): dtype
    for name, dtype in (
        *(("Float", "<f4"), ("Double", "<f8"), ("Half", "<f2"), ("Bool", "?"), ("Long", "<i8")),
        *(("Int", "<i4"), ("Short", "<i2"), ("Char", "i1"), ("Byte", "u1")),
    )
}


def read_tensors(path: Path) -> Any:
    """Return the content of a `.pt` file, with arrays in place of tensors.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is damaged, is not a `.pt` file, or holds anything but tensors and plain values.
    """
    with _opened(path) as archive:
        return _built(archive, answered(path, path.stat).st_size)


def check_undamaged(path: Path) -> None:
    """Check that a `.pt` file is undamaged.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is damaged.
    """
    with _opened(path):
        pass


def mentions(path: Path, word: bytes) -> bool:
    """Return True if the pickle of a `.pt` file contains a word, or the file is damaged."""
    try:
        with open_archive(path) as archive:
            return word in archive.read(_pickle_in(archive))
    except UNREADABLE:
        return True


@contextmanager
def _opened(path: Path) -> Iterator[ZipFile]:
    try:
        with open_archive(path) as archive:
            if (entry := archive.testzip()) is not None:
                raise ArchiveError(
                    f"is damaged: the checksum (CRC-32) of its entry {entry} does not match its content; restore "
                    "it from a copy, or use a file from a different step"
                )
            yield archive
    except OSError:
        raise
    except ArchiveError as error:
        reason = str(error) if str(error).startswith("is damaged") else f"is not an exported policy: {error}"
        raise ValueError(f"{path} {reason}") from error
    except UNREADABLE as error:
        reason = "it is damaged, or not a PyTorch file" if answered(path, path.stat).st_size else "it is empty"
        raise ValueError(f"{path} is not an exported policy: {reason}") from error


def _pickle_in(archive: ZipFile) -> str:
    """Return the name of the entry with the pickle, which must be short."""
    entry = next((entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")), None)
    if entry is None:
        raise ArchiveError("it is not a PyTorch file, because it has no entry data.pkl")
    if entry.file_size > MAX_PICKLE_BYTES:
        raise ArchiveError(
            f"its entry data.pkl has {entry.file_size:,} bytes; expected at most {MAX_PICKLE_BYTES:,} (a trainer's "
            "`warm_state` should hold arrays instead of long lists)"
        )
    return entry.filename


def _built(archive: ZipFile, size: int) -> Any:  # noqa: C901 - one case for each opcode
    """Return the object that an archive's pickle describes. Torch's files contain no other opcodes.

    Args:
        archive: the archive.
        size: the size of the file in bytes.
    """
    name, claimed = _pickle_in(archive), 0
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    content_of = cache(archive.read)  # tensors of several types may name the same entry

    def counted(array: Array) -> Array:
        nonlocal claimed
        claimed += array.nbytes
        if claimed > _VIEWS * size:  # a view can be larger than its storage
            raise ArchiveError(f"its tensors declare {claimed:,} bytes, but the file has {size:,}")
        return array

    def pop(count: int) -> list[Any]:
        at = len(stack) - count
        values = stack[at:]
        if at < 0:
            raise IndexError("the stack is too short")
        del stack[at:]
        return values

    opcodes: Iterator[tuple[Any, Any, Any]] = pickletools.genops(archive.read(name))
    for opcode, argument, _ in opcodes:
        match opcode.name:
            case "PROTO" | "STOP":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[opcode.name])
            case "MARK":
                marks.append(len(stack))
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(pop(int(opcode.name[5:]) if opcode.name[5:] else len(stack) - marks.pop())))
            case "APPEND" | "APPENDS":
                values = pop(1 if opcode.name == "APPEND" else len(stack) - marks.pop())
                list.extend(stack[-1], values)
            case "SETITEM" | "SETITEMS":
                values = pop(2 if opcode.name == "SETITEM" else len(stack) - marks.pop())
                if not all(isinstance(key, str) or (type(key) is int and abs(key) < 1 << 32) for key in values[::2]):
                    raise ArchiveError("it has a key that is neither text nor a short integer")
                dict.update(stack[-1], zip(values[::2], values[1::2], strict=True))
            case "GLOBAL" if _Named(argument) in {_TENSOR, _DICT, *_DTYPES}:
                stack.append(_Named(argument))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":  # with repeated containers, a short pickle could grow without limit
                value = memo[argument]
                if isinstance(value, list | dict) or (type(value) is tuple and any(type(v) in _NESTING for v in value)):
                    raise ArchiveError("it repeats a list, a dict or a nested tuple")
                stack.append(counted(value) if isinstance(value, np.ndarray) else value)
            case "BINPERSID":
                ((_, kind, key, _, numbers),) = pop(1)
                content = content_of(f"{name.removesuffix('data.pkl')}data/{key}")
                stack.append(np.frombuffer(content, _DTYPES[kind]))
                if len(stack[-1]) != numbers:
                    raise ArchiveError(f"its entry data/{key} has {len(stack[-1])} numbers, not {numbers}")
            case "REDUCE" if stack[-2:] == [_DICT, ()]:
                stack[-2:] = [{}]
            case "REDUCE" if stack[-2] == _TENSOR:
                values, start, shape, strides, *_ = pop(2)[1]
                bytes_each = values.itemsize
                steps = [bytes_each * stride for stride in strides]
                view = np.ndarray(shape, values.dtype, values.data, start * bytes_each, steps)  # checks the bounds
                stack.append(counted(view).copy())
            case "BUILD":  # torch's notes on a module's dict
                pop(1)
            case _:
                named = argument.replace(" ", ".") if opcode.name == "GLOBAL" else f"opcode {opcode.name}"
                raise ArchiveError(
                    f"it holds objects other than tensors and plain values ({named}); loading them could run "
                    "arbitrary code, so nothing was loaded"
                )
    (content,) = level = stack
    for _ in range(_DEEPEST):
        nested = [each for each in level if type(each) in _NESTING]
        level = [value for each in nested for value in (each.values() if type(each) is dict else each)]
    if level:
        raise ArchiveError(f"it nests more than {_DEEPEST} lists and dicts")
    return content
