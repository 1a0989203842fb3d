"""The type of the tables of kinds, one for each seam: a module outside of Headrace may add entries of its own.

The run's other processes import the modules that have, before they read the configuration. An installed package names
such a module in the entry-point group `headrace.plugins`, and it is imported when a table lacks a name.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

PLUGINS = "headrace.plugins"
"""Group of entry points whose values are modules."""
_Entry = TypeVar("_Entry")
_adders: dict[str, None] = {}


class Table(dict[str, _Entry]):
    """Entries by name."""

    def __setitem__(self, name: str, entry: _Entry) -> None:
        """Add an entry, and remember the module that does."""
        _adders[sys._getframe(1).f_globals["__name__"]] = None
        super().__setitem__(name, entry)

    def __contains__(self, name: object) -> bool:
        """Return True if there is such an entry, in an installed package's module if in no other."""
        return super().__contains__(name) or (_is_name(name) and _import_plugins() and super().__contains__(name))

    def get(self, name: str, default: Any = None) -> _Entry | Any:
        """Return the entry of this name, or the default."""
        return super().get(name, default) if name in self else default


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()  # not `module:Class`, which is found without a table


@functools.cache
def _import_plugins() -> bool:
    for point in metadata.entry_points(group=PLUGINS):
        point.load()
    return True


def plugin_modules() -> list[str]:
    """The modules that have added entries, for `import_plugins` in another process; a script has its file's name."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    names = [Path(file).stem if name == "__main__" and file else name for name in _adders]
    return [name for name in names if name.partition(".")[0] != "headrace"]


def import_plugins(modules: Sequence[str]) -> None:
    """Import modules that have added entries in another process; in that process itself they are there."""
    for module in modules:
        if module not in plugin_modules():
            importlib.import_module(module)
