"""Specifications of the statistics on their way from stages to writers."""

from __future__ import annotations

import itertools
import logging
import math

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.reporting.statistics import RESERVOIR_SIZE, StatisticsCollector

NUMBERS = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(("how", "value"), [("mean", 2.0), ("sum", 6.0), ("last", 3.0), ("histogram", 2.0)])
def test_the_value_of_a_summary_is_what_how_says(how, value):
    collector = StatisticsCollector()
    for number in (1, 2, 3):
        collector.add("Tennis", "x", number, how)
    summary = collector.summaries("Tennis")["x"]
    assert (summary.value, summary.mean, summary.sum, summary.last, summary.count) == (value, 2, 6, 3, 3)
    assert summary.std == pytest.approx(math.sqrt(2 / 3))


@given(st.lists(NUMBERS, min_size=1, max_size=50), st.integers(0, 50))
def test_summaries_equal_numpys_however_the_values_came(values, cut):
    collector = StatisticsCollector()
    for value in values[:cut]:
        collector.add("Tennis", "x", value, "histogram")
    collector.extend("Tennis", "x", np.array(values[cut:]))
    summary = collector.summaries("Tennis")["x"]
    assert summary.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert summary.std == pytest.approx(np.std(values), abs=1e-5)
    assert summary.sum == pytest.approx(np.sum(values), abs=1e-5)
    assert summary.values == tuple(values)


def test_the_spread_stays_accurate_far_from_zero():
    collector = StatisticsCollector()
    for value in (1e9, 1e9 + 1, 1e9 + 2):
        collector.add("Tennis", "x", value)
    assert collector.summaries("Tennis")["x"].std == pytest.approx(math.sqrt(2 / 3))


def test_a_summary_begins_a_new_period_for_its_category_only():
    collector = StatisticsCollector()
    collector.add("Tennis", "x", 1)
    collector.add("Pipeline", "y", 2)
    assert collector.summaries("Tennis").keys() == {"x"}
    assert collector.summaries("Tennis") == {}
    assert collector.summaries("Pipeline")["y"].sum == 2


@given(st.lists(st.lists(NUMBERS, max_size=10), min_size=2, max_size=4))
def test_collectors_of_several_hosts_merge_to_what_one_would_have_gathered(parts):
    main, alone = StatisticsCollector(), StatisticsCollector()
    for values in parts:
        host = StatisticsCollector()
        for value in values:
            host.add("Tennis", "x", value, "histogram")
            alone.add("Tennis", "x", value, "histogram")
        main.merge(msgpack.unpackb(msgpack.packb(host.drain())))
    merged, expected = main.summaries("Tennis"), alone.summaries("Tennis")
    assert merged.keys() == expected.keys()
    for name, summary in merged.items():
        assert summary.values == expected[name].values
        assert summary.last == expected[name].last
        assert summary.count == expected[name].count
        assert summary.mean == pytest.approx(expected[name].mean, abs=1e-6)
        assert summary.std == pytest.approx(expected[name].std, abs=1e-5)


def test_a_long_histogram_keeps_a_fair_sample_and_an_exact_mean():
    count = 20 * RESERVOIR_SIZE
    collector = StatisticsCollector(seed=3)
    for number in range(count):
        collector.add("Tennis", "x", number, "histogram")
    summary = collector.summaries("Tennis")["x"]
    assert len(summary.values) == RESERVOIR_SIZE
    assert (summary.mean, summary.count) == (pytest.approx((count - 1) / 2), count)
    # A fair sample's mean has the spread count / sqrt(12 n): six of these are allowed.
    assert np.mean(summary.values) == pytest.approx(summary.mean, abs=6 * count / math.sqrt(12 * RESERVOIR_SIZE))
    assert len(set(summary.values)) == RESERVOIR_SIZE


def test_merging_full_histograms_takes_from_each_by_its_number_of_values():
    main, other = StatisticsCollector(seed=1), StatisticsCollector(seed=2)
    main.extend("Tennis", "x", np.zeros(3 * RESERVOIR_SIZE))
    other.extend("Tennis", "x", np.ones(RESERVOIR_SIZE))
    main.merge(other.drain())
    summary = main.summaries("Tennis")["x"]
    assert summary.mean == pytest.approx(0.25)
    assert len(summary.values) == RESERVOIR_SIZE
    assert np.mean(summary.values) == pytest.approx(0.25, abs=6 * math.sqrt(0.25 * 0.75 / RESERVOIR_SIZE))


def test_values_that_are_not_finite_are_left_out_and_named_once(caplog):
    collector = StatisticsCollector()
    collector.add("Tennis", "Losses/Value Loss", math.nan)
    collector.add("Tennis", "Losses/Value Loss", 2.0)
    collector.extend("Tennis", "Losses/Value Loss", [math.inf, 4.0, -math.inf], "mean")
    assert collector.summaries("Tennis")["Losses/Value Loss"].mean == 3.0
    assert [record.getMessage() for record in caplog.records] == [
        "Statistic 'Losses/Value Loss' of Tennis got the value nan; non-finite values are omitted (this warning appears only once)."
    ]


def test_a_statistic_of_nothing_but_nan_is_absent_from_the_summaries():
    collector = StatisticsCollector()
    collector.add("Tennis", "x", math.nan)
    assert collector.summaries("Tennis") == {}


def test_an_unknown_how_is_refused_by_name():
    collector = StatisticsCollector()
    with pytest.raises(
        ValueError, match=r"'x' of Tennis: unknown how='median'; expected one of mean, sum, last, histogram"
    ):
        collector.add("Tennis", "x", 1.0, "median")


def test_a_statistic_reported_in_two_ways_keeps_the_first_and_warns_once(caplog):
    collector = StatisticsCollector()
    for value, how in itertools.product((1.0, 2.0), ("sum", "last")):
        collector.add("Tennis", "x", value, how)
    summary = collector.summaries("Tennis")["x"]
    assert (summary.how, summary.value) == ("sum", 6.0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "'x' of Tennis is reported both as 'sum' and as 'last'" in caplog.text
