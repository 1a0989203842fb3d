"""What recordings say of the run that they come from, without replaying them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from queues.stream_reader import StreamReader
from stages.replay.source import resolve_streams

TRAINER_EDGE = "trainer"
"""The edge before a trainer: what was recorded there has all other stages behind it."""


def recorded_seed(streams: Sequence[str | Path]) -> int:
    """The seed of the first recording's run, -1 if it does not say.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    header = StreamReader(resolve_streams(streams)[0]).header
    seed = header.config.get("env_settings", {}).get("seed", -1)
    return int(seed)


def recorded_agents(streams: Sequence[str | Path]) -> int | None:
    """How many agents acted at a time in the first recording's run, by its configuration: environments × actors.

    Returns:
        None if it does not say.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    config = StreamReader(resolve_streams(streams)[0]).header.config
    try:
        environments = (config.get("environment") or config["env_settings"])["num_envs"]
        return int(environments) * int(config["pipeline"]["hosts"]["actors"]["replicas"])
    except KeyError:
        return None


def recorded_behaviors(streams: Sequence[str | Path], edge: str) -> frozenset[str]:
    """Names of the behaviours that were recorded at an edge.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    headers = [StreamReader(path).header for path in resolve_streams(streams)]
    return frozenset(spec.name for header in headers if edge in header.edges for spec in header.specs)


def recorded_edge(streams: Sequence[str | Path]) -> str:
    """Which edge of the recordings to replay: the trainer's inlet if any was recorded there, else the other.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    edges = {edge for path in resolve_streams(streams) for edge in StreamReader(path).header.edges}
    return TRAINER_EDGE if TRAINER_EDGE in edges else min(edges)
