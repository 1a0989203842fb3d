"""Converts a file for any ML-Agents version, or an RLlib file for Godot, to plain data in the current format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from headrace.config.errors import KeyPath, Mistake
from headrace.config.legacy import outdated_keys
from headrace.config.legacy.flat_file import DEFAULT, DISTINCTIVE, convert_block, convert_sections, in_order
from headrace.config.legacy.old_values import Notes, OldValue, SourceLocation, Target
from headrace.config.legacy.outdated_keys import (
    convert_curriculum,
    convert_samplers,
    curricula_in,
    is_curriculum,
    is_samplers,
    read_curricula,
    read_samplers,
)
from headrace.config.legacy.rllib import convert_rllib, is_rllib
from headrace.config.run_config import RunConfig
from headrace.config.validation import fields_of, is_inside
from headrace.config.yaml_reader import Document

_PARAMETERS = "environment_parameters"
_OLD_KEYS = ("curriculum", "parameter_randomization", *outdated_keys.HARDWARE)
_TODAYS_PARTS = ("trainer_type", "hyperparameters", "network_settings")

Kind = Literal["today's", "flat", "curricula", "samplers", "rllib"]


class ConvertedDocument:
    """A file converted to the current format."""

    def __init__(self, document: Document, notes: Notes, data: Any, *, old: bool = False) -> None:
        self.document = document
        """The file as it was read."""
        self.notes = notes
        self.data = data
        """Plain data in the current format; the document's own data if nothing had to be converted."""
        self.old = old
        """True if the entire file is in an old format, rather than just some of its keys."""

    @property
    def unchanged(self) -> bool:
        """True if nothing had to be converted."""
        return self.data is self.document.data

    @property
    def mistakes(self) -> list[Mistake]:
        """Mistakes found in the file before validation."""
        return [*self.document.mistakes, *self.notes.mistakes]

    def has(self, path: KeyPath) -> bool:
        """Return True if there is a value at a path in the converted data."""
        return is_inside(path, self.data)

    def place(self, path: KeyPath) -> SourceLocation:
        """Return the line in the file from which the value at a path, or its nearest enclosing value, was converted."""
        for length in range(len(path), 0, -1):
            part = path[:length]
            if part in self.notes.origins:
                return self.notes.origins[part]
            if self.document.has(part):
                return SourceLocation(self.document.name, self.document.line_of(part))
        return SourceLocation(self.document.name, self.document.line_of(()))


def convert_document(
    document: Document, curriculum: Path | None = None, sampler: Path | None = None, lesson: int = 0
) -> ConvertedDocument:
    """Convert a file's plain data to the current format.

    Args:
        document: the file.
        curriculum: a file or folder of old curricula to add.
        sampler: a file of old samplers to add.
        lesson: 0-based index of the lesson at which all curricula start.

    Raises:
        ConfigError: if a file to add can't be read.
    """
    notes = Notes()
    if not isinstance(document.data, dict):
        return ConvertedDocument(document, notes, document.data)
    kind = _kind(document.data)
    if kind != "today's":
        document = document.last_of_repeated()
        for repeated in document.repeated:
            where = SourceLocation(repeated.file, repeated.line)
            notes.warn(where, repeated.path, f"{repeated.message}; the last one applies, as in old versions")
    conversion = _Conversion(OldValue(document.data, document), notes)
    conversion.convert(kind)
    if curriculum is not None:
        conversion.curricula += read_curricula(curriculum).items()
    if sampler is not None:
        conversion.samplers.append(read_samplers(sampler))
    data = conversion.with_parameters(max(lesson, conversion.lesson))
    return ConvertedDocument(document, notes, document.data if data == document.data else data, old=kind != "today's")


def _kind(data: Mapping[str, Any]) -> Kind:
    if "behaviors" in data or "default_settings" in data:
        return "today's"
    if is_rllib(data):
        return "rllib"
    if is_curriculum(data) or (data and all(map(is_curriculum, data.values()))):
        return "curricula"
    if is_samplers(data):
        return "samplers"
    return "flat" if any(_is_block(key, data[key]) for key in _sections(data)) else "today's"


def _sections(data: Iterable[str]) -> list[str]:
    """Return the top-level keys of a flat file that name a section."""
    section_keys = {*fields_of(RunConfig), *_OLD_KEYS}
    return [key for key in data if key not in section_keys]


def _is_block(name: str, body: Any) -> bool:
    """Return True if a value at the top level of a file is a flat block."""
    if not isinstance(body, dict) or any(part in body for part in _TODAYS_PARTS):
        return False
    return name == DEFAULT or any(key in DISTINCTIVE for key in body)


