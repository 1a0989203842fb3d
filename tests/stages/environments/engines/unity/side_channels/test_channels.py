"""The standard side channels: their ids and their bytes, written by hand."""

from __future__ import annotations

import struct
import uuid

import pytest

from headrace.config import ConstantSampler, GaussianSampler, MultiRangeSampler, UniformSampler
from headrace.stages.environments.engines.unity.errors import ChannelMisused
from headrace.stages.environments.engines.unity.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    FloatPropertiesChannel,
    IncomingMessage,
    StatsAggregationMethod,
    StatsSideChannel,
)


def sent(channel) -> list[bytes]:
    return [bytes(message) for message in channel.message_queue]


def text(value: str) -> bytes:
    return struct.pack("<i", len(value)) + value.encode()


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize(
    ("channel", "channel_id"),
    [
        (EngineConfigurationChannel(), "e951342c-4f7e-11ea-b238-784f4387d1f7"),
        (EnvironmentParametersChannel(), "534c891e-810f-11ea-a9d0-822485860400"),
        (FloatPropertiesChannel(), "60ccf7d0-4f7e-11ea-b238-784f4387d1f7"),
        (StatsSideChannel(), str(uuid.uuid5(uuid.NAMESPACE_URL, "com.unity.ml-agents/StatsSideChannel"))),
    ],
)
def test_the_ids_are_unitys(channel, channel_id):
    assert str(channel.channel_id) == channel_id


def test_engine_settings_are_a_message_each():
    channel = EngineConfigurationChannel()
    channel.set_configuration_parameters(84, 80, 5, 20.0, -1, 60)
    assert sent(channel) == [ints(0, 84, 80), ints(1, 5), ints(2) + floats(20.0), ints(3, -1), ints(4, 60)]


def test_engine_settings_that_are_not_given_are_not_sent():
    channel = EngineConfigurationChannel()
    channel.set_configuration_parameters(time_scale=0.5)
    assert sent(channel) == [ints(2) + floats(0.5)]
    channel.set_configuration_parameters()
    assert len(sent(channel)) == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"width": 84}, "width 84 and height None can only be set together"),
        ({"time_scale": -1.0}, "time_scale must be a non-negative number, got -1.0"),
    ],
)
def test_engine_settings_that_make_no_sense_are_refused_and_nothing_is_sent(settings, problem):
    channel = EngineConfigurationChannel()
    with pytest.raises(ChannelMisused, match=problem):
        channel.set_configuration_parameters(quality_level=1, **settings)
    assert not sent(channel)


def test_environment_parameters_are_numbers_or_samplers():
    channel = EnvironmentParametersChannel()
    channel.set_float_parameter("mass", 2.5)
    channel.set_uniform_sampler_parameters("size", 1.0, 2.0, 11)
    channel.set_gaussian_sampler_parameters("wind", 0.5, 0.25, 12)
    channel.set_multirangeuniform_sampler_parameters("gap", [(1.0, 2.0), (5.0, 6.0)], 13)
    assert sent(channel) == [
        text("mass") + ints(0) + floats(2.5),
        text("size") + ints(1, 11, 0) + floats(1, 2),
        text("wind") + ints(1, 12, 1) + floats(0.5, 0.25),
        text("gap") + ints(1, 13, 2, 4) + floats(1, 2, 5, 6),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.5, ints(0) + floats(2.5)),
        (
            ConstantSampler.model_validate({"sampler_type": "constant", "sampler_parameters": {"value": 3}}),
            ints(0) + floats(3),
        ),
        (
            UniformSampler.model_validate(
                {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 2, "seed": 5}}
            ),
            ints(1, 5, 0) + floats(1, 2),
        ),
        (
            GaussianSampler.model_validate(
                {"sampler_type": "gaussian", "sampler_parameters": {"mean": 1, "st_dev": 2}}
            ),
            ints(1, 77, 1) + floats(1, 2),
        ),
        (
            MultiRangeSampler.model_validate(
                {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[1, 2], [3, 4]], "seed": 0}}
            ),
            ints(1, 0, 2, 4) + floats(1, 2, 3, 4),
        ),
    ],
)
def test_samplers_without_a_seed_get_the_run_s_seed(value, expected):
    channel = EnvironmentParametersChannel()
    channel.set_parameter("key", value, seed=77)
    assert sent(channel) == [text("key") + expected]


def test_a_parameter_name_that_unity_can_not_read_is_refused():
    with pytest.raises(ChannelMisused, match="'größe' is not ASCII, and Unity would read '\\?' for other characters"):
        EnvironmentParametersChannel().set_float_parameter("größe", 1.0)


def test_a_property_has_the_value_that_either_side_set_last():
    channel = FloatPropertiesChannel()
    channel.set_property("ours", 1.5)
    assert sent(channel) == [text("ours") + floats(1.5)]
    channel.on_message_received(IncomingMessage(text("theirs") + floats(2.5)))
    channel.on_message_received(IncomingMessage(text("ours") + floats(3.5)))
    assert channel.get_property_dict_copy() == {"ours": 3.5, "theirs": 2.5}
    assert (channel.list_properties(), channel.get_property("theirs"), channel.get_property("none")) == (
        ["ours", "theirs"],
        2.5,
        None,
    )
    assert len(sent(channel)) == 1, "what Unity sets is not sent back to it"


def test_statistics_are_kept_in_order_until_they_are_read():
    channel = StatsSideChannel()
    for key, value, method in [
        ("Goals", 1.0, 2),
        ("Height", 0.5, 0),
        ("Goals", 3.0, 2),
        ("Level", 4.0, 1),
        ("Hit", 1.0, 3),
    ]:
        channel.on_message_received(IncomingMessage(text(key) + floats(value) + ints(method)))
    how = StatsAggregationMethod
    assert channel.get_and_reset_stats() == {
        "Goals": [(1.0, how.SUM), (3.0, how.SUM)],
        "Height": [(0.5, how.AVERAGE)],
        "Level": [(4.0, how.MOST_RECENT)],
        "Hit": [(1.0, how.HISTOGRAM)],
    }
    assert channel.get_and_reset_stats() == {}


def test_a_statistic_without_an_aggregation_is_averaged():
    channel = StatsSideChannel()
    channel.on_message_received(IncomingMessage(text("Goals") + floats(1.0)))
    assert channel.get_and_reset_stats() == {"Goals": [(1.0, StatsAggregationMethod.AVERAGE)]}
