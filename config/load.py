"""Turns a YAML file, `--set` arguments and options into a validated `RunConfig`, or reports all mistakes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config.errors import SET, ConfigError, Finding, KeyPath, Locate, Mistake, dotted, nowhere, suggest
from headrace.config.plain_data import plain
from headrace.config.run_config import RunConfig, merge_default_settings
from headrace.config.section_checks import check_run, lacking_programs
from headrace.config.tables import import_listed
from headrace.config.validation import ONLY_CONVERTED, check, show
from headrace.config.yaml_reader import Document, read_file, read_text

if TYPE_CHECKING:
    from headrace.config.legacy import ConvertedDocument

_CONVERTED = "# Written by run-pipeline --convert. It learns as the old file did.\n"
_OF_AN_ENTRY = "# Written by run-pipeline --convert.\n"
_OLD_FORM = "is in an old format, which Headrace converts at every start; to convert it once"
_NO_FILE = (
    "no configuration file was given: every behaviour of the environment learns with the defaults (trainer_type ppo)"
)


def load_config(
    path: Path | str | Mapping[str, Any] | None,
    overrides: Sequence[str | Override] = (),
    *,
    curriculum: Path | str | None = None,
    sampler: Path | str | None = None,
    lesson: int = 0,
    complete: bool = True,
) -> RunConfig:
    """Load a configuration for any version of ML-Agents; files for old versions are converted, with warnings.

    Args:
        path: the YAML file, or its content as data (see `plain` for the allowed types); None for the defaults, which
            then apply to all of the environment's behaviours.
        overrides: values, or strings `path.to.key=value` with the value as YAML; a name with `.` or `=` is in quotes
            (`behaviors."Agent.v1".max_steps=500`). They take precedence over the file,
            and later overrides over earlier ones. Use current keys even if the file is old. List items are given by
            their index from 0: `pipeline.stages.0.host=main`.
        curriculum: old lessons to add: a file, or a folder with one file for each behaviour.
        sampler: a file of old samplers to add.
        lesson: 0-based index of the lesson at which all curricula start.
        complete: False if a command-line option (`--env`) may still supply missing values, in which case these only
            cause warnings.

    Raises:
        ConfigError: if anything is wrong; it lists every mistake in the files and overrides.
    """
    if not isinstance(path, Mapping):
        return _check(_read(path, curriculum, sampler, lesson), overrides, complete)
    parsed, wrong_arguments = parse(overrides)
    data, sets, misplaced = apply(plain(path), parsed)
    if wrong_arguments or misplaced:
        raise ConfigError([*wrong_arguments, *misplaced])
    _import_plugins(data, Path(), nowhere)
    config = RunConfig.from_plain(data, locate=_places_in(data, sets) if sets else nowhere)
    if complete and (lacking := [nowhere(finding.path, finding.message) for finding in lacking_programs(config)]):
        raise ConfigError(lacking)
    return config


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    """A file converted to the current format."""

    text: str
    """The file's YAML; the original text if nothing had to be converted."""
    warnings: tuple[str, ...]
    """Warnings about conversions, then other warnings."""
    left_out: tuple[str, ...] = ()
    """Settings that were dropped because they have no counterpart, so the run learns differently."""


def convert(
    path: Path | str,
    curriculum: Path | str | None = None,
    sampler: Path | str | None = None,
    lesson: int = 0,
    *,
    env_id: str | None = None,
    algorithm: str | None = None,
) -> ConvertedFile:
    """Convert a file for any version of ML-Agents to the current format, or an rl-baselines3-zoo entry to a run.

    Args:
        path: the YAML file.
        curriculum: old lessons to add: a file, or a folder with one file for each behaviour.
        sampler: a file of old samplers to add.
        lesson: 0-based index of the lesson at which all curricula start.
        env_id: for a file from the zoo: the environment whose entry is converted.
        algorithm: `ppo` or `sac`, for an entry; None to infer it from the file's name or keys.

    Raises:
        ConfigError: if anything is wrong; it lists every mistake. A mistake that only prevents a run becomes a warning.
    """
    from headrace.config.legacy import ConvertedDocument, as_yaml
    from headrace.config.legacy.rl_zoo import EntryRequest, is_rl_zoo

    document = read_file(Path(path))
    if env_id is not None or algorithm is not None or is_rl_zoo(document):
        from headrace.config.legacy.rl_zoo.conversion import convert_entry

        entry = convert_entry(document, EntryRequest(env_id, algorithm))
        warnings = _check(ConvertedDocument(entry.document, entry.notes, entry.data), (), complete=False).warnings
        text = as_yaml(entry.data, entry.notes.comments)
        return ConvertedFile(f"{_OF_AN_ENTRY}{entry.header}{text}", warnings, entry.left_out)
    modern = _modern(document, curriculum, sampler, lesson)
    warnings = _check(modern, (), complete=False, converts=True).warnings
    if modern.unchanged and not modern.document.tagged:
        return ConvertedFile(document.text.replace("\r\n", "\n"), warnings)
    return ConvertedFile(f"{_CONVERTED}{as_yaml(modern.data, modern.notes.comments)}", warnings)


