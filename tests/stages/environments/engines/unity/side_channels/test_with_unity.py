"""The side channels, with the stand-in Unity at their other end, which reads and writes them by itself."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from unity_runs import play, playing, reports

from headrace.stages.environments.engines.unity.side_channels import (
    EnvironmentParametersChannel,
    RawBytesChannel,
    SideChannel,
    SideChannels,
    StatsAggregationMethod,
    StatsSideChannel,
)

pytestmark = pytest.mark.lengthy

REVERSING = UUID("0dca4da5-1c9c-4d9b-9a4e-2a6fb1a1d3c8")
"""The stand-in's own channel: it sends back what it gets, backwards."""


async def talk(folder: Path, *channels: SideChannel, arguments: tuple[str, ...] = (), steps: int = 12) -> dict:
    """What the stand-in reports of a short run with these channels."""
    async with playing(folder, *arguments, channels=SideChannels(channels)) as game:
        await play(game, steps)
    (report,) = reports(folder)
    assert report["returncode"] == 0, report["reason"]
    return report


async def test_a_parameter_changes_what_the_scene_does(tmp_path):
    parameters = EnvironmentParametersChannel()
    parameters.set_float_parameter("step_size", 1.0)
    report = await talk(tmp_path, parameters)
    assert report["episodes"]["Simple?team=0"] == pytest.approx([1.06] * 12), "one step instead of five"


async def test_statistics_of_all_four_kinds_come_from_unity(tmp_path):
    statistics = StatsSideChannel()
    await talk(tmp_path, statistics, arguments=("--stats",), steps=10)
    heard = statistics.get_and_reset_stats()
    assert {name: [method for _, method in values] for name, values in heard.items()} == {
        "Client/Average": [StatsAggregationMethod.AVERAGE] * 2,
        "Client/MostRecent": [StatsAggregationMethod.MOST_RECENT] * 2,
        "Client/Sum": [StatsAggregationMethod.SUM] * 2,
        "Client/Histogram": [StatsAggregationMethod.HISTOGRAM] * 2,
    }
    assert [value for value, _ in heard["Client/MostRecent"]] == [1.0, 2.0]


async def test_raw_bytes_go_there_and_back(tmp_path):
    raw = RawBytesChannel(REVERSING)
    raw.send_raw_data(b"\x01\x02\x03")
    await talk(tmp_path, raw)
    assert raw.get_and_clear_received_messages() == [b"\x03\x02\x01"]
