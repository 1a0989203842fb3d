"""Finds the objects that the YAML names as `module:attribute`: stages, trainers, networks, environment factories.

A user's modules are next to the YAML, as a script's are next to the script, or else in the working directory, as with
`python -m`. Two rules keep this from affecting other imports:

- The module named in the YAML is looked up in these folders first, except for names of the standard library and of
  modules already imported. It is loaded explicitly, because an installed module may have the same name.
- The folders stay on `sys.path`, so a user's module can import its neighbours later too. They come before installed
  packages, as for a script, but after the standard library, which a folder's `random.py` never replaces.

`find_class`, `check_arguments` and `construct` find users' classes and instantiate them, with error messages that name
the YAML's key.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import site
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.config.errors import suggest
from headrace.paths import ROOT
from headrace.stages.errors import LoadError, StageError, describe_error, describe_fault, error_summary, is_failure
from headrace.stages.user_calls import call_user, calls_user
from headrace.startup_context import startup_context

_INSTALLED = (*site.getsitepackages(), site.getusersitepackages())
_OWN_MARK = "__headrace_own__"
"""Attribute that marks modules loaded from a folder and holds their file. Another YAML's modules may replace them."""
_NAMES_SHOWN = 12


def load_attribute(what: str, folder: Path | None, kind: str) -> Any:
    """Import the object referred to by `module:attribute`.

    Args:
        what: `module:attribute`; both parts may contain dots (`my_package.stages:Filters.Short`).
        folder: the YAML's folder; its modules are importable, and those in the working directory too. None allows only
            installed modules.
        kind: the object's role, for messages: `stage`, `trainer`, `environment factory`.

    Raises:
        LoadError: if `what` does not have that form, the module can't be found or raises during its import, or has no
            such attribute.
    """
    module_name, _, path = what.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise LoadError(
            f"{kind} {what!r}: expected module:attribute, such as my_module:MyClass or my_package.module:MyClass"
        )
    subject = f"{kind} {what!r}"
    return _follow(import_module(module_name, folder, subject), path, folder, subject)


def load_callable(what: str, folder: Path | None, kind: str, expected: str) -> Callable[..., Any]:
    """Import a callable as `load_attribute` does.

    Raises:
        LoadError: as for `load_attribute`, or if the object is not callable, in which case the message states what was
            `expected`.
    """
    attribute = load_attribute(what, folder, kind)
    if not callable(attribute):
        raise LoadError(f"{kind} {what!r}: expected {expected}, got {attribute!r}")
    checked: Callable[..., Any] = attribute
    return checked


def load_plugin(group: str, name: str) -> Any:
    """Import the object that an installed package provides under a short name.

    Args:
        group: the entry-point group, such as `headrace.stages`.
        name: the entry point's name.

    Raises:
        LoadError: if no package provides the name, several provide different objects, or the import fails.
    """
    subject = f"{name!r} (entry-point group {group!r})"
    offered = metadata.entry_points(group=group)
    objects = {(point.module, point.attr) for point in offered if point.name == name}
    if not objects:
        names = {point.name for point in offered}
        raise LoadError(
            f"{subject}: no installed package provides it; to name a class in a module, write "
            f"module:Class{_suggestion(name, names, 'offered')}"
        )
    if len(objects) > 1:
        places = ", ".join(sorted(f"{module}:{attr}" for module, attr in objects))
        raise LoadError(
            f"{subject}: several installed packages provide different objects with this name ({places}); name one of "
            "them"
        )
    module_name, path = objects.pop()
    return _follow(import_module(module_name, None, subject), path, None, subject)


@calls_user
def import_module(name: str, folder: Path | None, subject: str) -> ModuleType:
    """Import a module from the YAML's folder, else from the working directory, else from installed packages.

    Args:
        name: the module's name, with dots for a module inside a package.
        folder: the YAML's folder; None to import only installed modules.
        subject: role and name of the object to import; error messages begin with it.

    Raises:
        LoadError: if the module can't be found, or raises during its import.
    """
    folders = users_folders(folder)
    try:
        _import_own(folders, name.partition(".")[0])
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise LoadError(f"{subject}: {_not_found(error.name, folders)}") from error
        remedy = '; run `pip install "headrace[train]"`' if error.name == "torch" else ""
        raise LoadError(f"{subject}: importing {name!r} raised {describe_fault(error)}{remedy}") from error
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit
        raise LoadError(f"{subject}: importing {name!r} raised {describe_fault(error)}") from error


def users_folders(folder: Path | None) -> list[Path]:
    """Return the folders that hold a user's modules, in search order: the YAML's, then the working directory."""
    if folder is None:
        return []
    began = startup_context().folder  # empty if the folder was removed
    return list(dict.fromkeys([folder.resolve(), *([Path(began)] if began else [])]))


def _import_own(folders: Sequence[Path], top: str) -> None:
    """Import a top-level module from the first folder that has it into `sys.modules`, unless its name is taken."""
    _add_to_path([str(folder) for folder in folders if str(folder) not in sys.path])
    importlib.invalidate_caches()  # a folder's files may be newer than Python's import caches
    spec = _spec_in(folders, top)
    if spec is None or spec.loader is None or top == "headrace" or top in sys.stdlib_module_names:
        return
    loaded = sys.modules.get(top)
    if loaded is not None:
        if getattr(loaded, _OWN_MARK, spec.origin) == spec.origin:
            return
        for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
            del sys.modules[name]  # it is another YAML's module of the same name
    module = importlib.util.module_from_spec(spec)
    setattr(module, _OWN_MARK, spec.origin)
    sys.modules[top] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(top, None)
        raise


