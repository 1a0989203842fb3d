"""Loads the demonstrations at a `demo_path`: finds the files, reads them, and checks their content.

A file's suffix determines its format. To read another format, write a `Reader` and add it to `READERS`. The readers of
all formats but Unity's (`unity_demos`) are here.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.brains import play_all_games
from headrace.config.trainers import declared_kind
from headrace.queues.columns import TRAJECTORY_COLUMNS, observation_columns, row_columns
from headrace.queues.disks import answered
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import GODOT, ActionSpec, BehaviorSpec, ObservationSpec
from headrace.queues.stream_file import StreamHeader, StreamReader
from headrace.stages.action_units import box_units
from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.godot.messages import read_json
from headrace.stages.errors import StageError
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.trainer.imitation.demonstrations import (
    Demonstrations,
    checked,
    joined,
    reject,
    rows_between,
    within_bounds,
)
from headrace.startup_context import absolute

if TYPE_CHECKING:
    from gymnasium import Space

log = logging.getLogger(__name__)

Reader = Callable[[Path, str, BehaviorSpec | None], Demonstrations | None]
"""A function that takes a path, a behaviour name and a spec, and returns the behaviour's steps with the spec that they
were recorded with; None if there are no steps.

The third argument is the learner's spec, for formats that store no spec or that have several forms of an observation.
It is None without an environment.

The caller checks spec and numbers. A reader raises StageError or StreamError if the file is broken or has a different
format."""


# Headrace's recordings, in which the policy that acted is the expert. If brains played all games of a behaviour, the
# brains are the experts. Recordings made at either edge can be read. A trajectory may be only a piece of an episode.
# Each episode's pieces are joined in order.

_TRAINER_EDGE = "trainer"
_KEYS = ("lengths", "agent_ids", "episode_ids", "terminated", "truncated", "learning")
"""Trajectory columns needed to join the pieces of episodes."""


def read_stream(path: Path, behavior: str, _: BehaviorSpec | None = None) -> Demonstrations | None:
    """Read the steps that the learning policy made, for one behaviour; return None if there are no steps.

    If the behaviour never learned, because brains played all its games, read their steps.

    Raises:
        StreamError: if the file is not a stream.
        StageError: if the file has several behaviours but none with this name, or a message lacks a column. A file with
            a single behaviour is read regardless of the behaviour's name.
    """
    reader = StreamReader(path)
    spec = _spec_of(reader.header, behavior)
    if spec is None:
        names = ", ".join(sorted({spec.name for spec in reader.header.specs})) or "nobody"
        raise StageError(
            f"{path}: it contains no steps of {behavior}, only of {names}; expected a stream of that behaviour, or of "
            "a single behaviour"
        )
    edge = _TRAINER_EDGE if _TRAINER_EDGE in reader.header.edges else min(reader.header.edges, default="")
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
    if _played_by_brains(reader.header, spec.name):  # all of them are experts
        batches = [batch.replace(learning=np.ones_like(batch.trajectories["learning"])) for batch in batches]
    batches = [batch for batch in batches if batch.trajectories["learning"].any()]
    if not batches:
        return None
    return _demonstrations(batches, spec, squashed=spec.name in reader.header.squashed)


def without_doubles(files: Sequence[Path], behavior: str) -> list[Path]:
    """Return the files with a behaviour's steps, except those that duplicate another file's content.

    Files can be duplicates for three reasons: a run may be recorded at both edges; a student has the same input as its
    teacher; and human play is recorded both as a stream and as a `.demo` file with the same name. If one of a run's
    streams has the behaviour, the run's streams without it are left out.

    Raises:
        StreamError: if a `.stream` file is not a stream file.
    """
    headers = {file: StreamReader(file).header for file in files if file.suffix == ".stream"}
    at_trainers = [header for header in headers.values() if _TRAINER_EDGE in header.edges]
    runs = {header.run_id for header in at_trainers}
    receivers = {(header.run_id, spec.name) for header in at_trainers for spec in header.specs}
    teachers = {(header.run_id, _teacher(header.config, spec.name)) for header in at_trainers for spec in header.specs}

    def doubled(header: StreamHeader) -> bool:
        if _TRAINER_EDGE not in header.edges:
            spec = _spec_of(header, behavior)
            if spec is not None and _played_by_brains(header, spec.name):  # only a student's trainer gets its steps
                return (header.run_id, spec.name) in teachers
            return header.run_id in runs
        return all((header.run_id, _teacher(header.config, spec.name)) in receivers for spec in header.specs)

    left = {file: header for file, header in headers.items() if not doubled(header)}
    named = {file for file, header in left.items() if any(spec.name == behavior for spec in header.specs)}
    of_run = {left[file].run_id for file in named}
    left_out = {file for file in headers if file not in left or (file not in named and left[file].run_id in of_run)}
    left_out |= {file.with_suffix(".demo") for file in headers}
    return [file for file in files if file not in left_out]


def _spec_of(header: StreamHeader, behavior: str) -> BehaviorSpec | None:
    """Return the spec of the behaviour with this name, or of a file's only behaviour; None if there is neither."""
    by_name = {spec.name: spec for spec in header.specs}
    return by_name.get(behavior) or (next(iter(by_name.values())) if len(by_name) == 1 else None)


