"""Configurations that are given as data, from a script or notebook: what YAML would hold, and some conveniences."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError, KeyPath, Mistake, dotted


def plain(value: object, path: KeyPath = ()) -> Any:
    """Return data as YAML has it: tuples become lists, paths text, NumPy's numbers numbers, classes `module:Class`.

    Raises:
        ConfigError: if there is an object that can't be written down.
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
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return _named(value, path)
    expected = "what YAML can hold: maps, lists, texts, numbers, true, false or null"
    if hasattr(value, "reset") and hasattr(value, "step"):
        expected = "the class or a function that makes it, as the run makes its environments itself"
    raise _refused(path, f"holds {value!r}; expected {expected}")


def _key(key: object, path: KeyPath) -> str:
    if not isinstance(key, str):
        raise _refused(path, f"has the key {key!r}; expected text")
    return key


def _named(value: Any, path: KeyPath) -> str:
    """Name a class or function, so that other processes can import it."""
    module, name = value.__module__, value.__qualname__
    if module == "__main__":
        module = main_module()
    if "<" in name or not module:
        meant = "make_env" if value.__name__ == "<lambda>" else value.__name__
        raise _refused(
            path,
            f"is {value.__qualname__}, which other processes can't import; put it at the top of a module, such as "
            f"my_env.py (in a notebook: %%writefile my_env.py), and write 'my_env:{meant}'",
        )
    return f"{module}:{name}"


def main_module() -> str:
    """The name by which other processes find the main module: a script is a module beside it; empty in a notebook."""
    main = sys.modules["__main__"]
    if spec := getattr(main, "__spec__", None):  # of `python -m package.module`
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else ""


def _refused(path: KeyPath, message: str) -> ConfigError:
    return ConfigError([Mistake("", None, dotted(path), message)])