def _add_to_path(folders: Sequence[str]) -> None:
    """Add folders to `sys.path` before installed packages.

    Headrace's own checkout goes last, so it hides no other module.
    """
    ours = [path for path in [*sys.path, *folders] if path not in _INSTALLED and _is_root(path)]
    others = [path for path in sys.path if path not in ours]
    at = next((index for index, path in enumerate(others) if path in _INSTALLED), len(others))
    sys.path[:] = [*others[:at], *(folder for folder in folders if folder not in ours), *others[at:], *ours]


def _is_root(path: str) -> bool:
    try:
        return os.path.samefile(path or os.curdir, ROOT)
    except OSError:  # the folder does not exist, or the working directory was removed
        return False


def _spec_in(folders: Sequence[Path], top: str) -> ModuleSpec | None:
    """Return the first module or package with this name in the folders; packages need an `__init__.py`."""
    spec = PathFinder.find_spec(top, [str(folder) for folder in folders])
    return spec if spec is not None and spec.origin is not None else None


def _follow(module: ModuleType, path: str, folder: Path | None, subject: str) -> Any:
    attribute: Any = module
    so_far = f"module {module.__name__!r} ({getattr(module, '__file__', None) or 'built in'})"
    for part in filter(None, path.split(".")):
        try:
            attribute = getattr(attribute, part)
        except AttributeError as error:
            hint = _suggestion(part, _public_names(attribute), "it has") + _hidden(module, folder)
            raise LoadError(f"{subject}: {so_far} has no attribute {part!r}{hint}") from error
        except Exception as error:  # a lazy module imports its attributes only at this point
            raise LoadError(f"{subject}: {part!r} of {so_far} raised {error_summary(error)}") from error
        so_far = f"{part!r} there"
    return attribute


def _public_names(owner: Any) -> list[str]:
    names = list(getattr(owner, "__all__", None) or [name for name in dir(owner) if not name.startswith("_")])
    if not isinstance(owner, ModuleType):
        return names
    # Users more likely mean names defined in a module than names it imports.
    attributes = vars(owner)  # not with getattr, which would make a lazy module import everything
    defined_here = [name for name in names if getattr(attributes.get(name), "__module__", None) == owner.__name__]
    return defined_here or names


def _hidden(module: ModuleType, folder: Path | None) -> str:
    """Return a note for messages if the user's file was skipped because its name is taken."""
    spec = _spec_in(users_folders(folder), module.__name__.partition(".")[0])
    top = sys.modules.get(module.__name__.partition(".")[0])
    if spec is None or spec.origin is None or spec.origin == getattr(top, "__file__", None):
        return ""
    return f"; {spec.origin} was not used, because another module has the same name: rename it"


def _suggestion(name: str, names: Iterable[str], introduction: str) -> str:
    names = sorted(set(names))
    if close := suggest(name, names):
        return close
    if not names:
        return ""
    return f"; {introduction}: {', '.join(names[:_NAMES_SHOWN])}{', …' if len(names) > _NAMES_SHOWN else ''}"


def _not_found(name: str, folders: Sequence[Path]) -> str:
    if not folders:
        return f"no module named {name!r} is installed"
    neighbours: list[Path] = []
    for folder in folders:
        with suppress(OSError):  # the folder can't be read
            neighbours += folder.iterdir()
    modules = {path.stem for path in neighbours if path.suffix == ".py" or (path / "__init__.py").exists()}
    hint = _suggestion(name, modules, "modules in that place")
    return f"no module named {name!r} is in {' or '.join(map(str, folders))} or installed{hint}"


def find_class(where: str, use: str, folder: Path | None, group: str | None = None) -> type[Any]:
    """Import the class that a `use:` key refers to.

    Args:
        where: the key in the YAML, for the beginning of messages.
        use: `module:Class`, or the name of an entry point.
        folder: the YAML's folder, whose modules are importable.
        group: the entry-point group for names without a colon.

    Raises:
        LoadError: if the object can't be imported or is not a class.
    """
    if group is None or ":" in use:
        attribute = load_attribute(use, folder, where)
    else:
        try:
            attribute = load_plugin(group, use)
        except LoadError as error:
            raise LoadError(f"{where}: {error}") from error
    if not isinstance(attribute, type):
        raise LoadError(f"{where}: {use}: expected a class, got {attribute!r}")
    return attribute


def check_arguments(
    where: str,
    use: str,
    called: Callable[..., Any],
    configured: Mapping[str, Any],
    offered: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for a call: the configured ones, and any offered ones that match a parameter name.

    Raises:
        LoadError: if the call does not accept the configured arguments, or requires more.
    """
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some classes written in C have no signature
        return dict(configured)
    arguments = {
        **{name: value for name, value in (offered or {}).items() if name in signature.parameters},
        **configured,
    }
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise LoadError(
            f"{where}: {use} does not accept {dict(configured)}: {error}; its parameters are ({_parameters(signature)})"
        ) from error
    return arguments


def construct(where: str, use: str, called: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Instantiate a class.

    Raises:
        LoadError: if the constructor raises.
    """
    try:
        return call_user(called, **arguments)
    except StageError as error:
        raise LoadError(f"{where}: {error}") from error
    except BaseException as error:
        if not is_failure(error):
            raise
        raise LoadError(f"{where}: creating {use} raised {describe_error(error)}") from error


def _parameters(signature: inspect.Signature) -> str:
    """Format parameter names and defaults as in a call, without annotations."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return ", ".join(map(str, bare))