def _read(
    path: Path | str | None, curriculum: Path | str | None, sampler: Path | str | None, lesson: int
) -> ConvertedDocument:
    document = read_text("default_settings: {}", "") if path is None else read_file(Path(path))
    return _modern(document, curriculum, sampler, lesson)


def _modern(
    document: Document, curriculum: Path | str | None, sampler: Path | str | None, lesson: int
) -> ConvertedDocument:
    # Imported late, because hosts get their configuration from main and do not need this module.
    from headrace.config.legacy import convert_document
    from headrace.config.legacy.rl_zoo import HOW, is_rl_zoo

    if is_rl_zoo(document):
        message = f"is an rl-baselines3-zoo file; convert one of its entries first: '{HOW}'"
        raise ConfigError([Mistake(document.name, None, "", message)])
    _expect_map(document)
    return convert_document(
        document,
        curriculum=None if curriculum is None else Path(curriculum),
        sampler=None if sampler is None else Path(sampler),
        lesson=lesson,
    )


def _check(
    modern: ConvertedDocument, overrides: Sequence[str | Override], complete: bool, converts: bool = False
) -> RunConfig:
    parsed, wrong_arguments = parse(overrides)
    data, sets, misplaced = apply(modern.data, parsed)
    mistakes = [*modern.mistakes, *wrong_arguments, *misplaced]
    locate = _LocationLookup(modern, sets)
    _import_plugins(data, Path(modern.document.name).parent, locate)
    lacking: list[Finding] = []
    try:
        config = check(RunConfig, data, locate, ONLY_CONVERTED if converts else None, merge_default_settings)
        lacking += [*lacking_programs(config), *(check_run(config) if converts else ())]
        mistakes += [locate(finding.path, finding.message) for finding in lacking if complete]
    except ConfigError as error:
        mistakes += error.mistakes
    name = modern.document.name
    if mistakes:
        raise ConfigError(sorted(mistakes, key=lambda mistake: (mistake.file != name, mistake.line or 0)))
    notes = (*(() if name else (_NO_FILE,)), *modern.notes.warnings)
    if modern.old and not converts:
        notes = (*notes, f'{name}: {_OLD_FORM}: run-pipeline --convert "{name}" > new.yaml')
    return config.loaded(Path(name) if name else None, locate, notes, lacking)


def _import_plugins(data: Mapping[str, Any], folder: Path, locate: Locate) -> None:
    """Import the modules under `plugins`, because they add the kinds that the rest of the data may name."""
    listed = data.get("plugins")
    if isinstance(listed, list) and all(isinstance(module, str) for module in listed):  # else it is refused later
        import_listed(listed, folder, locate)


def _places_in(data: dict[str, Any], sets: Sequence[Override]) -> Locate:
    from headrace.config.legacy import ConvertedDocument, Notes  # as in `_read`

    return _LocationLookup(ConvertedDocument(read_text("", ""), Notes(), data), sets)


def _expect_map(document: Document) -> None:
    if document.data is None:
        raise ConfigError([Mistake(document.name, None, "", "is empty; expected at least 'behaviors'")])
    if not isinstance(document.data, dict):
        message = f"is {show(document.data)}; expected a map with 'behaviors' and other sections"
        raise ConfigError([Mistake(document.name, document.line_of(()), "", message)])


@dataclass(frozen=True, slots=True)
class _LocationLookup:
    """The locations of all keys. Comparisons between configurations ignore them."""

    modern: ConvertedDocument = field(compare=False)
    overrides: Sequence[Override] = field(compare=False)

    def __call__(self, path: KeyPath, message: str) -> Mistake:
        """Return a `Mistake` about a key, with the key's location."""
        source = self._source(path)
        for override in reversed(self.overrides):
            if self._sets(override, source):
                return Mistake(override.name, None, dotted(path), message)
        place = self.modern.place(source)
        return Mistake(place.file, place.line, dotted(path), message)

    def _source(self, path: KeyPath) -> KeyPath:
        """Return the path of the key that set a value.

        The key of an inherited value is in a league or `default_settings`.
        """
        if path[:1] != ("behaviors",) or len(path) < 2 or self._is_written(path):
            return path
        behavior, _, learner = str(path[1]).rpartition(".")
        candidates: list[KeyPath] = [("default_settings", *path[2:])] if len(path) > 2 else []
        if behavior and self._is_written(("behaviors", behavior, "league")):
            of_league: KeyPath = ("behaviors", behavior, *path[2:])
            candidates = [
                ("behaviors", behavior, "league", "learners", learner, *path[2:]),
                of_league,
                *candidates,
                of_league[:2],
            ]
        return next((candidate for candidate in candidates if self._is_written(candidate)), path)

    def _is_written(self, path: KeyPath) -> bool:
        return self.modern.has(path) or any(self._sets(override, path) for override in self.overrides)

    def _sets(self, override: Override, path: KeyPath) -> bool:
        """Return True if an override set the key, or created the maps around it."""
        shared = min(len(path), len(override.path))
        return path[:shared] == override.path[:shared] and (shared == len(override.path) or not self.modern.has(path))