def _played_by_brains(header: StreamHeader, behavior: str) -> bool:
    """Return True if brains that do not learn played all games of a behaviour or, for a student, of its teacher."""
    return play_all_games(_block(header.config, _teacher(header.config, behavior) or behavior))


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
    settings = _block(config, behavior)
    teacher = (settings.get("hyperparameters") or {}).get("teacher")
    return str(teacher) if declared_kind(settings.get("trainer_type")).imitates and teacher else None


def _block(config: Mapping[str, Any], behavior: str) -> Mapping[str, Any]:
    """Return a behaviour's settings in a recorded run's configuration."""
    return config.get("behaviors", {}).get(behavior) or config.get("default_settings") or {}


def _demonstrations(batches: Sequence[TrajectoryBatch], spec: BehaviorSpec, squashed: bool) -> Demonstrations:
    trajectories = _concatenated([batch.trajectories for batch in batches])
    sources, counts = [batch.source for batch in batches], [batch.num_trajectories for batch in batches]
    order, starts = _in_order({**trajectories, "sources": np.repeat(sources, counts)})
    stops = np.cumsum(trajectories["lengths"], dtype=np.int64)[order]
    ends = {name: column[order] for name, column in trajectories.items()}
    where = rows_between(stops - ends["lengths"], stops)
    rows = {name: column[where] for name, column in _concatenated([batch.rows for batch in batches]).items()}
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


