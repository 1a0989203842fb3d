"""The rules that imports keep, read off the source: which way they point, and what may be imported where."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from headrace.place import PARTS

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (*PARTS, "headrace")
"""Folders, each of which may import those before it; all but the last are packages below `headrace`."""

LOWEST = {"ending", "forks", "place", "process_tree", "surroundings", "win32"}
"""Modules below all layers, which import none of them: processes that have imported nothing else yet need them."""

CAN_RUN_CODE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "_pickle", "shelve"}
"""Readers of formats that can run code while they are read."""
UNPICKLES = "stages/environments/given.py"
"""The one module with such a reader: of what a process of ours has sent to a child of its own, as it started it."""

HEAVY = {"torch", "grpc", "gymnasium", "mujoco", "onnx", "onnxruntime", "ray", "tensorboard"}
"""Slow to import: at module level only where a module can't be without it."""
HEAVY_ALLOWED = {
    "gymnasium": (
        "stages/environments/checks.py",
        "stages/environments/gymnasium/checked_vector.py",
        "stages/environments/gymnasium/group.py",
        "stages/environments/gymnasium/in_turn.py",
        "stages/environments/gymnasium/single.py",
        "stages/environments/pettingzoo/behavior_spaces.py",
        "stages/environments/gymnasium/advice.py",
        "stages/environments/gymnasium/vectorising.py",
        "stages/environments/godot/environment.py",
        "stages/environments/godot/gymnasium_spaces.py",
        "stages/environments/unity/wrappers/",
    ),
    "grpc": ("stages/environments/unity/server.py", "pipeline/serving/grpc_server.py"),
    "ray": ("pipeline/hosts/ray/",),
    "torch": (
        "stages/policy/network/",
        "stages/policy/onnx/actor.py",
        "stages/policy/onnx/layers.py",
        "stages/trainer/adam.py",
        "stages/trainer/bc/trainer.py",
        "stages/trainer/gradients.py",
        "stages/trainer/imitation/cloning.py",
        "stages/trainer/intake.py",
        "stages/trainer/impala/",
        "stages/trainer/joined_replicas.py",
        "stages/trainer/on_policy/",
        "stages/trainer/poca/",
        "stages/trainer/ppo/",
        "stages/trainer/rewards/",
        "stages/trainer/sac/",
    ),
}


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
def imports(tree: ast.Module, *, executed_at_once: bool = False) -> Sequence[tuple[str, int]]:
    """Find what a module imports, with dots, and in which line.

    Args:
        tree: the module.
        executed_at_once: without what is imported inside functions, or only for type checkers.
    """
    return list(_imports(tree, executed_at_once))


def _imports(tree: ast.Module, executed_at_once: bool) -> Iterator[tuple[str, int]]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{'.' * node.level}{node.module or ''}.{alias.name}", node.lineno) for alias in node.names)
        if executed_at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if executed_at_once and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)


def top(name: str) -> str:
    return name.partition(".")[0]


def below(name: str) -> str:
    """What a name of ours is below `headrace`, with the folder first; empty for others, and for what lies below all."""
    first, _, rest = name.partition(".")
    if first != "headrace" or top(rest) in LOWEST:
        return ""
    return rest if top(rest) in PARTS else name


@pytest.mark.lengthy
def test_every_layer_is_looked_at():
    assert {top(path.replace("/", ".")) for path, _ in modules()} == set(LAYERS)


OUTSIDE = {"tests", "benchmarks", "examples"}


@pytest.mark.lengthy
def test_imports_point_one_way():
    upward, judged = [], 0
    for path, tree in modules():
        layer = LAYERS.index(path.partition("/")[0])
        for what, line in imports(tree):
            judged += bool(below(what))
            if top(what) in OUTSIDE or top(below(what)) in LAYERS[layer + 1 :]:
                upward.append(f"{path}:{line}: {what}")
    assert not upward, f"a package may import those before it: {', '.join(LAYERS)}"
    assert judged > len(modules()), "imports of ours were looked at"


