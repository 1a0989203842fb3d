"""What whole runs leave on disk: checkpoints, checksums of what is in them, recordings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.pipeline.run_folder.checkpoint import MANIFEST, newest_checkpoint


def read_whole_checkpoint(run_folder: Path) -> dict[str, Any]:
    """The states in the newest checkpoint, by part; checks that there is one and that it is whole."""
    checkpoint = newest_checkpoint(run_folder / "checkpoints")
    assert checkpoint is not None, f"no checkpoint in {run_folder}"
    return {name: checkpoint.read(name) for name in checkpoint.parts}


def digest(state: Any) -> str:
    """A checksum of every number in a state."""
    made = hashlib.sha256()
    _feed(state, made.update)
    return made.hexdigest()


def weights_digest(run_folder: Path, behavior: str = "CartPole") -> str:
    """A checksum of the weights of the policy that a trainer has published last."""
    return digest(read_whole_checkpoint(run_folder)[f"trainer@learner-{behavior}"]["policy"]["weights"])


def manifest(run_folder: Path) -> Path:
    """The file that makes the newest checkpoint real."""
    checkpoint = newest_checkpoint(run_folder / "checkpoints")
    assert checkpoint is not None, f"no checkpoint in {run_folder}"
    return checkpoint.folder / MANIFEST


def tags(run_folder: Path, behavior: str) -> set[str]:
    """Everything in a behaviour's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_folder / behavior)).Reload().Tags()
    return {tag for kind in ("scalars", "histograms", "tensors") for tag in found[kind]}


def streams(run_folder: Path) -> Sequence[str]:
    """The recordings of a run."""
    return sorted(str(path) for path in (run_folder / "streams").glob("*.stream"))


def _feed(value: Any, take: Callable[[bytes], None]) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            take(str(key).encode())
            _feed(value[key], take)
    elif isinstance(value, list | tuple):
        for inner in value:
            _feed(inner, take)
    elif isinstance(value, np.ndarray):
        take(f"{value.dtype}{value.shape}".encode())
        take(value.tobytes())
    else:
        take(repr(value).encode())
