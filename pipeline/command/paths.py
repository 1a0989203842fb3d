"""The positional arguments: the configuration file and, in old commands, the environment as well.

Very old versions of ML-Agents took the environment as an argument, alone or beside the file, in either order. They are
distinguished by name, else by the file's content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.pipeline.common.errors import CommandError

_CONFIGURATIONS = (".yaml", ".yml", ".json")
_OLD_NAME = "trainer_config.yaml"
_EXECUTABLES = (".exe", ".app", ".x86_64", ".x86")
_PROGRAMS = (b"\x7fELF", b"MZ", b"#!", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""First bytes of what an operating system runs: Linux, Windows, a script, macOS."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The positional arguments by their meaning."""

    config: Path | None = None
    env: str | None = None
    """The environment, if it was given in the old way."""


def classify_paths(arguments: Sequence[str], env: str | None) -> Paths:
    """Tell configuration file and environment apart.

    Args:
        arguments: the positional arguments.
        env: the value of `--env`.

    Raises:
        CommandError: if there are too many of either.
    """
    environments = [argument for argument in arguments if is_environment(argument)]
    others = [argument for argument in arguments if argument not in environments]
    if len(environments) > 1 or (environments and env is not None):
        named = ", ".join([*environments, *([] if env is None else [f"--env {env}"])])
        raise CommandError(f"more than one environment is given: {named}; give one, with --env")
    if len(others) > 1:
        raise CommandError(
            f"expected one configuration file, got {len(others)}: {', '.join(others)}; "
            "an environment is given with --env, and the value of an option follows it directly: --monitor=8080"
        )
    return Paths(Path(others[0]) if others else None, environments[0] if environments else None)


def old_configuration(env: str) -> Path | None:
    """Return the `trainer_config.yaml` beside an environment, or else here: the first versions found it by its name."""
    found = (folder / _OLD_NAME for folder in (Path(env).parent, Path()))
    return next((path for path in found if path.is_file()), None)


def is_environment(argument: str) -> bool:
    """Return True if an argument names a Unity executable, not a configuration file."""
    path = Path(argument)
    suffix = path.suffix.lower()
    if suffix in _CONFIGURATIONS or suffix in _EXECUTABLES:
        return suffix in _EXECUTABLES
    if not path.exists():
        return any(Path(argument + each).exists() for each in _EXECUTABLES)
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_PROGRAMS)
    except OSError:  # a folder, or not readable: reading the configuration reports that
        return False