def test_our_packages_are_imported_by_one_name():
    """A folder on `sys.path` may be anybody's: `config` is the user's, and ours is `headrace.config`."""
    bare = [
        f"{path}:{line}: {what}" for path, tree in modules() for what, line in imports(tree) if top(what) in LAYERS[:-1]
    ]
    assert not bare


def test_imports_are_absolute():
    assert not [f"{path}:{line}" for path, tree in modules() for what, line in imports(tree) if what.startswith(".")]


def test_nothing_that_can_unpickle_is_imported():
    found = [
        f"{path}:{line}: {what}"
        for path, tree in modules()
        for what, line in imports(tree)
        if top(what) in CAN_RUN_CODE and path != UNPICKLES
    ]
    assert not found, "files and messages are data: reading them must not be able to run code"


@pytest.mark.lengthy
def test_neither_numpy_nor_torch_may_unpickle():
    found = []
    for path, tree in modules():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            by_torch = ast.unparse(call.func) == "torch.load" and options.get("weights_only") != "True"
            if by_torch or options.get("allow_pickle", "False") != "False":
                found.append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    assert not found, "torch.load wants weights_only=True, and NumPy must not be allowed to unpickle"


@pytest.mark.lengthy
def test_heavy_packages_are_imported_where_they_are_used():
    found = [
        f"{path}:{line}: {what}"
        for path, tree in modules()
        for what, line in imports(tree, executed_at_once=True)
        if top(what) in HEAVY and not path.startswith(HEAVY_ALLOWED.get(top(what), ()))
    ]
    assert not found, "import it in the function that needs it, or say in this test that the module can't be without it"


def test_stages_do_not_know_each_others_insides():
    """What two stages share is a message, a protocol, the policy, brains that act in its place, or engines' formats.

    Only the actor and the exhibition, which join stages, and the built-in games, which are environments, know more.
    """
    folders = {folder.name for folder in (ROOT / "stages").iterdir() if folder.is_dir()}
    shared = ("protocol", "programs", "unity", "godot", "open_protocol")
    found = []
    for path, tree in modules():
        layer, here, *inside = path.split("/")
        if layer != "stages" or not inside or here in ("actor", "exhibition", "games"):
            continue
        strange = folders - {here, "policy", "brains"}
        found += [
            f"{path}:{line}: {what}"
            for what, line in imports(tree)
            if (names := below(what).split("."))[0] == "stages" and names[1] in strange and names[2] not in shared
        ]
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


PLAIN_RUN = """
import sys
from headrace.config import RunConfig
from headrace.pipeline.run import run
from run_configs import INLINE, cartpole

first = {}


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("grpc", "google.protobuf", "sympy", "aiohttp", "prometheus_client"):
            frame = sys._getframe(1)
            while frame.f_globals["__name__"].partition(".")[0] in ("importlib", "google"):
                frame = frame.f_back
            first[name] = frame.f_globals["__name__"]


sys.meta_path.insert(0, Watch())
plain = cartpole(**INLINE, behaviors__CartPole__max_steps=600)
run(RunConfig.from_plain({**plain, "checkpoint_settings": {"results_dir": sys.argv[1], "run_id": "run"}}))
print(first)
"""


@pytest.mark.lengthy
def test_a_run_without_unity_imports_no_grpc_nor_sympy_and_protobuf_for_its_files_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_RUN, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    importers = ast.literal_eval(done.stdout.splitlines()[-1])
    assert not importers.keys() & {"grpc", "aiohttp", "prometheus_client"}
    assert "sympy" not in importers, "torch imports it at the first use of what needs it"
    assert importers["google.protobuf"].startswith(("tensorboard.", "headrace.stages.policy.onnx.")), importers


def imported_by(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_command_imports_next_to_nothing_before_the_first_learner_is_started():
    late = {"argparse", "asyncio", "headrace.config", "headrace.queues", "numpy", "pydantic", "yaml"}
    assert not imported_by("headrace.pipeline.cli") & late
