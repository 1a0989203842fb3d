"""The product's source as syntax trees, each read and walked once, for tests of its structure."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from headrace.paths import PARTS

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (*PARTS, "headrace")
"""Folders, each of which may import those before it; all but the last are packages below `headrace`."""

LOWEST = {"paths", "process_tree", "startup_context", "stop_requests", "win32"}
"""Modules below all layers, which import none of them: processes that have imported nothing else yet need them."""

KEPT = (ast.Import, ast.ImportFrom, ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Node = TypeVar("Node", bound=ast.AST)
Found = tuple[str, ast.AST, bool]
"""Of a node: the module, the node, and whether it is executed late, in a function, or only for type checkers."""


@cache
def modules() -> Sequence[tuple[str, ast.Module]]:
    """Every module of ours: its path from the root, and its syntax tree."""
    paths = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
    gc.disable()
    try:
        return [
            (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"), str(path)))
            for path in paths
        ]
    finally:
        gc.freeze()  # else each later collection in this worker looks through a million nodes
        gc.enable()


@cache
def _found() -> Sequence[Found]:
    found: list[Found] = []
    for path, tree in modules():
        waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
        while waiting:
            node, late = waiting.pop()
            if isinstance(node, KEPT):
                found.append((path, node, late))
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                waiting += [(each, late) for each in node.orelse] + [(each, True) for each in node.body]
                continue
            late |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            waiting += [(each, late) for each in ast.iter_child_nodes(node)]
    return found


def nodes(*kinds: type[Node]) -> Iterator[tuple[str, Node]]:
    """All nodes of some of the kinds `KEPT`, each with the path of its module."""
    return ((path, node) for path, node, _ in _found() if isinstance(node, kinds))


def imports(*, executed_at_once: bool = False) -> Iterator[tuple[str, str, int]]:
    """What modules import: the path of each module, what it imports, with dots, and in which line.

    Args:
        executed_at_once: without what is imported inside functions, or only for type checkers.
    """
    for path, node, late in _found():
        if late and executed_at_once:
            continue
        if isinstance(node, ast.Import):
            yield from ((path, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = f"{'.' * node.level}{node.module or ''}."
            yield from ((path, start + alias.name, node.lineno) for alias in node.names)


def top(name: str) -> str:
    """The first part of a dotted name."""
    return name.partition(".")[0]


def below(name: str) -> str:
    """What a name of ours is below `headrace`, with the folder first; empty for others, and for what lies below all."""
    first, _, rest = name.partition(".")
    if first != "headrace" or top(rest) in LOWEST:
        return ""
    return rest if top(rest) in PARTS else name
