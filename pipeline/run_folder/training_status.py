"""The content of `run_logs/training_status.json`: exported policies, ratings and lessons, in ML-Agents' format.

ML-Agents calls an exported policy in this file a checkpoint. `--resume` does not use these; it reads a
`checkpoint.Checkpoint`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from headrace.config.errors import dotted
from headrace.pipeline.common.process import version_of
from headrace.pipeline.run_folder.checkpoint import checksum_of
from headrace.startup_context import shown

STATUS_FORMAT_VERSION = "0.3.0"
_CHECKSUM = "checksum"
_Reward = Annotated[FiniteFloat | None, BeforeValidator(lambda value: None if value != value else value)]
"""A number; None in place of NaN, which ML-Agents writes."""


@dataclass(frozen=True, slots=True)
class ExportEntry:
    """The entry of an exported policy in a behaviour's `checkpoints` or `final_checkpoint`."""

    steps: NonNegativeInt
    file_path: str
    """Path of the `.onnx` file, or of the `.pt` file if there is no `.onnx` file."""
    reward: _Reward
    """Mean return before the export; None if no episode had ended."""
    creation_time: FiniteFloat
    """Time of the export, in seconds since 1970."""
    auxiliary_file_paths: Annotated[tuple[str, ...], Field(validation_alias="auxillary_file_paths")] = ()
    """Paths of the files that were exported with it; older versions of ML-Agents list none."""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry in ML-Agents' format, including its spelling of the keys."""
        return {
            "steps": self.steps,
            "file_path": shown(self.file_path),
            "reward": self.reward if self.reward is not None and math.isfinite(self.reward) else None,
            "creation_time": self.creation_time,
            "auxillary_file_paths": [shown(path) for path in self.auxiliary_file_paths],
        }

    def within(self, run_folder: Path) -> ExportEntry:
        """Return the entry with its paths changed to be inside `run_folder`, because the run may have been moved."""

        def here(file: str) -> str:
            path = PureWindowsPath(file)  # handles the path separators of all systems
            return str(run_folder / path.parent.name / path.name)

        beside = tuple(here(file) for file in self.auxiliary_file_paths)
        return replace(self, file_path=here(self.file_path), auxiliary_file_paths=beside)


@dataclass(frozen=True, slots=True)
class BehaviorStatus:
    """A behaviour's entry in `training_status.json`."""

    checkpoints: tuple[ExportEntry, ...] = ()
    final_checkpoint: ExportEntry | None = None
    elo: FiniteFloat | None = None
    """The Elo rating; None without self-play."""


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A curriculum's entry in `training_status.json`, which a behaviour of the same name shares."""

    lesson_num: NonNegativeInt


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The content of `training_status.json`."""

    behaviors: Mapping[str, BehaviorStatus] = field(default_factory=dict)
    lessons: Mapping[str, int] = field(default_factory=dict)
    """Number of the current curriculum lesson, keyed by environment parameter."""

    def as_dict(self) -> dict[str, Any]:
        """Return the status in ML-Agents' format; a behaviour and a parameter with the same name share an entry."""
        # ML-Agents requires these three keys, but only warns if it does not recognise their values.
        versions = {
            "stats_format_version": STATUS_FORMAT_VERSION,
            "mlagents_version": f"headrace {version_of('headrace', 'unknown')}",
            "torch_version": version_of("torch", "unknown"),
        }
        result: dict[str, Any] = {"metadata": versions}
        for name, status in self.behaviors.items():
            entry = result.setdefault(name, {})
            entry["checkpoints"] = [checkpoint.as_dict() for checkpoint in status.checkpoints]
            if status.final_checkpoint is not None:
                entry["final_checkpoint"] = status.final_checkpoint.as_dict()
            if status.elo is not None and math.isfinite(status.elo):
                entry["elo"] = status.elo
        for name, lesson in self.lessons.items():
            result.setdefault(name, {})["lesson_num"] = lesson
        result["metadata"][_CHECKSUM] = checksum_of(result)
        return result

    @classmethod
    def from_dict(cls, content: Any) -> TrainingStatus:
        """Read a status in ML-Agents' format.

        Raises:
            ValueError: if the content is invalid, or its checksum does not match.
        """
        try:
            whole = TypeAdapter(dict[str, dict[str, Any]]).validate_python(content)
            entries = {name: entry for name, entry in whole.items() if entry.keys() & BehaviorStatus.__slots__}
            behaviors = TypeAdapter(dict[str, BehaviorStatus]).validate_python(entries)
            entries = {name: entry for name, entry in whole.items() if "lesson_num" in entry}
            lessons = TypeAdapter(dict[str, _Lesson]).validate_python(entries)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = dotted(wrong["loc"]) or "the file"
            raise ValueError(f"{where} is {reprlib.repr(wrong['input'])}: {wrong['msg']}") from error
        metadata = whole.get("metadata", {})
        stated = metadata.get(_CHECKSUM)  # ML-Agents writes none
        unsealed = {key: value for key, value in metadata.items() if key != _CHECKSUM}
        if stated is not None and stated != checksum_of({**whole, "metadata": unsealed}):
            raise ValueError(
                f"metadata.{_CHECKSUM} is {stated}; expected the checksum of the content: the file is damaged or was "
                "edited"
            )
        return cls(behaviors, {name: lesson.lesson_num for name, lesson in lessons.items()})
