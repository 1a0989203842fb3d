"""Converts data from scripts and notebooks to YAML's types. `run({...})` accepts this data in place of a file."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.config.errors import ConfigError, KeyPath, nowhere
from headrace.config.tables import main_module

_GIVEN = "or pass it to run(…, environment=…)"


def plain(value: object, path: KeyPath = ()) -> Any:
    """Return data in YAML's types.

    Tuples become lists, paths become strings, NumPy's numbers become Python numbers, and classes become `module:Class`.

    Raises:
        ConfigError: if the data contains an object that YAML can't represent.
    """
    if isinstance(value, Mapping):
        return {_key(key, path): plain(inner, (*path, str(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, (*path, number)) for number, inner in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, PathLike):
        return str(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    is_environment = hasattr(value, "reset") and hasattr(value, "step") and not isinstance(value, type)
    if callable(value) and not is_environment:
        return named(value, path)
    expected = "a value that YAML can hold: map, list, string, number, true, false or null"
    if is_environment:
        expected = (
            "the class, or a function that makes the environment, because the run makes its environments itself; "
            f"{_GIVEN}"
        )
    raise _refused(path, f"contains {value!r}; expected {expected}")


def parse_json(text: str | bytes) -> Any:
    """Parse a file's JSON.

    Raises:
        ValueError: if it is not JSON, nests too deeply, or contains NaN or infinity, which Python would accept.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its lists or maps nest too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it contains {name}, which is not a number")


def _key(key: object, path: KeyPath) -> str:
    if not isinstance(key, str):
        raise _refused(path, f"has the key {key!r}; expected text")
    return key


def named(value: Any, path: KeyPath) -> str:
    """Return the name that other processes use to import a class or function; raise an error for other callables."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if module == "__main__":
        if _is_guarded(name):
            raise _refused(path, _not_importable(value, name, ", defined below `if __name__ == '__main__':`"))
        module = main_module()
    bound = getattr(value, "__self__", None)
    importable = name and module and "<" not in name and (bound is None or isinstance(bound, type | ModuleType))
    if not importable:
        given = f"; {_GIVEN}" if path == ("environment", "factory") else ""
        raise _refused(path, f"{_not_importable(value, name)}{given}")
    return f"{module}:{name}"


_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_guarded(name: str) -> bool:
    """Return True if the script defines a name only when it is run, not when it is imported."""
    try:
        tree = ast.parse(Path(sys.modules["__main__"].__file__ or "").read_bytes())
    except (AttributeError, OSError, SyntaxError, ValueError):  # in a notebook or an interpreter
        return False
    guards = [
        statement
        for statement in tree.body
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
    ]
    guarded = {statement.name for guard in guards for statement in guard.body if isinstance(statement, _DEFINES)}
    return name in guarded - {statement.name for statement in tree.body if isinstance(statement, _DEFINES)}


def _not_importable(value: Any, name: str, where: str = "") -> str:
    """Describe a callable that can't be used, with an alternative."""
    meant = name.rpartition(".")[2]
    return (
        f"is {value!r}{where}, which other processes can't import; expected a class or function at the top level of a "
        "module, such as my_env.py (in a notebook: %%writefile my_env.py), and its name, "
        f"'my_env:{meant if meant.isidentifier() else 'make_env'}'; arguments of an environment's factory go under "
        "'options'"
    )


def _refused(path: KeyPath, message: str) -> ConfigError:
    return ConfigError([nowhere(path, message)])