def _concatenated(tables: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
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


# Recordings made by the Godot RL Agents addon (`expert_demos.json`, mode *Record Expert Demos*). A file is a list of
# episodes. Each is a pair: the observations (only those under the key `obs`), and the actions, one fewer than the
# observations. An action is a flat list of numbers in the order of the game's keys; a discrete action is one number.
# The file contains neither keys nor spaces, so the environment of the learning behaviour must provide them.

_RECORDED_KEY = "obs"


def read_godot_demos(path: Path, behavior: str, spec: BehaviorSpec | None) -> Demonstrations | None:
    """Read the episodes in a file; return None if they have no steps.

    An episode's last observation is dropped, because the addon records it after the game has begun the next episode.
    Each episode counts as terminated, because the addon does not write unfinished episodes.

    Args:
        path: the file's path.
        behavior: the behaviour's name, for use in messages.
        spec: the spec of the behaviour that learns from the file; None without an environment.

    Raises:
        StageError: if the file was not recorded by Godot's addon, or the behaviour does not belong to a Godot game that
            observes only `obs`.
    """
    if spec is None or spec.spaces is None or GODOT not in spec.spaces:
        raise StageError(
            f"{path}: recordings made by Godot's addon do not describe their spaces, so only a run of the game can "
            f"use this file: set it as the demo_path of {behavior} in a run with environment.kind: godot"
        )
    names = [observation.name for observation in spec.observations]
    if names != [_RECORDED_KEY] or len(spec.observations[0].shape) != 1:
        raise StageError(
            f"{path}: {behavior} observes {', '.join(names)}; Godot's addon only records the key {_RECORDED_KEY!r}, "
            "so only an agent whose get_obs() returns nothing else can learn from this file"
        )
    try:
        content = read_json(path.read_bytes())
        if not isinstance(content, list):
            raise MessageError("expected a list of episodes")
    except OSError as error:
        raise StageError(f"{path}: can't be read: {error.strerror or error}") from error
    except MessageError as error:
        raise StageError(f"{path}: is not a recording made by Godot's addon: {error}") from None
    width = spec.observations[0].size
    discrete = [action["action_type"] == "discrete" for action in spec.spaces[GODOT]["actions"]]
    sizes = [1 if action["action_type"] == "discrete" else action["size"] for action in spec.spaces[GODOT]["actions"]]
    observed, acted = list[NDArray[np.float32]](), list[NDArray[np.float32]]()
    for number, episode in enumerate(content, start=1):
        where = f"{path}: episode {number}"
        if not isinstance(episode, list) or len(episode) != 2 or not all(isinstance(part, list) for part in episode):
            raise StageError(f"{where}: expected a pair of observations and actions, as Godot's addon records them")
        observations, actions = episode
        if len(observations) != len(actions) + 1:
            raise StageError(
                f"{where} has {len(observations)} observations and {len(actions)} actions; expected one fewer action "
                "than observations"
            )
        if actions:
            observed.append(_rows(where, "observation", observations[:-1], width))
            acted.append(_rows(where, "action", actions, sum(sizes)))
    if not acted:
        return None
    lengths = np.array([len(rows) for rows in acted], np.int64)
    drawn, branch = np.concatenate(acted), np.repeat(discrete, sizes)
    choices = drawn[:, branch]
    reject(str(path), "discrete_actions", choices, choices != np.round(choices), "expected an integer", lengths)
    return Demonstrations(
        spec,
        (np.concatenate(observed),),
        (np.zeros((len(lengths), width), np.float32),),
        within_bounds(drawn[:, ~branch], path),
        choices.astype(np.int64),
        np.zeros(len(drawn), np.float32),  # not recorded
        lengths,
        np.ones(len(lengths), np.bool_),
        np.ones(len(lengths), np.bool_),
    )


def looks_recorded(path: Path) -> bool:
    """Return True if a file begins like a recording; a folder may also contain other JSON files."""
    with path.open("rb") as file:
        return b"".join(file.read(64).split()).startswith((b"[[", b"[]"))


def _rows(where: str, what: str, rows: list[Any], size: int) -> NDArray[np.float32]:
    """Convert rows of numbers to an array [T, size]; null becomes NaN, which a later check reports."""
    for step, row in enumerate(rows, start=1):
        if not isinstance(row, list) or len(row) != size:
            content = f"{len(row)} numbers" if isinstance(row, list) else repr(row)
            raise StageError(
                f"{where}, step {step}: its {what} has {content}, but the game declares {size}; was the file recorded "
                "with a different version of the game?"
            )
    try:
        return np.array(rows, np.float32)
    except (TypeError, ValueError) as error:
        raise StageError(f"{where}: an {what} contains something other than numbers: {error}") from None


# Minari data sets (https://minari.farama.org), Gymnasium's format for recorded episodes, that are on this machine.
# Supported data sets have vector observations (a Box with at most one axis) and Box, Discrete or MultiDiscrete actions.

PREFIX = "minari:"
"""The prefix of a `demo_path` that names a Minari data set."""


def read_minari(path: str, behavior: str) -> Demonstrations:
    """Read the episodes of the data set that a `demo_path` names; the spec gets the behaviour's name.

    An episode of T steps has T + 1 observations.

    Raises:
        StageError: if minari, or a package that it needs to read files, is not installed; if the data set is not on
            this machine or is empty; or if its spaces are not supported.
    """
    where, dataset_id = f"behaviors.{behavior}: demo_path '{path}'", path.removeprefix(PREFIX)
    try:
        dataset = import_module("minari").load_dataset(dataset_id)
    except ImportError as error:  # packages that read files are a separate extra
        raise StageError(
            f'{where}: Minari or one of its extras is not installed; run: pip install "minari[hdf5,hf]"'
        ) from error
    except FileNotFoundError as error:
        raise StageError(
            f"{where}: the dataset is not on this machine; download it first: minari download {dataset_id}"
        ) from error
    from gymnasium import spaces

    observation_space = dataset.observation_space
    if not (isinstance(observation_space, spaces.Box) and len(observation_space.shape) < 2):
        raise StageError(
            f"{where}: its observation space is {observation_space}; Headrace only reads one-dimensional Box spaces"
        )
    whole = [episode for episode in dataset.iterate_episodes() if len(episode.rewards)]
    if not whole:
        raise StageError(f"{where}: the dataset has no steps")
    size = int(np.prod(observation_space.shape))
    observed = [np.asarray(episode.observations, np.float32).reshape(-1, size) for episode in whole]
    drawn = np.concatenate([np.asarray(episode.actions) for episode in whole])
    actions, continuous, choices = _decided(dataset.action_space, drawn, where)
    return Demonstrations(
        BehaviorSpec(behavior, (ObservationSpec("observation", (size,)),), actions),
        (np.concatenate([rows[:-1] for rows in observed]),),
        (np.stack([rows[-1] for rows in observed]),),
        continuous,
        choices,
        np.concatenate([np.asarray(episode.rewards, np.float32) for episode in whole]),
        np.array([len(episode.rewards) for episode in whole], np.int64),
        np.array([bool(episode.terminations[-1]) for episode in whole]),
        np.ones(len(whole), np.bool_),
    )


def _decided(space: Space[Any], drawn: Array, where: str) -> tuple[ActionSpec, NDArray[np.float32], NDArray[np.int64]]:
    """Convert the actions of N steps; return the spec, continuous actions [N, C] and choices [N, branches]."""
    from gymnasium import spaces

    n = len(drawn)
    if isinstance(space, spaces.Box):
        # Scale each bounded dimension from [low, high] to [-1, 1], the inverse of the scaling in environments.
        units = box_units(space.low, space.high)
        half = np.where(units.half, units.half, 1.0)  # an action that has a single possible value
        continuous = ((drawn.reshape(n, -1) - units.middle) / half).astype(np.float32)
        spec = ActionSpec(len(half), unbounded=tuple(np.flatnonzero(~units.scaled).tolist()))
        return spec, continuous, np.empty((n, 0), np.int64)
    if isinstance(space, spaces.Discrete):
        sizes, start = [int(space.n)], np.array([space.start])
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, start = space.nvec.ravel().tolist(), np.ravel(space.start)
    else:
        raise StageError(f"{where}: its action space is {space}; Headrace only reads Box, Discrete and MultiDiscrete")
    choices = drawn.reshape(n, len(sizes)).astype(np.int64) - start
    return ActionSpec(discrete_branches=tuple(sizes)), np.empty((n, 0), np.float32), choices


# The table of formats.


def _read_unity_demo(path: Path, behavior: str, spec: BehaviorSpec | None) -> Demonstrations | None:
    from headrace.stages.trainer.imitation import unity_demos  # few learners need protobuf and Unity's formats

    return unity_demos.read_unity_demo(path, behavior, spec)


READERS: dict[str, Reader] = {".demo": _read_unity_demo, ".stream": read_stream, ".json": read_godot_demos}
"""The reader for each file suffix."""


# Finding and loading the demonstrations at a `demo_path`.


def load_demonstrations(path: str, wanted: BehaviorSpec | str, folder: Path | None = None) -> Demonstrations:
    """Load all demonstrations at a `demo_path`, in file name order.

    Args:
        path: a file, a folder (all its readable files are loaded), a pattern, or `minari:<data set id>`; a relative
            path is looked up in `folder`, then in the working directory.
        wanted: the learning behaviour's spec; or, without an environment, only the behaviour's name, which the recorded
            spec then gets.
        folder: the YAML's folder.

    Raises:
        StageError: if no file exists, a file can't be read or is empty, observations or actions differ from the
            behaviour's or between files, a number is NaN or infinite, or an action is out of bounds.
        StreamError: if a `.stream` file is not a stream file.
    """
    behavior, spec = (wanted, None) if isinstance(wanted, str) else (wanted.name, wanted)
    parts: list[Demonstrations] = []
    minari = path.startswith(PREFIX)
    files = [Path(path)] if minari else answered(path, _files, path, behavior, folder)
    for file in files:
        part = read_minari(path, behavior) if minari else READERS[file.suffix](file, behavior, spec)
        if part is None:
            continue
        spec = spec or replace(part.spec, behavior_id=behavior)
        parts.append(checked(part, spec, path if minari else str(file)))
    if not parts:
        raise StageError(
            f"behaviors.{behavior}: demo_path {path!r}: the recording contains no steps of {behavior}; if a brain "
            "controlled it, its steps are only recorded with broadcast: set broadcast: true for the behaviour and "
            "record.edges: [agent_processor] in the YAML of the recorded run, and record again"
        )
    demonstrations = joined(parts)
    log.info(
        "%s: %d demonstrated steps in %d episodes from %s",
        *(behavior, len(demonstrations), len(demonstrations.episode_lengths), path),
    )
    return demonstrations


def needs_spec(path: str, behavior: str, folder: Path | None = None) -> bool:
    """Return True if the files at a `demo_path` don't store spaces, so the environment must provide them.

    The files must exist and be in a readable format, but their content is not read.

    Raises:
        StageError: as for `load_demonstrations`.
    """
    return not path.startswith(PREFIX) and any(
        file.suffix == ".json" for file in answered(path, _files, path, behavior, folder)
    )


def _files(path: str, behavior: str, folder: Path | None) -> list[Path]:
    """Return the readable files at a `demo_path`; only a folder or a pattern may also stand for other files."""
    where = f"behaviors.{behavior}: demo_path {path!r}"
    candidates = [absolute(path)] if folder is None else [folder / path, absolute(path)]
    for candidate in candidates:
        if candidate.is_dir():
            matches = sorted(candidate.iterdir())
            break
        matches = (
            [candidate] if candidate.is_file() else list(map(Path, sorted(glob.glob(str(candidate), recursive=True))))
        )
        if matches:
            break
    else:
        looked = " and ".join(dict.fromkeys(str(candidate.parent) for candidate in candidates))
        raise StageError(f"{where}: no file or folder matches; looked in {looked}")
    files = [file for file in matches if file.is_file()]
    readable = [
        file
        for file in files
        if file.suffix in READERS and (file.suffix != ".json" or file == candidate or looks_recorded(file))
    ]
    left_out = sorted({file.name for file in files} - {file.name for file in readable})
    if not readable:
        *others, last = READERS
        raise StageError(
            f"{where}: expected {', '.join(others)} or {last} files; found {', '.join(left_out) or 'an empty folder'}"
        )
    if left_out:
        log.info("%s: skipped these files, which are not in a format for demonstrations: %s", path, ", ".join(left_out))
    return without_doubles(readable, behavior)
