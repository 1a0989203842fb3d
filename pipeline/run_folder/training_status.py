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
from typing import Any, TypeVar

from headrace.pipeline.common.process import version_of
from headrace.pipeline.run_folder.checkpoint import checksum_of
from headrace.startup_context import shown

STATUS_FORMAT_VERSION = "0.3.0"
_CHECKSUM = "checksum"
_TOO_MUCH = 2.0**63
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class ExportEntry:
    """The entry of an exported policy in a behaviour's `checkpoints` or `final_checkpoint`."""

    steps: int
    file_path: str
    """Path of the `.onnx` file, or of the `.pt` file if there is no `.onnx` file."""
    reward: float | None
    """Mean return before the export; None if no episode had ended."""
    creation_time: float
    """Time of the export, in seconds since 1970."""
    auxiliary_file_paths: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the entry in ML-Agents' format, including its spelling of the keys."""
        return {
            "steps": self.steps,
            "file_path": shown(self.file_path),
            "reward": self.reward if self.reward is not None and math.isfinite(self.reward) else None,
            "creation_time": self.creation_time,
            "auxillary_file_paths": [shown(each) for each in self.auxiliary_file_paths],
        }

    def within(self, run_folder: Path) -> ExportEntry:
        """Return the entry with its paths changed to be inside `run_folder`, because the run may have been moved."""

        def here(file: str) -> str:
            path = PureWindowsPath(file)  # handles the path separators of all systems
            return str(run_folder / path.parent.name / path.name)

        beside = tuple(here(file) for file in self.auxiliary_file_paths)
        return replace(self, file_path=here(self.file_path), auxiliary_file_paths=beside)

    @classmethod
    def from_dict(cls, content: Any, where: str = "") -> ExportEntry:
        """Read an entry in ML-Agents' format; older files have no list of auxiliary paths.

        Args:
            content: the entry's content.
            where: the entry's key, for messages.

        Raises:
            StatusError: if the content is invalid.
        """
        entry = _map(content, where)
        reward = entry.get("reward")
        unknown = reward is None or (isinstance(reward, float) and math.isnan(reward))  # ML-Agents may write NaN
        paths = entry.get("auxillary_file_paths", [])
        if not isinstance(paths, list):
            raise StatusError(f"{where}.auxillary_file_paths", paths, "a list")
        return cls(
            _number(entry, where, "steps", int),
            _text(entry.get("file_path"), f"{where}.file_path"),
            None if unknown else _number(entry, where, "reward"),
            _number(entry, where, "creation_time"),
            tuple(_text(path, f"{where}.auxillary_file_paths") for path in paths),
        )


@dataclass(frozen=True, slots=True)
class BehaviorStatus:
    """A behaviour's entry in `training_status.json`."""

    checkpoints: tuple[ExportEntry, ...] = ()
    final_checkpoint: ExportEntry | None = None
    elo: float | None = None
    """The Elo rating; None without self-play."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The content of `training_status.json`."""

    behaviors: Mapping[str, BehaviorStatus] = field(default_factory=dict)
    lessons: Mapping[str, int] = field(default_factory=dict)
    """Number of the current curriculum lesson, keyed by environment parameter."""

    def as_dict(self) -> dict[str, Any]:
        """Return the status in ML-Agents' format; a behaviour and a parameter with the same name share an entry."""
        result: dict[str, Any] = {"metadata": _versions()}
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
            StatusError: if the content is invalid, or its checksum does not match.
        """
        whole = _map(content, "the file")
        entries = {name: _map(entry, name) for name, entry in whole.items()}
        metadata = entries.pop("metadata", {})
        behaviors = {
            name: _behavior(entry, name)
            for name, entry in entries.items()
            if entry.keys() & {"checkpoints", "final_checkpoint", "elo"}
        }
        lessons = {
            name: _number(entry, name, "lesson_num", int) for name, entry in entries.items() if "lesson_num" in entry
        }
        stated = metadata.get(_CHECKSUM)  # ML-Agents writes none
        unsealed = {key: value for key, value in metadata.items() if key != _CHECKSUM}
        if stated is not None and stated != checksum_of({**whole, "metadata": unsealed}):
            raise StatusError(
                f"metadata.{_CHECKSUM}", stated, "the checksum of the content: the file is damaged or was edited"
            )
        return cls(behaviors, lessons)


class StatusError(ValueError):
    """Raised if a key in `training_status.json` has an invalid value."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"{key} is {reprlib.repr(value)}; expected {expected}")


def _behavior(entry: Mapping[str, Any], name: str) -> BehaviorStatus:
    exports = entry.get("checkpoints", [])
    if not isinstance(exports, list):
        raise StatusError(f"{name}.checkpoints", exports, "a list")
    final = f"{name}.final_checkpoint"
    return BehaviorStatus(
        tuple(ExportEntry.from_dict(each, f"{name}.checkpoints[{index}]") for index, each in enumerate(exports)),
        ExportEntry.from_dict(entry["final_checkpoint"], final) if "final_checkpoint" in entry else None,
        _number(entry, name, "elo") if "elo" in entry else None,
    )


def _map(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StatusError(where, value, "a map")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise StatusError(where, value, "a string")
    return value


def _number(entry: Mapping[str, Any], where: str, key: str, kind: type[N] = float) -> N:  # type: ignore[assignment]
    value: Any = entry.get(key)
    expected = "a finite number" if kind is float else "a non-negative integer"
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _TOO_MUCH
    if not sound or (kind is int and (value < 0 or value != int(value))):
        raise StatusError(f"{where}.{key}", value, expected)
    return kind(value)


def _versions() -> dict[str, str]:
    """Return the three keys that ML-Agents requires in a status.

    ML-Agents only warns if it does not recognise their values.
    """
    return {
        "stats_format_version": STATUS_FORMAT_VERSION,
        "mlagents_version": f"headrace {version_of('headrace', 'unknown')}",
        "torch_version": version_of("torch", "unknown"),
    }