class _Conversion:
    """The conversion of one file.

    Args:
        whole: the entire file.
        notes: receives warnings and mistakes.
    """

    def __init__(self, whole: OldValue, notes: Notes) -> None:
        self._whole = whole
        self._notes = notes
        self._top = Target(notes)
        self.curricula: list[tuple[str, OldValue]] = []
        """For each curriculum: its behaviour, and its old value."""
        self.samplers: list[OldValue] = []
        self.lesson = 0
        """0-based index of the lesson at which curricula start."""

    def convert(self, kind: Kind) -> None:
        """Convert everything except `environment_parameters`, and collect its curricula and samplers."""
        if kind == "curricula":
            message = "the file contains only lessons, so behaviours learn with the defaults; see --curriculum"
            self._notes.warn(self._whole, "behaviors", message)
            for name, old in curricula_in(self._whole).items():
                self._top.put_at(("behaviors", name), {"trainer_type": "ppo"}, old)
                self.curricula.append((name, old))
        elif kind == "samplers":
            self._take_samplers()
        elif kind == "rllib":
            convert_rllib(self._whole, self._top)
        else:
            self._take_keys(_sections(self._whole.value) if kind == "flat" else [])

    def with_parameters(self, lesson: int) -> dict[str, Any]:
        """Return all converted data, including `environment_parameters`, whose curricula begin with this lesson."""
        target = Target(self._notes, (_PARAMETERS,))
        written = self._whole.value.get(_PARAMETERS)
        if isinstance(written, dict):
            outdated_keys.unfold_lessons(self._whole.at(_PARAMETERS), target, lesson)
        for behavior, old in self.curricula:
            convert_curriculum(behavior, old, target, lesson)
        for old in self.samplers:
            convert_samplers(old, target)
        if target.data or isinstance(written, dict):
            self._top.data[_PARAMETERS] = target.data
        return self._top.data

    def _take_samplers(self) -> None:
        message = "the file contains only samplers, so behaviours learn with the defaults; see --sampler"
        self._notes.warn(self._whole, "default_settings", message)
        self._top.put("default_settings", {"trainer_type": "ppo"}, self._whole)
        self.samplers.append(self._whole)

    def _take_keys(self, sections: list[str]) -> None:
        if sections:
            blocks = {name: self._whole.at(name) for name in sections}
            self._take_inner_curricula(blocks)
            convert_sections(blocks, self._top)
        moved: dict[str, OldValue] = {}
        for key, old in self._whole.items():
            if key in ("behaviors", "default_settings"):
                self._take_blocks(key, old)
            elif key == "checkpoint_settings" and isinstance(old.value, dict):
                target = Target(self._notes, (key,))
                moved, self.lesson = outdated_keys.convert_checkpoints(old, target)
                self._top.data[key] = target.data
            elif key in outdated_keys.HARDWARE:
                outdated_keys.convert_hardware(key, old, self._top.data, self._notes)
            elif key in ("curriculum", "parameter_randomization"):
                below = ".<name>.curriculum" if key == "curriculum" else ""
                self._notes.warn(old, key, f"is now '{_PARAMETERS}{below}'")
                if key == "parameter_randomization":
                    self.samplers.append(old)
                elif isinstance(old.value, dict):
                    self.curricula += old.items()
                else:
                    self._notes.wrong(old, "is not valid; expected a map of behaviours and their curricula")
            elif key not in sections and key not in self._top.data:
                self._top.data[key] = old.value
        outdated_keys.write_into_blocks(moved, self._top.data, self._notes)

    def _take_blocks(self, key: str, old: OldValue) -> None:
        """Convert `behaviors` or `default_settings`, whose blocks may be flat."""
        blocks = dict(old.items()) if key == "behaviors" else {key: old}
        if not blocks:
            self._top.data[key] = old.value  # null, or a value that the schema will refuse
            return
        if key == "behaviors":
            self._take_inner_curricula(blocks)
            self._top.data[key] = {}
        for name, block in blocks.items():
            target = Target(self._notes, (key, name) if key == "behaviors" else (key,))
            if outdated_keys.is_flat(block.value):
                convert_block(dict(block.items()), block, target)
                target.data = in_order(target.data)
            else:
                outdated_keys.convert_current(block, target)
            self._top.put_at(
                tuple(map(str, target.path)), target.data if isinstance(block.value, dict) else block.value
            )

    def _take_inner_curricula(self, blocks: Mapping[str, OldValue]) -> None:
        for name, block in blocks.items():
            if isinstance(block.value, dict) and "curriculum" in block.value:
                old = block.at("curriculum")
                self._notes.warn(old, "curriculum", f"is now '{_PARAMETERS}.<name>.curriculum'")
                self.curricula.append((name, old))
