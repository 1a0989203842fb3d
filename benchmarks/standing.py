"""A run's progress on disk, which no kill may set back; `kill.py` reads and compares it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.pipeline.run_folder.checkpoint import Checkpoint, CheckpointError, each_checkpoint, newest_checkpoint
from headrace.queues.errors import StreamError
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.queues.stream_file import StreamReader
from headrace.stages.errors import StageError
from headrace.stages.league.pool import FOLDER, check_members
from headrace.stages.trainer.replay.replay_memory import HEADER


class Violation(Exception):
    """Raised if a guarantee is broken."""


def require(holds: bool, otherwise: str) -> None:
    """Raise a `Violation` unless a condition holds."""
    if not holds:
        raise Violation(otherwise)


@dataclass(frozen=True, order=True)
class Progress:
    """The progress in the newest manifest, which is cheap to read during a run."""

    number: int
    """Number of the newest complete checkpoint; -1 if there is none."""
    step: int
    lesson: int

    @classmethod
    def of(cls, run_folder: Path) -> Progress:
        """Read the progress from the newest manifest.

        Raises:
            Violation: if the manifest can't be read.
        """
        checkpoint = _newest(run_folder)
        if checkpoint is None:
            return cls(-1, 0, 0)
        lessons = _lessons(checkpoint).values()
        return cls(checkpoint.number, max(checkpoint.steps.values()), max(lessons, default=0))


def _lessons(checkpoint: Checkpoint) -> Mapping[str, int]:
    """Return a run's lessons; empty if the run has no curricula."""
    lessons: Mapping[str, int] = checkpoint.progress.get("curricula", {"lessons": {}})["lessons"]
    return lessons


@dataclass(frozen=True)
class Standing:
    """The progress of a run whose processes have all ended."""

    checkpoint: int
    step: int
    version: int
    rating: float
    """Rating of the newest policy; 0 without self-play."""
    games: int
    """Number of rated games, of all behaviours: a behaviour is also rated in games as another's opponent."""
    snapshots: Mapping[int, int]
    """Step of each snapshot, by its number."""
    lessons: Mapping[str, int]
    exports: tuple[int, ...]
    """Steps of the policies listed in `training_status.json`."""
    exported: tuple[int, ...]
    """Steps of the exported policies that exist."""
    replayed: int
    """Number of rows in the replay memory; 0 without one."""
    streams: Mapping[str, int]
    """Number of complete frames in each recording."""
    members: tuple[str, ...]
    """Hash of each of a league's members, in order."""
    met: Mapping[tuple[int, int], int]
    """Number of games between each two of a league's players."""

    @classmethod
    def of(
        cls, run_folder: Path, behavior: str, earlier: Standing | None, went_on_from: Collection[int] = ()
    ) -> Standing | None:
        """Read a run's progress; None if there is no checkpoint yet.

        Args:
            run_folder: `results/<run-id>`.
            behavior: the behaviour.
            earlier: the progress before the last start; the current progress must not be behind it.
            went_on_from: the steps from which replacements of lost learners have continued since.

        Raises:
            Violation: if something is broken or behind the earlier progress.
        """
        checkpoint = _newest(run_folder)
        if checkpoint is None:
            return None
        _assert_all_whole(run_folder)
        parts = {name: checkpoint.read(name) for name in checkpoint.parts}
        trainer = parts[f"trainer@learner-{behavior}"]["trainer"]
        lineages = parts.get("ghost@main", {}).get("lineages", {})
        records = {int(number): record for number, record in lineages.get(behavior, {"records": []})["records"]}
        played = [record for lineage in lineages.values() for _, record in lineage["records"]]
        members, met = _league(run_folder, checkpoint)
        listed = _listed_exports(run_folder, behavior)
        require(int(trainer["step"]) in listed, f"training_status.json lacks step {trainer['step']}: {listed}")
        standing = cls(
            checkpoint.number,
            int(trainer["step"]),
            int(trainer["version"]),
            records.get(-1, {"rating": 0.0})["rating"],
            sum(record["wins"] + record["draws"] + record["losses"] for record in played),
            {number: record["step"] for number, record in records.items() if number >= 0},
            _lessons(checkpoint),
            listed,
            tuple(step_in_name(path) for path in exports_by_step(run_folder / behavior, behavior)),
            _replayed(checkpoint),
            _recorded(run_folder, checkpoint, int(trainer["step"]), earlier, went_on_from),
            members,
            met,
        )
        if earlier is not None:
            standing.assert_not_behind(earlier)
        return standing

    def assert_not_behind(self, earlier: Standing) -> None:
        """Check that nothing is behind the progress before the last start.

        Raises:
            Violation: if a value went back; the message names it.
        """
        for name in ("checkpoint", "step", "version", "games", "replayed"):
            now, before = getattr(self, name), getattr(earlier, name)
            require(now >= before, f"{name} went back from {before} to {now}")
        moved, most = abs(self.rating - earlier.rating), MOST_POINTS * (self.games - earlier.games)
        require(moved <= most, f"the rating moved by {moved} points in {self.games - earlier.games} games")
        for number, step in earlier.snapshots.items():
            require(self.snapshots.get(number) == step, f"snapshot {number} of step {step} is gone")
        kept = self.members[: len(earlier.members)]
        require(kept == earlier.members, f"members of the league have changed: {earlier.members} became {kept}")
        for pair, games in earlier.met.items():
            require(self.met.get(pair, 0) >= games, f"of {games} games of {pair}, {self.met.get(pair, 0)} are left")
        for name, lesson in earlier.lessons.items():
            now = self.lessons.get(name, -1)
            require(now >= lesson, f"the lesson of {name} went back from {lesson} to {now}")
        newest = max(earlier.exports, default=0)
        require(max(self.exports, default=0) >= newest, f"training_status.json went back behind step {newest}")
        unlisted = {step for step in earlier.exports if step <= earlier.step and step in self.exported} - {
            *self.exports
        }
        require(not unlisted, f"training_status.json lacks steps {unlisted}: {self.exports}")


