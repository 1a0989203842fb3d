"""The `record` and `replay` sections: recording a run as streams, and learning from such streams."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict

from headrace.config.fields import Names, Settings, as_tuple, to_number

Edge = Literal["agent_processor", "trainer"]


def _all_or_names(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"{value!r} does not fit; expected 'all' or a list of behaviour names, such as [Tennis]")


def _speed(value: object) -> object:
    if value in ("max", "realtime"):
        return value
    number = to_number(value) if isinstance(value, str) else value
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < float("inf"):
        return float(number)
    raise ValueError(f"{value!r} does not fit; expected 'max', 'realtime', or a factor greater than 0, such as 2.0")


class RecordSettings(Settings):
    """Recording to `results/<run-id>/streams/`. Presence turns it on."""

    edges: Annotated[tuple[Edge, ...], BeforeValidator(as_tuple)] = Field(
        ("trainer",),
        min_length=1,
        description="`agent_processor`: trajectories as they leave it; `trainer`: as they reach the trainer.",
    )
    behaviors: Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_all_or_names)] = Field(
        "all", description="`all`, or a list of behaviour names."
    )


class ReplaySettings(Settings):
    """Recorded streams in place of environment and agent processor. Presence turns replay on."""

    streams: Names = Field(
        min_length=1, description="Stream files, folders of them, or patterns such as `results/old/streams/*.stream`."
    )
    speed: Annotated[Literal["max", "realtime"] | Annotated[float, Strict()], BeforeValidator(_speed)] = Field(
        "max",
        description="`max`: as fast as can be; `realtime`: as recorded; a number: times that.",
    )