# Overrides of single values in the YAML, applied before the check: `--set path.to.key=value`, and options.

EACH = "*"
"""Wildcard in a path, which matches all names in the map at that position."""

_NAMED = ("behaviors", "environment_parameters")
"""Sections whose keys users choose, so that the schema can't detect a misspelling."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value that overrides a value in the file."""

    name: str
    """The override's name in messages: `--set path.to.key=value`, or the option that was used, such as `--num-envs 0`.
    """
    path: KeyPath
    value: Any
    optional: bool = False
    """True to drop the override if the file lacks the override's top-level section, or `EACH` matches nothing there."""


_PART = r""""[^"]+"|'[^']+'|[^.="'][^.=]*"""
"""One name in a path. A name with dots or `=` is in quotes."""
_WRITTEN = re.compile(rf"\s*(?P<key>(?:{_PART})(?:\.(?:{_PART}))*)=(?P<value>.*)", re.DOTALL)


def parse(arguments: Sequence[str | Override]) -> tuple[list[Override], list[Mistake]]:
    """Parse the arguments of `--set`; return the overrides, and mistakes for invalid arguments."""
    overrides, mistakes = [], []
    for argument in arguments:
        if isinstance(argument, Override):
            overrides.append(argument)
            continue
        written = _WRITTEN.fullmatch(argument)
        if written is None:
            mistakes.append(Mistake(_set(argument), None, "", "expected path.to.key=value"))
            continue
        key, text = written["key"].strip(), written["value"]
        parts = re.findall(_PART, key)
        path = tuple(
            int(part) if part.isdecimal() and index > 0 else part[1:-1] if part[0] in "\"'" else part
            for index, part in enumerate(parts)
        )
        try:
            document = read_text(text, _set(argument), path)
            wrong = document.mistakes
            overrides.append(Override(_set(argument), path, document.data))
        except ConfigError as error:
            wrong = error.mistakes
        mistakes += [Mistake(mistake.file, None, key, mistake.message) for mistake in wrong]
    return overrides, mistakes


def apply(data: dict[str, Any], overrides: Sequence[Override]) -> tuple[dict[str, Any], list[Override], list[Mistake]]:
    """Apply overrides to plain data, in order.

    Returns:
        The new data, the overrides that were applied, with complete paths, and mistakes for those whose path leads
        nowhere.
    """
    applied, mistakes = [], []
    for override in overrides:
        singles = _spelt_out(data, override)
        if not singles and not override.optional:
            message = f"nothing is listed under '{override.path[0]}', so this has no effect; see 'default_settings'"
            mistakes.append(Mistake(override.name, None, dotted(override.path), message))
        for single in singles:
            try:
                data = _put(data, single.path, single.value, single.path)
                applied.append(single)
            except _NoPlaceError as error:
                mistakes.append(Mistake(single.name, None, dotted(single.path), str(error)))
    return data, applied, mistakes


def _set(argument: str) -> str:
    """Return the name of a `--set` argument for messages."""
    return f"{SET} {argument}"


def _spelt_out(data: dict[str, Any], override: Override) -> list[Override]:
    """Return one override per name that `EACH` matches; empty if the section is optional and missing."""
    section, *below = override.path
    if override.optional and data.get(str(section)) is None:
        return []
    if not below or below[0] != EACH:
        return [override]
    named = data.get(str(section))
    names = named if isinstance(named, dict) else ()
    return [replace(override, path=(section, name, *below[1:])) for name in names]


class _NoPlaceError(Exception):
    """Raised if the path of an override leads nowhere."""


def _put(here: Any, path: KeyPath, value: Any, whole: KeyPath) -> Any:
    if not path:
        return value
    key, *below = path
    if isinstance(here, list):
        if not isinstance(key, int) or key >= len(here):
            raise _NoPlaceError(f"the list has {len(here)} items; expected a smaller index, got '{key}'")
        return [*here[:key], _put(here[key], tuple(below), value, whole), *here[key + 1 :]]
    if here is not None and not isinstance(here, dict):
        before = dotted(whole[: len(whole) - len(path)])
        raise _NoPlaceError(f"'{before}' is {show(here)}, which has no keys")
    name, rest = str(key), here or {}
    text, before = dotted(path), dotted(whole[: len(whole) - len(path)])
    for listed in rest if name not in rest else ():
        if ("." in listed and f"{text}.".startswith(f"{listed}.")) or (not below and listed.startswith(f"{name}=")):
            raise _NoPlaceError(f"put the name '{listed}' in quotes: {SET} '{before}.\"{listed}\".…'")
    if below and name not in rest and whole[0] in _NAMED and len(path) == len(whole) - 1:
        hint = suggest(name, list(rest)) or f"; listed: {', '.join(rest) or 'none'}"
        raise _NoPlaceError(f"'{name}' is not listed under {whole[0]}{hint}")
    return {**rest, name: _put(rest.get(name), tuple(below), value, whole)}