MOST_POINTS = 16.0
"""`elo_k`: the maximum change of a rating in one game."""


def _newest(run_folder: Path) -> Checkpoint | None:
    try:
        return newest_checkpoint(run_folder / "checkpoints")
    except CheckpointError as error:
        raise Violation(str(error)) from error


def _league(run_folder: Path, checkpoint: Checkpoint) -> tuple[tuple[str, ...], Mapping[tuple[int, int], int]]:
    """Return the hashes of a league's members, whose files must be intact, and the games of each pair of players."""
    if "league@main" not in checkpoint.parts:
        return (), {}
    state = checkpoint.read("league@main")
    home = next(name for name, part in state.items() if isinstance(part, Mapping) and "members" in part)
    try:
        check_members(run_folder / home / FOLDER, state[home]["members"])
    except StageError as error:
        raise Violation(str(error)) from error
    met = {(a, b): games for a, b, games, *_ in state[home]["payoffs"]["pairs"] if a < b}
    return tuple(member["hash"] for member in state[home]["members"]), met


def _assert_all_whole(run_folder: Path) -> None:
    for checkpoint in each_checkpoint(run_folder / "checkpoints"):
        if isinstance(checkpoint, CheckpointError):
            raise Violation(str(checkpoint))
        try:
            checkpoint.check()
        except CheckpointError as error:
            raise Violation(str(error)) from error


def _listed_exports(run_folder: Path, behavior: str) -> tuple[int, ...]:
    """Return the steps of the listed policies; the newest file must exist, older ones may have just been removed."""
    path = run_folder / "run_logs" / "training_status.json"
    try:
        entries = json.loads(path.read_text()).get(behavior, {}).get("checkpoints", [])
    except FileNotFoundError:
        return ()
    except ValueError as error:
        raise Violation(f"{path}: {error}") from error
    for entry in entries[-1:]:
        file = run_folder.parents[1] / entry["file_path"]  # relative to where the command was called
        require(file.is_file() and file.stat().st_size > 0, f"{path} lists {file}, which is missing")
    return tuple(int(entry["steps"]) for entry in entries)


def _replayed(checkpoint: Checkpoint) -> int:
    """Return the number of rows in the replay memory next to a checkpoint's parts; 0 without one."""
    for path in checkpoint.folder.glob("replay-*.bin"):
        with ZipFile(path) as archive:
            header = json.loads(archive.read(HEADER))
        return int(header["facts"]["count"])
    return 0


def _recorded(
    run_folder: Path, checkpoint: Checkpoint, step: int, earlier: Standing | None, went_on_from: Collection[int]
) -> dict[str, int]:
    """Count the complete frames of each recording; the newest recording must contain every row up to the checkpoint.

    Each learner begins a file. The replacement of a lost learner immediately saves the missing part of a checkpoint in
    progress.
    """
    frames: dict[str, int] = {}
    before = earlier.streams if earlier is not None else {}
    begun_at = {0 if earlier is None else earlier.step, *went_on_from}
    reached = checkpoint.number == (earlier.checkpoint if earlier is not None else -1) or step in went_on_from
    for path in sorted((run_folder / "streams").glob("*.stream")):
        rows = 0
        number = 0
        try:
            reader = StreamReader(path)
            for frame in reader:
                number += 1
                match frame.message:
                    case TrajectoryBatch() as batch:
                        rows += batch.num_rows
                    case Barrier(number=cut) if cut == checkpoint.number and path.name not in before:
                        told = f"{path}: {rows} rows from one of {sorted(begun_at)} up to step {step}"
                        require(step - rows in begun_at or step in went_on_from, told)
                        reached = True
        except StreamError as error:
            require(path.name not in before and number == 0, str(error))
        frames[path.name] = number
        require(number >= before.get(path.name, 0), f"{path} lost frames: {before.get(path.name)} became {number}")
    require(reached or not frames, f"no recording reaches checkpoint {checkpoint.number}")
    return frames
