"""The structure of the house, read off the source.

Imports point one way, rooms keep an order, and nothing imports in a circle. What may be imported where is in tables.
Names of classes are unique. A room imports only itself and the rooms listed before it.
"""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from headrace.paths import PARTS

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (*PARTS, "headrace")
"""Folders, each of which may import those before it; all but the last are packages below `headrace`."""

LOWEST = {"paths", "process_tree", "startup_context", "stop_requests", "win32"}
"""Modules below all layers, which import none of them: processes that have imported nothing else yet need them."""

KEPT = (ast.Import, ast.ImportFrom, ast.Call, ast.ClassDef)
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


CAN_RUN_CODE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "_pickle", "shelve"}
"""Readers of formats that can run code while they are read."""
UNPICKLES = "stages/environments/given.py"
"""The one module with such a reader: of what a process of ours has sent to a child of its own, as it started it."""

HEAVY = {"torch", "grpc", "gymnasium", "mujoco", "onnx", "onnxruntime", "ray", "tensorboard"}
"""Slow to import: at module level only where a module can't be without it."""
HEAVY_ALLOWED = {
    "gymnasium": (
        "pipeline/diagnosis/probes.py",
        "stages/environments/checks.py",
        "stages/environments/gymnasium/group.py",
        "stages/environments/gymnasium/singles.py",
        "stages/environments/pettingzoo/group.py",
        "stages/environments/engines/godot/environment.py",
        "stages/environments/engines/unity/wrappers/",
    ),
    "grpc": ("stages/environments/engines/unity/exchange.py", "pipeline/serving/kserve_grpc.py"),
    "onnx": ("stages/policy/onnx/export.py",),
    "ray": ("pipeline/hosts/ray/",),
    "torch": (
        "stages/policy/network/",
        "stages/policy/onnx/actor.py",
        "stages/policy/onnx/export.py",
        "stages/policy/onnx/model.py",
        "stages/trainer/adam.py",
        "stages/trainer/bc.py",
        "stages/trainer/fast/",
        "stages/trainer/imitation/cloning.py",
        "stages/trainer/intake.py",
        "stages/trainer/impala.py",
        "stages/trainer/joined_replicas.py",
        "stages/trainer/on_policy/",
        "stages/trainer/poca.py",
        "stages/trainer/ppo.py",
        "stages/trainer/replay/",
        "stages/trainer/rewards/",
        "stages/trainer/sac.py",
    ),
}


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
        "environments/engines",
        "environments/engines/unity",
        "environments/engines/godot",
        "environments/engines/open_protocol",
        "environments/low_level",
        "inference",
        "games",
        "agent",
        "evaluation",
        "actor",
        "ghost",
        "league",
        "replay",
        "exhibition",
        "trainer",
        "trainer/imitation",
        "trainer/rewards",
        "trainer/on_policy",
        "trainer/ppo",
        "trainer/poca",
        "trainer/replay",
        "trainer/impala",
        "trainer/sac",
        "trainer/bc",
        "trainer/fast",
        "trainer/factory",
    ),
    "pipeline": (
        "common",
        "control",
        "run_folder",
        "reporting",
        "diagnosis",
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
        "diagnosis/report",
        "command",
        "",
        "diagnosis/probes",  # makes a whole run
    ),
}
"""Rooms by package, the lowest first; "" holds the modules that stand in the package itself."""


OUTSIDE = {"tests", "benchmarks", "examples"}


@pytest.mark.lengthy
def test_imports_point_one_way():
    upward, judged = [], 0
    for path, what, line in imports():
        layer = LAYERS.index(path.partition("/")[0])
        judged += bool(below(what))
        if top(what) in OUTSIDE or top(below(what)) in LAYERS[layer + 1 :]:
            upward.append(f"{path}:{line}: {what}")
    assert not upward, f"a package may import those before it: {', '.join(LAYERS)}"
    assert judged > len(modules()), "imports of ours were looked at"


def test_our_packages_are_imported_by_one_name():
    """A folder on `sys.path` can belong to the user: `config` is the user's, and Headrace's is `headrace.config`."""
    assert not [f"{path}:{line}: {what}" for path, what, line in imports() if top(what) in LAYERS[:-1]]


def test_imports_are_absolute():
    assert not [f"{path}:{line}" for path, what, line in imports() if what.startswith(".")]


def test_nothing_that_can_unpickle_is_imported():
    found = [
        f"{path}:{line}: {what}" for path, what, line in imports() if top(what) in CAN_RUN_CODE and path != UNPICKLES
    ]
    assert not found, "files and messages are data: reading them must not be able to run code"


