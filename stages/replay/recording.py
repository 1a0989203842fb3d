"""Properties of the run that recordings come from, read without replaying them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.queues.stream_reader import StreamReader
from headrace.stages.replay.source import TRAINER_EDGE, resolve_streams


def recorded_seed(streams: Sequence[str | Path]) -> int:
    """The seed of the first recording's run, -1 if it is not stated.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    header = StreamReader(resolve_streams(streams)[0]).header
    seed = header.config.get("env_settings", {}).get("seed", -1)
    return int(seed)


def recorded_agents(streams: Sequence[str | Path]) -> int | None:
    """The number of agents that acted at a time in the first recording's run: environments × actors, None if unknown.

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
    """The edge of the recordings to replay: the trainer's inlet if it was recorded, else the other one.

    Raises:
        StageError: if a pattern matches nothing.
        StreamError: if a file is no stream.
    """
    edges = {edge for path in resolve_streams(streams) for edge in StreamReader(path).header.edges}
    return TRAINER_EDGE if TRAINER_EDGE in edges else min(edges)
