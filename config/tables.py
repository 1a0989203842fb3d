"""The class of the tables of kinds. Each extension point has a table, which modules outside Headrace can extend.

The run's other processes import these modules before they read the configuration. A YAML lists its modules under
`plugins`. An installed package lists its module in the entry-point group `headrace.plugins`; Headrace imports that
module when a name is missing from a table.
"""

from __future__ import annotations

import functools
import importlib
import os
import site
import sys
from collections import UserDict
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from headrace.config.errors import ConfigError, Locate, nowhere

_GROUP = "headrace.plugins"
_Entry = TypeVar("_Entry")
_adders: dict[str, None] = {}


# Entries refer to their code by strings, so importing a table imports no kind's code (docs/decisions/002).
class Table(UserDict[str, _Entry]):
    """A table's entries by name."""

    def __setitem__(self, name: str, entry: _Entry) -> None:
        """Add an entry, and remember the module that added it."""
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals["__name__"].startswith("collections"):  # such as `update`
            frame = frame.f_back
        _adders[frame.f_globals["__name__"]] = None
        super().__setitem__(name, entry)

    def __missing__(self, name: str) -> _Entry:
        """Look for an entry in installed packages."""
        if name in self:
            return self.data[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        """Return True if there is an entry with this name, possibly in an installed package."""
        if name in self.data:
            return True
        is_word = isinstance(name, str) and name.isidentifier()  # unlike `module:Class`, which needs no table
        return is_word and _import_plugins() and name in self.data


@functools.cache
def _import_plugins() -> bool:
    for point in metadata.entry_points(group=_GROUP):
        _import(point.module, f"{point.name!r} of the installed package {point.dist and point.dist.name}")
    return True


def plugin_modules() -> list[str]:
    """Return the names of the modules that have added entries, for `import_plugins` in another process."""
    names = [main_module() if name == "__main__" else name for name in _adders]
    return [name for name in names if name.partition(".")[0] != "headrace"]


def main_module() -> str:
    """Return the name that other processes can use to import the main module; empty in a notebook."""
    main = sys.modules["__main__"]
    if spec := getattr(main, "__spec__", None):  # set by `python -m package.module`
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else ""


def import_plugins(modules: Sequence[str]) -> None:
    """Import the modules that added entries in another process, to give this process the same entries.

    Raises:
        ConfigError: if a module can't be imported here.
    """
    for module in modules:
        if module not in plugin_modules():
            _import(module, f"{module}, which adds kinds to tables")


def import_listed(modules: Sequence[str], folder: Path, locate: Locate) -> None:
    """Import the modules that a YAML lists under `plugins`.

    Args:
        modules: the modules' names.
        folder: the YAML's folder, where modules are looked up first, then in the working directory.
        locate: finds the line of a key in the YAML.

    Raises:
        ConfigError: if a module can't be imported; the message names its key.
    """
    installed = (*site.getsitepackages(), site.getusersitepackages())
    for directory in (str(folder.resolve()), os.getcwd()):
        if directory not in sys.path:  # before installed packages, as for a script; other processes get the same path
            position = next((index for index, path in enumerate(sys.path) if path in installed), len(sys.path))
            sys.path.insert(position, directory)
    importlib.invalidate_caches()
    for number, module in enumerate(modules):
        try:
            importlib.import_module(module)
        except BaseException as error:  # as in `_import`
            message = f"importing {module!r} raised {type(error).__name__}: {error}"
            raise ConfigError([locate(("plugins", number), message)]) from error


def _import(module: str, what: str) -> None:
    if not module:
        raise _refusal(
            "a notebook, or code without a file, added kinds to tables, but other processes can't import such code: "
            "add the kinds in a module (in a notebook: %%writefile my_kinds.py) and import that module"
        )
    try:
        importlib.import_module(module)
    except BaseException as error:  # a module that calls `sys.exit` must not end the command
        raise _refusal(f"{what}: {type(error).__name__}: {error}") from error


def _refusal(message: str) -> ConfigError:
    return ConfigError([nowhere((), message)])
