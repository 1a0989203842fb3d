"""The structure of the house: rooms keep an order, nothing imports in a circle, functions stay short, names are unique.

A room imports only itself and the rooms listed before it.
"""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from test_imports import below, imports, modules

ROOMS = {
    "stages": (
        "",
        "policy",
        "policy/network/kernels",
        "policy/network",
        "policy/onnx",
        "brains",
        "environments",
        "environments/spaces",
        "environments/gymnasium",
        "environments/pettingzoo",
        "environments/open_spiel",
        "environments/programs",
        "environments/unity",
        "environments/godot",
        "environments/open_protocol",
        "environments/low_level",
        "inference",
        "games",
        "agent",
        "actor",
        "ghost",
        "league",
        "replay",
        "evaluation",
        "exhibition",
        "trainer",
        "trainer/imitation",
        "trainer/rewards",
        "trainer/on_policy",
        "trainer/ppo",
        "trainer/poca",
        "trainer/sac",
        "trainer/bc",
        "trainer/impala",
    ),
    "pipeline": (
        "common",
        "control",
        "run_folder",
        "reporting",
        "policies",
        "prediction",
        "web",
        "serving",
        "flow",
        "hosts",
        "roles",
        "main",
        "monitor",
        "parts",
        "command",
        "",
    ),
}
"""Rooms by package, the lowest first; "" holds the modules that stand in the package itself."""


def room_of(name: str, package: str) -> str | None:
    """The room that a module, or a name in one, belongs to; None outside of the package."""
    parts = name.split(".")
    if parts[0] != package:
        return None
    inside = "/".join(parts[1:])
    rooms = [room for room in ROOMS[package] if room and (inside + "/").startswith(room + "/")]
    return max(rooms, key=len, default="")


@pytest.mark.lengthy
@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_the_rooms_listed_before_it(package):
    order = ROOMS[package]
    upward, judged = [], 0
    for path, tree in modules():
        here = room_of(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), package)
        if here is None:
            continue
        for what, line in imports(tree):
            there = room_of(below(what), package)
            judged += there is not None
            if there is not None and order.index(there) > order.index(here):
                upward.append(f"{path}:{line}: {what}")
    print(f"{judged} imports within {package} were judged")
    assert not upward, f"rooms from the lowest to the highest: {', '.join(order)}"
    assert judged > len(modules()) / 2, "the imports within the package were found"


@pytest.mark.parametrize("package", ROOMS)
def test_every_folder_is_a_room_or_lies_in_one(package):
    folders = {path.rpartition("/")[0] for path, _ in modules() if path.startswith(f"{package}/")}
    found = {room_of(folder.replace("/", "."), package) for folder in folders}
    assert found == set(ROOMS[package])


@pytest.mark.lengthy
def test_there_is_no_cycle_of_imports_lazy_ones_included():
    known = {name_of(path) for path, _ in modules()}
    arrows = {
        name_of(path): {target for what, _ in imports(tree) if (target := imported(below(what), known)) is not None}
        for path, tree in modules()
    }
    judged = sum(map(len, arrows.values()))
    print(f"{judged} arrows between {len(known)} modules were judged")
    assert judged > len(known)
    while leaves := {name for name, targets in arrows.items() if not (targets & arrows.keys()) - {name}}:
        arrows = {name: targets for name, targets in arrows.items() if name not in leaves}
    while roots := arrows.keys() - {target for name, targets in arrows.items() for target in targets - {name}}:
        arrows = {name: targets for name, targets in arrows.items() if name not in roots}
    assert not sorted(arrows), "these modules import each other"


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(what: str, known: set[str]) -> str | None:
    """The module that an import reads, which may be what it names or where that stands."""
    return next((name for name in (what, what.rpartition(".")[0]) if name in known), None)


LONGEST = 50
"""Lines of a function, its docstring included; ruff holds its complexity to 15."""

MIRRORED = {"ActionSpec", "BehaviorSpec", "ObservationSpec"}
"""Classes of `stages/environments/unity/specs.py` that scripts know from ML-Agents by these names."""


@pytest.mark.lengthy
def test_no_function_is_too_long():
    functions = ((path, node) for path, tree in modules() for node in ast.walk(tree) if isinstance(node, FUNCTIONS))
    found = [f"{path}:{node.lineno}: {node.name}" for path, node in functions if lines_of(node) > LONGEST]
    assert not found


@pytest.mark.lengthy
def test_no_two_classes_have_one_name():
    names = Counter(node.name for _, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} <= MIRRORED


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.end_lineno - node.lineno + 1


@pytest.mark.lengthy
def test_every_text_file_is_opened_with_its_encoding():
    """ruff sees it where it knows that something is a path, this where something is opened, read or written as one."""
    calls = ((path, node) for path, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = [f"{path}:{call.lineno}" for path, call in calls if opens_text(call)]
    assert not found, "name the encoding: Windows has another default than Linux"


def opens_text(node: ast.Call) -> bool:
    """True for a call that opens, reads or writes a file as text and does not say its encoding (or its format)."""
    if any(keyword.arg in ("encoding", "format") for keyword in node.keywords):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    modes = [word for word in words if isinstance(word, str) and word and set(word) <= set("rwaxbt+")]
    is_text = not any("b" in mode for mode in modes)
    if called in ("read_text", "write_text"):
        return not node.args
    return called in ("open", "fdopen") and bool(modes) and is_text
