"""Classes of the user's that the YAML names, and objects of them; messages name the key of the YAML."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.stages.error_text import describe_error
from headrace.stages.errors import LoadError, StageError, is_failure
from headrace.stages.loading import load_attribute, load_plugin


def find_class(where: str, use: str, folder: Path | None, group: str | None = None) -> type[Any]:
    """Import the class that `use:` names.

    Args:
        where: the key in the YAML, the beginning of messages.
        use: `module:Class`, or the name of an entry point.
        folder: where the YAML lies, whose modules are importable.
        group: the entry-point group that names without a colon are looked up in.

    Raises:
        LoadError: if it can't be imported or is no class.
    """
    if group is None or ":" in use:
        found = load_attribute(use, folder, where)
    else:
        try:
            found = load_plugin(group, use)
        except LoadError as error:
            raise LoadError(f"{where}: {error}") from error
    if not isinstance(found, type):
        raise LoadError(f"{where}: {use} is not a class, got {found!r}")
    return found


def check_arguments(
    where: str,
    use: str,
    made: Callable[..., Any],
    given: Mapping[str, Any],
    offered: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The keyword arguments of a call: those given, and those offered that are parameters by name.

    Raises:
        LoadError: if the given ones are not accepted, or do not suffice.
    """
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):  # some classes written in C have none
        return dict(given)
    arguments = {
        **{name: value for name, value in (offered or {}).items() if name in signature.parameters},
        **given,
    }
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise LoadError(
            f"{where}: {use} does not take {dict(given)}: {error}; it takes ({_parameters(signature)})"
        ) from error
    return arguments


def construct(where: str, use: str, made: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Make an object.

    Raises:
        LoadError: if its constructor raises.
    """
    try:
        return made(**arguments)
    except StageError as error:
        raise LoadError(f"{where}: {error}") from error
    except BaseException as error:
        if not is_failure(error):
            raise
        raise LoadError(f"{where}: making {use} raised {describe_error(error)}") from error


def _parameters(signature: inspect.Signature) -> str:
    """Names and defaults as in a call, without annotations."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return ", ".join(map(str, bare))
