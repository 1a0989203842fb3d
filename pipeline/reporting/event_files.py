"""Curves from the event files of a run: what it has written for TensorBoard, live page or not."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.pipeline.reporting.history import History

_LENGTH = struct.Struct("<Q")
_HEAD, _TAIL = 12, 4
"""Bytes of a record before its content (a length and its checksum) and behind it (the content's checksum)."""
_MOST_BYTES = 64 * 2**20
"""Of a record; more says that the file is damaged."""
_RESTART = 1
"""`SessionLog.START`: what was written before, from this step on, does not count."""


def read_events(run_folder: Path, names: Mapping[str, str], history: History) -> None:
    """Add to a history what a run's event files hold; damaged ones up to the damage.

    Args:
        run_folder: `results/<run-id>`.
        names: by the folder's name, the behaviour's, where it is another one.
        history: where the points go.
    """
    for path in sorted(run_folder.glob("*/events.out.tfevents.*")):
        category = names.get(path.parent.name, path.parent.name)
        for event in _events(path):
            if event.HasField("session_log"):
                if event.session_log.status == _RESTART:
                    history.rewind(category, event.step - 1)
                continue
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    history.add(category, value.tag, (event.step, event.wall_time, value.simple_value))
    history.take_fresh()


def _events(path: Path) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    try:
        with path.open("rb") as file:
            while len(head := file.read(_HEAD)) == _HEAD:
                (length,) = _LENGTH.unpack_from(head)
                if length > _MOST_BYTES:
                    return
                content = file.read(length)
                if len(file.read(_TAIL)) < _TAIL:
                    return
                yield event_pb2.Event.FromString(content)
    except (OSError, DecodeError):  # it ends here
        return
