"""The request of a command: a configuration file, and the values that take precedence over it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config import Override, RunConfig
from headrace.pipeline.command.old_options import translations
from headrace.pipeline.command.options import current_overrides
from headrace.pipeline.common.errors import CommandError


@dataclass(frozen=True, slots=True)
class Request:
    """The content of a command."""

    config: Path | None
    """The configuration file; None for none."""
    overrides: tuple[Override | str, ...]
    """Values that take precedence over the file, and later ones over earlier ones; those of `--set` come last."""
    warnings: tuple[str, ...] = ()
    env: str | None = None
    """The Unity executable, if the command names one."""
    old_files: Mapping[str, Any] = field(default_factory=dict)
    """Further files of older versions, to be converted with it: keyword arguments of `load_config` and `convert`."""


def read_request(args: argparse.Namespace) -> Request:
    """Read the request off the parsed arguments.

    Raises:
        CommandError: if it can't be followed; the message has all reasons.
    """
    found = list(translations(args))
    refusals = [refusal for each in found for refusal in each.refusals]
    warnings = [warning for each in found for warning in each.warnings]
    try:
        paths = classify_paths(args.paths, args.env)
    except CommandError as error:
        refusals.append(str(error))
    if refusals:
        raise CommandError("\n".join(refusals))
    replaced = {name: value for each in found for name, value in each.replaced.items()}
    config = paths.config
    if paths.env is not None:
        replaced["env"] = paths.env
        config = config or old_configuration(paths.env)
        line = "--env" if config is None or config == paths.config else f"{config} --env"
        warnings.append(
            f"{paths.env}: older versions of ML-Agents took the environment as an argument"
            f"{'' if config == paths.config else f', and found {config} by its name, as is done here'}; "
            f"write {line} {paths.env}"
        )
    # Old options come first, so that present ones take precedence.
    old = [override for each in found for override in each.overrides]
    now = current_overrides(argparse.Namespace(**{**vars(args), **replaced}))
    files = {name: value for each in found for name, value in each.old_files.items()}
    return Request(config, (*old, *now, *args.set), tuple(warnings), paths.env or args.env, files)


def contradictions(request: Request, config: RunConfig) -> list[str]:
    """Return what can't be done with this configuration."""
    if not config.checkpoint_settings.inference:
        args = [each.name for each in request.overrides if isinstance(each, Override) and each.path[0] == "inference"]
        if args:
            return [f"{args[0]}: goes with --inference, which plays with the trained policies of the run; add it"]
    if request.env is not None and config.environment is not None and not config.environment_kind.apart:
        return [
            f"--env {request.env}: the configuration's 'environment' section runs "
            f"{config.environment.kind} {config.environment.id or config.environment.factory}; keep one of the two"
        ]
    return []


# The positional arguments: the configuration file and, in old commands, the environment as well. Very old versions of
# ML-Agents took the environment as an argument, alone or beside the file, in either order. They are distinguished by
# name, else by the file's content.

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
