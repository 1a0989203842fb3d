"""Reads demonstrations recorded by the Godot RL Agents addon (`expert_demos.json`, mode *Record Expert Demos*).

A file is a list of episodes. Each is a pair: the observations (only those under the key `obs`), and the actions, one
fewer than the observations. An action is a flat list of numbers in the order of the game's keys; a discrete action is
one number. The file contains neither keys nor spaces, so the environment of the learning behaviour must provide them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import GODOT, BehaviorSpec
from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.godot.messages import read_json
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, reject, within_bounds

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
