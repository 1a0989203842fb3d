"""The content of `run_logs/training_status.json`: exported policies, ratings and lessons, in ML-Agents' form.

ML-Agents calls an exported policy a checkpoint there. What `--resume` reads is a `checkpoint.Checkpoint`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from headrace.pipeline.common.process import version_of

STATUS_FORMAT_VERSION = "0.3.0"


@dataclass(frozen=True, slots=True)
class ExportEntry:
    """An exported policy of a behaviour, under `checkpoints` or `final_checkpoint`."""

    steps: int
    file_path: str
    """The `.onnx` file, or the `.pt` file where there is none."""
    reward: float | None
    """Mean return before the export; None if no episode had ended."""
    creation_time: float
    """Seconds since 1970."""
    auxiliary_file_paths: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return ML-Agents' form, its spelling included."""
        return {
            "steps": self.steps,
            "file_path": self.file_path,
            "reward": self.reward if self.reward is not None and math.isfinite(self.reward) else None,
            "creation_time": self.creation_time,
            "auxillary_file_paths": list(self.auxiliary_file_paths),
        }

    def within(self, run_folder: Path) -> ExportEntry:
        """Return the entry with its files under `run_folder`, which may have been moved since."""

        def here(file: str) -> str:
            path = PureWindowsPath(file)  # which knows the separators of all systems
            return str(run_folder / path.parent.name / path.name)

        beside = tuple(here(file) for file in self.auxiliary_file_paths)
        return replace(self, file_path=here(self.file_path), auxiliary_file_paths=beside)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ExportEntry:
        """Read ML-Agents' form; older files have no list of further paths."""
        reward = None if content["reward"] is None else float(content["reward"])
        paths = tuple(content.get("auxillary_file_paths", ()))
        return cls(int(content["steps"]), content["file_path"], reward, float(content["creation_time"]), paths)


@dataclass(frozen=True, slots=True)
class BehaviorStatus:
    """A behaviour's entry in `training_status.json`."""

    checkpoints: tuple[ExportEntry, ...] = ()
    final_checkpoint: ExportEntry | None = None
    elo: float | None = None
    """The rating; None without self-play."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The content of `training_status.json`."""

    behaviors: Mapping[str, BehaviorStatus] = field(default_factory=dict)
    lessons: Mapping[str, int] = field(default_factory=dict)
    """Curriculum lesson by the environment parameter's name."""

    def as_dict(self) -> dict[str, Any]:
        """Return ML-Agents' form. A behaviour and a parameter of one name share an entry, as there."""
        result: dict[str, Any] = {"metadata": _versions()}
        for name, status in self.behaviors.items():
            entry = result.setdefault(name, {})
            entry["checkpoints"] = [checkpoint.as_dict() for checkpoint in status.checkpoints]
            if status.final_checkpoint is not None:
                entry["final_checkpoint"] = status.final_checkpoint.as_dict()
            if status.elo is not None:
                entry["elo"] = status.elo
        for name, lesson in self.lessons.items():
            result.setdefault(name, {})["lesson_num"] = lesson
        return result

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TrainingStatus:
        """Read ML-Agents' form.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: if it is something else.
        """
        entries = {name: entry for name, entry in content.items() if name != "metadata"}
        behaviors = {
            name: BehaviorStatus(
                tuple(ExportEntry.from_dict(checkpoint) for checkpoint in entry.get("checkpoints", ())),
                ExportEntry.from_dict(entry["final_checkpoint"]) if "final_checkpoint" in entry else None,
                float(entry["elo"]) if "elo" in entry else None,
            )
            for name, entry in entries.items()
            if entry.keys() & {"checkpoints", "final_checkpoint", "elo"}
        }
        lessons = {name: int(entry["lesson_num"]) for name, entry in entries.items() if "lesson_num" in entry}
        return cls(behaviors, lessons)


def _versions() -> dict[str, str]:
    """Return the three keys without which ML-Agents refuses a status; values other than its own are only warned of."""
    return {
        "stats_format_version": STATUS_FORMAT_VERSION,
        "mlagents_version": f"headrace {version_of('headrace', 'unknown')}",
        "torch_version": version_of("torch", "unknown"),
    }
