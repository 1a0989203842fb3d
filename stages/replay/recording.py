"""What recordings say of the run that they come from, without replaying them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from queues.specs import BehaviorSpec
from queues.stream_reader import StreamReader
from stages.replay.source import resolve_streams


def recorded_specs(streams: Sequence[str | Path], edge: str) -> list[BehaviorSpec]:
    """The behaviour specs in the headers of the streams that hold an edge, one per behaviour id.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    readers = [StreamReader(path) for path in resolve_streams(streams)]
    specs = {
        s.behavior_id: s for reader in readers if edge in reader.header.edges for s in reader.header.specs
    }
    return list(specs.values())


def recorded_seed(streams: Sequence[str | Path]) -> int:
    """The seed of the first recording's run, -1 if it does not say.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    header = StreamReader(resolve_streams(streams)[0]).header
    seed = header.config.get("env_settings", {}).get("seed", -1)
    return int(seed)