@pytest.mark.lengthy
def test_numpy_and_torch_must_not_unpickle():
    found = []
    for path, call in nodes(ast.Call):
        options = {keyword.arg: keyword.value for keyword in call.keywords}
        loads = isinstance(call.func, ast.Attribute) and call.func.attr == "load"
        by_torch = (
            loads and ast.unparse(call.func) == "torch.load" and not is_constant(options.get("weights_only"), True)
        )
        if by_torch or ("allow_pickle" in options and not is_constant(options["allow_pickle"], False)):
            found.append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    assert not found, "torch.load wants weights_only=True, and NumPy must not be allowed to unpickle"


def is_constant(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.lengthy
def test_heavy_packages_are_imported_where_they_are_used():
    found = [
        f"{path}:{line}: {what}"
        for path, what, line in imports(executed_at_once=True)
        if top(what) in HEAVY and not path.startswith(HEAVY_ALLOWED.get(top(what), ()))
    ]
    assert not found, "import it in the function that needs it, or say in this test that the module can't be without it"


def test_stages_do_not_know_each_others_insides():
    """What two stages share is a message, a protocol, the policy, brains that act in its place, or engines' formats.

    Only the actor and the exhibition, which join stages, and the built-in games, which are environments, know more.
    """
    folders = {folder.name for folder in (ROOT / "stages").iterdir() if folder.is_dir()}
    shared = ("protocol", "engines")
    found = []
    for path, what, line in imports():
        layer, here, *inside = path.split("/")
        if layer != "stages" or not inside or here in ("actor", "exhibition", "games"):
            continue
        names, strange = below(what).split("."), folders - {here, "policy", "brains"}
        if names[0] == "stages" and names[1] in strange and names[2] not in shared:
            found.append(f"{path}:{line}: {what}")
    assert not found


def test_packages_only_hand_on_names():
    """An `__init__.py` does nothing but import, and offers exactly what it imports; `headrace`'s imports late."""
    for path, tree in modules():
        if path.endswith("/__init__.py") and not path.startswith("headrace/"):
            given, offered = _handed_on(path, tree)
            assert given == offered, path


def _handed_on(path: str, tree: ast.Module) -> tuple[set[str], set[str]]:
    given: set[str] = set()
    offered: set[str] = set()
    for node in tree.body:
        match node:
            case ast.Expr(ast.Constant(str())) | ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom(names=names):
                given |= {alias.asname or alias.name for alias in names}
            case ast.Assign([ast.Name("__all__")], value):
                offered = set(ast.literal_eval(value))
            case ast.If(ast.Compare(ast.Name("__name__")), [ast.Raise()]):  # who imports it by another name
                pass
            case _:
                raise AssertionError(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return given, offered


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
    for path, what, line in imports():
        there = room_of(below(what), package)
        here = None if there is None else room_of(name_of(path), package)
        judged += here is not None
        if here is not None and order.index(there) > order.index(here):
            upward.append(f"{path}:{line}: {what}")
    assert not upward, f"rooms from the lowest to the highest: {', '.join(order)}"
    assert judged > len(modules()) / 2, "the imports within the package were found"


@pytest.mark.parametrize("package", ROOMS)
def test_every_module_is_a_room_or_is_in_one(package):
    found = {room_of(name_of(path), package) for path, _ in modules() if path.startswith(f"{package}/")}
    assert found == set(ROOMS[package])


@pytest.mark.lengthy
def test_the_import_graph_has_no_cycles_lazy_imports_included():
    known = {name_of(path) for path, _ in modules()}
    arrows: dict[str, set[str]] = {name: set() for name in known}
    for path, what, _ in imports():
        if (target := imported(below(what), known)) is not None:
            arrows[name_of(path)].add(target)
    judged = sum(map(len, arrows.values()))
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


"""Lines of a function, its docstring included; ruff holds its complexity to 15."""

MIRRORED = {"ActionSpec", "BehaviorSpec", "ObservationSpec"}
"""Classes of `stages/environments/engines/unity/specs.py` that scripts know from ML-Agents by these names."""
OF_TWO_CHECKS = {"Finding"}
"""What a check finds: in the configuration (`config/errors.py`), or in a run (`pipeline/diagnosis/rules.py`)."""


@pytest.mark.lengthy
def test_no_two_classes_have_one_name():
    names = Counter(node.name for _, node in nodes(ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} <= MIRRORED | OF_TWO_CHECKS


@pytest.mark.lengthy
def test_every_text_file_is_opened_with_its_encoding():
    """ruff sees it where it knows that something is a path, this where something is opened, read or written as one."""
    found = [f"{path}:{call.lineno}" for path, call in nodes(ast.Call) if opens_text(call)]
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
