"""Reads demonstrations from Headrace recordings, in which the policy that acted is the expert.

Recordings made at either edge can be read. A trajectory may be only a piece of an episode. Each episode's pieces are
joined in order.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.trainers import declared_kind
from headrace.queues.columns import TRAJECTORY_COLUMNS, observation_columns, row_columns
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.queues.stream_file import StreamHeader, StreamReader
from headrace.stages.errors import StageError
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, rows_between

log = logging.getLogger(__name__)

_TRAINER_EDGE = "trainer"
_KEYS = ("lengths", "agent_ids", "episode_ids", "terminated", "truncated", "learning")
"""Trajectory columns needed to join the pieces of episodes."""


def read_stream(path: Path, behavior: str, _: BehaviorSpec | None = None) -> Demonstrations | None:
    """Read the steps that the learning policy made, for one behaviour; return None if there are no steps.

    Raises:
        StreamError: if the file is not a stream.
        StageError: if the file has several behaviours but none with this name, or a message lacks a column. A file with
            a single behaviour is read regardless of the behaviour's name.
    """
    reader = StreamReader(path)
    by_name = {spec.name: spec for spec in reader.header.specs}
    if behavior not in by_name and len(by_name) != 1:
        raise StageError(
            f"{path}: it contains no steps of {behavior}, only of {', '.join(sorted(by_name)) or 'nobody'}; expected a "
            "stream of that behaviour, or of a single behaviour"
        )
    spec = by_name.get(behavior) or next(iter(by_name.values()))
    edge = _TRAINER_EDGE if _TRAINER_EDGE in reader.header.edges else min(reader.header.edges)
    batches = [
        frame.message
        for frame in reader
        if frame.edge == edge
        and isinstance(frame.message, TrajectoryBatch)
        and frame.message.behavior == spec.name
        and frame.message.num_rows
    ]
    for batch in batches:
        _check_columns(batch, spec, path)
    if reader.damage:
        log.warning("using the demonstrations up to the last complete message: %s", reader.damage)
    batches = [batch for batch in batches if batch.trajectories["learning"].any()]
    if not batches:
        return None
    return _demonstrations(batches, spec, squashed=spec.name in reader.header.squashed)


def without_doubles(files: Sequence[Path]) -> list[Path]:
    """Return the files, except those that duplicate another file's content.

    Files can be duplicates for three reasons: a run may be recorded at both edges; a student has the same input as its
    teacher; and human play is recorded both as a stream and as a `.demo` file with the same name.

    Raises:
        StreamError: if a `.stream` file is not a stream file.
    """
    headers = {file: StreamReader(file).header for file in files if file.suffix == ".stream"}
    at_trainers = [header for header in headers.values() if _TRAINER_EDGE in header.edges]
    runs = {header.run_id for header in at_trainers}
    receivers = {(header.run_id, spec.name) for header in at_trainers for spec in header.specs}

    def doubled(header: StreamHeader) -> bool:
        if _TRAINER_EDGE not in header.edges:
            return header.run_id in runs
        return all((header.run_id, _teacher(header.config, spec.name)) in receivers for spec in header.specs)

    doubles = {file for file, header in headers.items() if doubled(header)}
    doubles |= {file.with_suffix(".demo") for file in headers}
    return [file for file in files if file not in doubles]


def _check_columns(batch: TrajectoryBatch, spec: BehaviorSpec, path: Path) -> None:
    """Check that a batch has the columns needed, because any program may have written the file."""
    needed = [
        column for column in row_columns(replace(spec, grouped=False, action_repeat=None)) if column.name != "log_probs"
    ]
    finals = [*observation_columns(spec, "next_obs_"), *(c for c in TRAJECTORY_COLUMNS if c.name in _KEYS)]
    for axis, columns, table in (("rows", needed, batch.rows), ("trajectories", finals, batch.trajectories)):
        for column in columns:
            array = table.get(column.name)
            if array is None and column.name == "action_masks":
                continue  # masks are not needed to learn from actions that were allowed
            if array is None or (array.shape[1:], array.dtype.kind) != (column.shape, _kind(column.dtype)):
                actual = "none" if array is None else f"{array.dtype}{list(array.shape[1:])}"
                raise StageError(
                    f"{path}: a batch of {batch.behavior_id!r} is not usable as demonstrations: expected {axis} "
                    f"{column.name} of {column.dtype}{list(column.shape)}, got {actual}"
                )
    if (batch.trajectories["lengths"] < 0).any():
        raise StageError(f"{path}: a batch of {batch.behavior_id!r} has trajectories of negative length")


def _kind(dtype: str) -> str:
    """Return the kind of the dtype with this name; empty if no dtype has that name."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return ""


def _teacher(config: Mapping[str, Any], behavior: str) -> str | None:
    """Return the behaviour whose trajectories this behaviour imitated; None if it did not imitate."""
    settings = config.get("behaviors", {}).get(behavior) or config.get("default_settings") or {}
    teacher = (settings.get("hyperparameters") or {}).get("teacher")
    return str(teacher) if declared_kind(settings.get("trainer_type")).imitates and teacher else None


def _demonstrations(batches: Sequence[TrajectoryBatch], spec: BehaviorSpec, squashed: bool) -> Demonstrations:
    trajectories = _joined([batch.trajectories for batch in batches])
    sources, counts = [batch.source for batch in batches], [batch.num_trajectories for batch in batches]
    order, starts = _in_order({**trajectories, "sources": np.repeat(sources, counts)})
    stops = np.cumsum(trajectories["lengths"], dtype=np.int64)[order]
    ends = {name: column[order] for name, column in trajectories.items()}
    where = rows_between(stops - ends["lengths"], stops)
    rows = {name: column[where] for name, column in _joined([batch.rows for batch in batches]).items()}
    drawn = rows.get("continuous_actions", np.empty((len(where), 0), np.float32))
    return Demonstrations(
        spec,
        tuple(rows[column.name] for column in observation_columns(spec)),
        tuple(ends[column.name] for column in observation_columns(spec, "next_obs_")),
        environment_actions(spec.actions, drawn, squashed),
        rows.get("discrete_actions", np.empty((len(where), 0))).astype(np.int64),
        rows["rewards"],
        ends["lengths"].astype(np.int64),
        ends["terminated"],
        starts,
        rows.get("action_masks"),
    )


def _joined(tables: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate the batches' columns, keeping only those that all batches have."""
    names = set(tables[0]).intersection(*tables[1:])
    return {name: np.concatenate([table[name] for table in tables]) for name in sorted(names)}


def _in_order(trajectories: Mapping[str, Array]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Order trajectories by agent and episode, and those of one episode by recording time.

    Returns:
        Indices [K] of the learning policy's trajectories, and flags [K], true for those that begin an episode or follow
        another policy's trajectory.
    """
    keys = [trajectories[name] for name in ("sources", "agent_ids", "episode_ids")]
    order = np.lexsort(keys[::-1])  # stable: an episode's pieces stay in recording order
    ended = (trajectories["terminated"] | trajectories["truncated"])[order]
    learning = trajectories["learning"][order]
    starts = np.ones(len(order), np.bool_)
    same = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
    starts[1:] = ~same | ended[:-1] | ~learning[:-1]
    return order[learning], starts[learning]
