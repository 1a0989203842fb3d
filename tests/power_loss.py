"""A model of a file system that loses power: it replays a log of system calls, and makes what a disk may hold then.

`TRACE` is the command that writes the log. A file's content is durable up to its last fsync; a name is durable after an
fsync of its folder. `LOSSES` lists what happens to the rest, from everything lost to everything kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat,creat,write,pwrite64,writev,copy_file_range,sendfile,rename,renameat,renameat2,unlink,unlinkat,mkdir,"
    "mkdirat,rmdir,link,linkat,symlink,symlinkat,truncate,ftruncate,fsync,fdatasync"
)
_FLAGS = ["-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", "50000000", "-e", "signal=none"]
LOSSES = ("everything kept", "unsynced content lost", "half of it lost", "names since the last fsync lost", "all lost")

_LINE = re.compile(r"(\d+) +(?:<\.\.\. \w+ resumed>)?(.*)")
_RESULT = re.compile(r"(\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>)?")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def trace(log: Path) -> list[str]:
    """Return the beginning of a command line that writes a command's system calls to a log."""
    return ["strace", *_FLAGS, "-e", f"trace={CALLS}", "-o", str(log)]


@dataclass
class _File:
    data: bytes = b""
    durable: bytes = b""


@dataclass
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    ordered: dict[str, _File | _Folder] = field(default_factory=dict)
    """The names at the last fsync of anything, which is when a journal is written."""


class Disk:
    """A folder on a disk that loses power.

    Args:
        folder: the folder, which is empty at first.
    """

    def __init__(self, folder: Path) -> None:
        self._root = _Folder()
        self._path = folder

    def replay(self, log: Path) -> Iterator[str]:
        """Replay the calls in a log; yield each call that changes names or syncs something, after its effect."""
        begun: dict[str, str] = {}
        with log.open(encoding="ascii") as lines:
            for line in lines:
                process, rest = _LINE.fullmatch(line.rstrip("\n")).groups()
                call = begun.pop(process, "") + rest
                if call.endswith("<unfinished ...>"):
                    begun[process] = call.removesuffix(" <unfinished ...>")
                elif (told := _RESULT.match(call)) and int(told[3]) >= 0 and self._effect(told):
                    yield told[1]

    def _effect(self, told: re.Match[str]) -> bool:
        name, arguments, result, opened = told.groups()
        first = re.match(r"\d+<([^>]*)>", arguments)
        texts = [_decoded(text) for text in _TEXT.findall(arguments)]
        if name == "openat":
            inside = self._place(_decoded(opened or "").decode("utf-8", "replace"))
            if inside is None or not re.search("O_CREAT|O_TRUNC", arguments):
                return False
            folder, entry = inside
            made = entry not in folder.names
            file = folder.names.setdefault(entry, _File())
            if "O_TRUNC" in arguments and isinstance(file, _File):
                file.data = b""
            return made
        if first is not None:
            return self._on_descriptor(
                name, _decoded(first[1]).decode("utf-8", "replace"), texts, arguments, int(result)
            )
        places = [self._place(text.decode("utf-8", "replace")) for text in texts]
        if name in ("write", "writev") or not places or places[0] is None:
            return False
        folder, entry = places[0]
        if name in ("mkdir", "mkdirat"):
            folder.names[entry] = _Folder()
        elif name in ("unlink", "unlinkat", "rmdir"):
            del folder.names[entry]
        else:
            assert places[1] is not None, told[0][:400]
            target, new = places[1]
            target.names[new] = folder.names[entry] if name.startswith("link") else folder.names.pop(entry)
        return True

    def _on_descriptor(self, name: str, path: str, texts: list[bytes], arguments: str, result: int) -> bool:
        inside = self._place(path)
        if inside is None:
            return False
        folder, entry = inside
        node = folder.names.get(entry) if entry else folder
        if name in ("fsync", "fdatasync"):
            if isinstance(node, _File):
                node.durable = node.data
            elif node is not None:
                node.durable = dict(node.names)
            _note_order(self._root)
            return True
        if not isinstance(node, _File):
            return False  # the file was removed
        if name == "ftruncate":
            length = int(arguments.rpartition(",")[2])
            node.data = node.data[:length].ljust(length, b"\0")
        else:
            assert name in ("write", "writev"), name
            node.data += b"".join(texts)[:result]
        return False

    def _place(self, path: str) -> tuple[_Folder, str] | None:
        """Return the folder and the name of a path; None for a path elsewhere."""
        try:
            parts = (self._path / path).relative_to(self._path).parts  # a relative path was made in this folder
        except ValueError:
            return None
        node: _File | _Folder = self._root
        for part in parts[:-1]:
            found = node.names.get(part) if isinstance(node, _Folder) else None
            if found is None:
                return None
            node = found
        assert isinstance(node, _Folder)
        return node, parts[-1] if parts else ""

    def files(self, loss: str) -> dict[str, bytes]:
        """Return what the disk holds after a loss: content by path; None for a folder, whose path ends with a slash."""
        names: Callable[[_Folder], dict[str, _File | _Folder]] = {
            "all lost": lambda folder: folder.durable,
            "names since the last fsync lost": lambda folder: folder.ordered,
        }.get(loss, lambda folder: folder.names)
        content: Callable[[_File], bytes] = {
            "everything kept": lambda file: file.data,
            "half of it lost": lambda file: file.data[: (len(file.durable) + len(file.data)) // 2],
        }.get(loss, lambda file: file.durable)
        found: dict[str, bytes] = {}

        def walk(folder: _Folder, prefix: str) -> None:
            for name, node in names(folder).items():
                if isinstance(node, _File):
                    found[prefix + name] = content(node)
                else:
                    found[f"{prefix}{name}/"] = b""
                    walk(node, f"{prefix}{name}/")

        walk(self._root, "")
        return found


def write(files: dict[str, bytes], folder: Path) -> None:
    """Make a folder that holds these files."""
    folder.mkdir(parents=True)
    for path, content in files.items():
        if path.endswith("/"):
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def _note_order(folder: _Folder) -> None:
    folder.ordered = dict(folder.names)
    for node in folder.names.values():
        if isinstance(node, _Folder):
            _note_order(node)


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
